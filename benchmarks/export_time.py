"""How long it takes from a model to its slim net, beside Torch-Pruning.

    python benchmarks/export_time.py [--runs 9] [--threads N] [--out results/export_time]

fxprune: wrap, set_masks (every gate closed with probability 1/2) and export, without comparing nets. Torch-Pruning: a
MagnitudePruner (construction builds the dependency graph) and one step at a pruning ratio of 1/2, the classifier's
outputs ignored. It prunes in place, so a copy is made for it before the clock starts; fxprune's own copy is counted.
Its step chooses channels by magnitude, layer by layer; fxprune's choice on a budget is harden, timed separately.
Compare ratios, not seconds.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from timing import Task, Watch, circumstances, extent, interleaved, median, parser_of
from torchvision_ops import declare_torchvision_ops

sys.path.insert(0, str(Path(__file__).parents[1]))
import fxprune
from fxprune.trace import trace

NAMES = ("resnet18", "resnet50", "resnet152", "densenet121")
RESULT = Path(__file__).parent / "results" / "export_time"
STEPS = ("wrap", "set_masks", "export")  # harden is not one of them
RIVAL_STEPS = ("construct", "step")
HEADER = ("model", "nodes", *STEPS, "sum", "Torch-Pruning", "ratio", "harden")
Row = dict[str, Any]


def ours(model: nn.Module, example: torch.Tensor, left: dict[str, float]) -> Task:
    def task(watch: Watch) -> None:
        wrapped = watch.time("wrap", lambda: fxprune.wrap(model, 1 / 2, example_inputs=example, verify=False))
        generator = torch.Generator().manual_seed(0)
        scores = {name: torch.rand(len(gate), generator=generator) for name, gate in wrapped.gates.items()}
        masks = {name: score < 0.5 for name, score in scores.items()}
        watch.time("set_masks", lambda: wrapped.set_masks(masks))
        slim = watch.time("export", lambda: fxprune.export(wrapped, verify=False))
        left["fxprune"] = parameters(slim) / parameters(model)
        watch.time("harden", lambda: wrapped.harden(scores))

    return task


def theirs(model: nn.Module, example: torch.Tensor, left: dict[str, float]) -> Task:
    from torch_pruning import importance, pruner

    def task(watch: Watch) -> None:
        pruned = copy.deepcopy(model)
        *_, classifier = (module for module in pruned.modules() if isinstance(module, nn.Linear))
        settings = {"importance": importance.MagnitudeImportance(), "pruning_ratio": 1 / 2}
        constructed = watch.time(
            "construct", lambda: pruner.MagnitudePruner(pruned, example, ignored_layers=[classifier], **settings)
        )
        watch.time("step", constructed.step)
        left["torch_pruning"] = parameters(pruned) / parameters(model)

    return task


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def measure(runs: int) -> dict[str, Any]:
    """Medians over interleaved runs."""
    declare_torchvision_ops()
    import torchvision

    example = torch.zeros(1, 3, 224, 224)
    models = {name: torchvision.models.get_model(name, weights=None).eval() for name in NAMES}
    left: dict[str, dict[str, float]] = {name: {} for name in NAMES}
    tasks = {name: ours(model, example, left[name]) for name, model in models.items()}
    tasks |= {f"{name} rival": theirs(model, example, left[name]) for name, model in models.items()}
    times = interleaved(tasks, runs)
    rows: dict[str, Row] = {}
    for name, model in models.items():
        own, rival = times[name], times[f"{name} rival"]
        total, rival_total = whole(own, STEPS), whole(rival, RIVAL_STEPS)
        rows[name] = {
            "nodes": len(trace(model, example).graph.nodes),
            "fxprune": {step: median(taken) for step, taken in own.items()} | {"sum": median(total)},
            "torch_pruning": {step: median(taken) for step, taken in rival.items()} | {"sum": median(rival_total)},
            "range": {"fxprune": extent(total), "torch_pruning": extent(rival_total)},
            "parameters_left": {who: round(share, 3) for who, share in left[name].items()},
            "ratio": round(median(total) / median(rival_total), 3),
        }
    small, large = rows["resnet18"], rows["resnet152"]
    growth = large["fxprune"]["sum"] / small["fxprune"]["sum"] / (large["nodes"] / small["nodes"])
    return {
        "example": "1x3x224x224",
        "runs": runs,
        "seconds": rows,
        "resnet152_to_resnet18_time_per_node": round(growth, 3),
    }


def whole(times: dict[str, list[float]], steps: tuple[str, ...]) -> list[float]:
    return [sum(taken) for taken in zip(*(times[step] for step in steps), strict=True)]


def lines(result: dict[str, Any]) -> list[list[str]]:
    """One line per model: medians in ms."""
    rows = []
    for name, row in result["seconds"].items():
        own = row["fxprune"]
        values = [*(own[step] for step in (*STEPS, "sum")), row["torch_pruning"]["sum"]]
        shown = [f"{1000 * value:.0f}" for value in values]
        rows.append([name, str(row["nodes"]), *shown, f"{row['ratio']:.2f}", f"{1000 * own['harden']:.0f}"])
    return rows


def markdown(result: dict[str, Any]) -> str:
    machine, rows = result["machine"], result["seconds"]
    left = "; ".join(
        f"{name} {row['parameters_left']['fxprune']:.0%} and {row['parameters_left']['torch_pruning']:.0%}"
        for name, row in rows.items()
    )
    text = [
        "# From a model to its slim net", "",
        f"Made by `{result['command']}`; do not edit.", "",
        f"Medians of {result['runs']} interleaved runs in ms at {result['example']}, {machine['threads']} thread(s), "
        f"{machine['cores']} cores ({machine['processor']}, load per core before: {result['load_per_core_before']}), "
        f"Python {machine['python']}, torch {machine['torch']}, Torch-Pruning {machine['torch-pruning']}.", "",
        "| " + " | ".join(HEADER) + " |", "| --- |" + " ---: |" * (len(HEADER) - 1),
        *("| " + " | ".join(line) + " |" for line in lines(result)), "",
        "*sum*: wrap, set_masks (random, half of the gates closed) and export, without comparing nets. "
        "*Torch-Pruning*: a MagnitudePruner, constructed, and one step at a pruning ratio of 1/2; the copy of the "
        "model that it prunes in place is not counted, fxprune's is. Its step includes the choice of channels, layer "
        "by layer; fxprune's choice on a budget (half of the volume) is *harden*, not in the sum. *ratio*: sum over "
        "Torch-Pruning.", "",
        f"Parameters left by fxprune and by Torch-Pruning: {left}. (Random masks differ from layer to layer, so that "
        "residual streams keep most of their channels.)", "",
        f"Time per node of ResNet-152 over ResNet-18: {result['resnet152_to_resnet18_time_per_node']:.2f}.",
    ]  # fmt: skip
    return "\n".join(text) + "\n"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=Path, default=RESULT, help="path without .json and .md")
    options = parser.parse_args()
    runs = max(options.runs, 7)
    torch.set_num_threads(options.threads)
    result = {**circumstances("export_time.py", f"--runs {runs}"), **measure(runs)}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(markdown(result))
    table = Table(*HEADER, title="From a model to its slim net, median ms")
    for line in lines(result):
        table.add_row(*line)
    Console().print(table)
    Console().print(f"Time per node, ResNet-152 over ResNet-18: {result['resnet152_to_resnet18_time_per_node']:.2f}")


if __name__ == "__main__":
    main()
