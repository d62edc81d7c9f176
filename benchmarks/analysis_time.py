"""How long the analysis takes: growth with the number of nodes, and DenseNet-121 against Torch-Pruning.

    python benchmarks/analysis_time.py [--runs 9] [--threads N] [--json OUT]

fxprune's analysis relates every channel. Torch-Pruning's build_dependency relates layers only, and which channels go
together is what its groups tell, so its time with all groups is given as well. Compare ratios, not seconds. One thread
by default: torch's threads wait for each other actively, which costs many times the work itself when others need the
cores.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from timing import Task, circumstances, extent, interleaved, median, parser_of
from torchvision_ops import declare_torchvision_ops

sys.path.insert(0, str(Path(__file__).parents[1]))
from fxprune.api import analyse
from fxprune.trace import trace

NAMES = ("resnet18", "resnet50", "resnet152", "densenet121")
RESULT = Path(__file__).parent / "results" / "analysis_time.json"
RIVAL = "densenet121 (Torch-Pruning: build_dependency)"
RIVAL_GROUPS = "densenet121 (Torch-Pruning: build_dependency, get_all_groups)"


def measure(runs: int) -> dict[str, Any]:
    """Medians over interleaved runs."""
    declare_torchvision_ops()
    import torch_pruning
    import torchvision

    example = torch.zeros(1, 3, 224, 224)
    models = {name: torchvision.models.get_model(name, weights=None).eval() for name in NAMES}
    nodes = {name: len(trace(model, example).graph.nodes) for name, model in models.items()}
    rival = models["densenet121"]

    def build() -> Any:
        return torch_pruning.DependencyGraph().build_dependency(rival, example_inputs=example)

    def timed(work: Any) -> Task:
        return lambda watch: watch.time("all", work)

    tasks = {name: timed(partial(analyse, model, example)) for name, model in models.items()}
    tasks |= {RIVAL: timed(build), RIVAL_GROUPS: timed(lambda: list(build().get_all_groups()))}
    times = {name: steps["all"] for name, steps in interleaved(tasks, runs).items()}
    taken = {name: median(values) for name, values in times.items()}
    growth = taken["resnet152"] / taken["resnet18"]
    more_nodes = nodes["resnet152"] / nodes["resnet18"]
    return {
        "example": "1x3x224x224",
        "runs": runs,
        "nodes": nodes,
        "median_seconds": taken,
        "range_seconds": {name: extent(values) for name, values in times.items()},
        "ratios": {
            "resnet152_to_resnet18_time": round(growth, 3),
            "resnet152_to_resnet18_nodes": round(more_nodes, 3),
            "resnet152_to_resnet18_time_per_node": round(growth / more_nodes, 3),
            "densenet121_torch_pruning_build_to_fxprune": round(taken[RIVAL] / taken["densenet121"], 2),
            "densenet121_torch_pruning_groups_to_fxprune": round(taken[RIVAL_GROUPS] / taken["densenet121"], 2),
        },
    }


def tables(result: dict[str, Any]) -> tuple[Table, Table]:
    times = Table("model", "nodes", "median ms", "ms per 100 nodes", title="Analysis time")
    ratios = Table("ratio", "value", title="Ratios")
    for name, value in result["median_seconds"].items():
        nodes = result["nodes"].get(name)
        times.add_row(name, str(nodes or "–"), f"{1000 * value:.0f}", f"{1e5 * value / nodes:.1f}" if nodes else "–")
    for name, value in result["ratios"].items():
        ratios.add_row(name.replace("_", " "), f"{value:.2f}")
    return times, ratios


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--json", type=Path, default=RESULT, metavar="OUT")
    options = parser.parse_args()
    runs = max(options.runs, 7)
    torch.set_num_threads(options.threads)
    result = {**circumstances("analysis_time.py", f"--runs {runs}"), **measure(runs)}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    for table in tables(result):
        Console().print(table)


if __name__ == "__main__":
    main()
