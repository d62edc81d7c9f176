"""How long the analysis takes: growth with the number of nodes, and DenseNet-121 against Torch-Pruning.

    python benchmarks/analysis_time.py [--runs 9] [--threads N] [--json OUT]

fxprune's analysis relates every channel. Torch-Pruning's build_dependency relates layers only, and which channels go
together is what its groups tell, so its time with all groups is given as well. The models take turns, so that whatever
else the machine does falls on all of them alike. Compare ratios, not seconds. One thread by default: torch's
threads wait for each other actively, which costs many times the work itself when others need the cores.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from torchvision_ops import declare_torchvision_ops

sys.path.insert(0, str(Path(__file__).parents[1]))
from fxprune.passes.analysis import analyse
from fxprune.tracing import trace

NAMES = ("resnet18", "resnet50", "resnet152", "densenet121")
RESULT = Path(__file__).parent / "results" / "analysis_time.json"
RIVAL = "densenet121 (Torch-Pruning: build_dependency)"
RIVAL_GROUPS = "densenet121 (Torch-Pruning: build_dependency, get_all_groups)"


def seconds(work: Callable[[], Any]) -> float:
    gc.collect()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(runs: int) -> dict[str, Any]:
    """Medians over interleaved runs; the first round warms up and does not count."""
    declare_torchvision_ops()
    import torch_pruning
    import torchvision

    example = torch.zeros(1, 3, 224, 224)
    models = {name: torchvision.models.get_model(name, weights=None).eval() for name in NAMES}
    nodes = {name: len(trace(model, example).graph.nodes) for name, model in models.items()}
    work: dict[str, Callable[[], Any]] = {name: partial(analyse, model, example) for name, model in models.items()}
    rival = models["densenet121"]

    def build() -> Any:
        return torch_pruning.DependencyGraph().build_dependency(rival, example_inputs=example)

    work[RIVAL] = build
    work[RIVAL_GROUPS] = lambda: list(build().get_all_groups())
    times: dict[str, list[float]] = {name: [] for name in work}
    rounds = track(range(runs + 1), description="rounds", disable=not sys.stdout.isatty())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in rounds:
            for name, task in work.items():
                taken = seconds(task)
                if number > 0:
                    times[name].append(taken)
    median = {name: statistics.median(taken) for name, taken in times.items()}
    growth = median["resnet152"] / median["resnet18"]
    more_nodes = nodes["resnet152"] / nodes["resnet18"]
    return {
        "example": "1x3x224x224",
        "runs": runs,
        "nodes": nodes,
        "median_seconds": {name: round(value, 4) for name, value in median.items()},
        "range_seconds": {name: [round(min(taken), 4), round(max(taken), 4)] for name, taken in times.items()},
        "ratios": {
            "resnet152_to_resnet18_time": round(growth, 3),
            "resnet152_to_resnet18_nodes": round(more_nodes, 3),
            "resnet152_to_resnet18_time_per_node": round(growth / more_nodes, 3),
            "densenet121_torch_pruning_build_to_fxprune": round(median[RIVAL] / median["densenet121"], 2),
            "densenet121_torch_pruning_groups_to_fxprune": round(median[RIVAL_GROUPS] / median["densenet121"], 2),
        },
    }


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        **{package: metadata.version(package) for package in ("torch", "torchvision", "torch-pruning")},
    }


def tables(found: dict[str, Any]) -> tuple[Table, Table]:
    times = Table("model", "nodes", "median ms", "ms per 100 nodes", title="Analysis time")
    ratios = Table("ratio", "value", title="Ratios")
    for name, value in found["median_seconds"].items():
        nodes = found["nodes"].get(name)
        times.add_row(name, str(nodes or "–"), f"{1000 * value:.0f}", f"{1e5 * value / nodes:.1f}" if nodes else "–")
    for name, value in found["ratios"].items():
        ratios.add_row(name.replace("_", " "), f"{value:.2f}")
    return times, ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=9, help="rounds that count, at least 7")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--json", type=Path, default=RESULT, metavar="OUT")
    options = parser.parse_args()
    runs = max(options.runs, 7)
    torch.set_num_threads(options.threads)
    command = f"python benchmarks/analysis_time.py --runs {runs} --threads {options.threads}"
    busy = round(os.getloadavg()[0] / (os.cpu_count() or 1), 2) if hasattr(os, "getloadavg") else None
    found = {"command": command, "machine": machine(), "load_per_core_before": busy, **measure(runs)}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1) + "\n")
    console = Console()
    if busy is not None and busy > 0.5:
        console.print(f"[yellow]The machine was busy (load {busy} per core): do not trust these numbers.[/yellow]")
    for table in tables(found):
        console.print(table)


if __name__ == "__main__":
    main()
