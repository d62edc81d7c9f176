"""How wrap, harden and export grow with the network, in time and in memory.

    python benchmarks/scaling.py [--runs 7] [--out results/scaling]

Time: residual nets of 100 and of 1,000 convolutions, in turns. Memory: the largest that a fresh process gets to be
while it wraps and exports, beyond what it was with the model loaded, beside the size of the model's weights.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from timing import Task, Watch, circumstances, extent, interleaved, median, parser_of
from torchvision_ops import declare_torchvision_ops

sys.path.insert(0, str(Path(__file__).parents[1]))
import fxprune

RESULT = Path(__file__).parent / "results" / "scaling"
SIZES, STEPS = (100, 1000), ("wrap", "harden", "export")
MODELS = ("resnet18", "resnet50", "resnet152")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


def residual(convolutions: int, width: int = 16) -> nn.Module:
    blocks = [Block(width) for _ in range(convolutions // 2)]
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()


def work(model: nn.Module, example: torch.Tensor, watch: Watch) -> None:
    wrapped = watch.time("wrap", lambda: fxprune.wrap(model, 1 / 4, example_inputs=example, verify=False))
    generator = torch.Generator().manual_seed(0)
    scores = {name: torch.rand(len(gate), generator=generator) for name, gate in wrapped.gates.items()}
    watch.time("harden", lambda: wrapped.harden(scores))
    watch.time("export", lambda: fxprune.export(wrapped, verify=False))


def times(runs: int) -> dict[str, Any]:
    example = torch.zeros(1, 3, 8, 8)

    def task(model: nn.Module) -> Task:
        return lambda watch: work(model, example, watch)

    taken = interleaved({str(size): task(residual(size)) for size in SIZES}, runs)
    rows = {size: {step: median(taken[size][step]) for step in STEPS} for size in taken}
    spread = {size: {step: extent(taken[size][step]) for step in STEPS} for size in taken}
    small, large = (rows[str(size)] for size in SIZES)
    return {"seconds": rows, "range": spread, "growth": {step: round(large[step] / small[step], 2) for step in STEPS}}


def peak() -> float:
    """Of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory_of(name: str) -> dict[str, float]:
    """In a process of its own."""
    declare_torchvision_ops()
    import torchvision

    torch.set_num_threads(1)
    work(residual(4), torch.zeros(1, 3, 8, 8), Watch())  # what torch needs for itself the first time
    model = torchvision.models.get_model(name, weights=None).eval()
    before = peak()
    work(model, torch.zeros(1, 3, 64, 64), Watch())
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()) / 2**20
    return {"weights_mb": round(weights, 1), "more_mb": round(peak() - before, 1)}


def memory() -> dict[str, dict[str, float]]:
    peaks = {}
    for name in MODELS:
        done = subprocess.run(
            [sys.executable, __file__, "--memory-of", name], capture_output=True, text=True, check=True
        )
        peaks[name] = json.loads(done.stdout)
    return peaks


def markdown(result: dict[str, Any]) -> str:
    machine, growth = result["machine"], result["growth"]
    text = [
        "# How it grows", "", f"Made by `{result['command']}`; do not edit.", "",
        f"Medians of {result['runs']} interleaved runs, {machine['threads']} thread(s), {machine['cores']} cores "
        f"({machine['processor']}, load per core before: {result['load_per_core_before']}), Python "
        f"{machine['python']}, torch {machine['torch']}. Residual nets of 16 channels; a budget of 1/4 of the volume, "
        "random scores, verify=False.", "",
        "| convolutions | wrap, ms | harden, ms | export, ms |", "| ---: | ---: | ---: | ---: |",
        *(f"| {size} | " + " | ".join(f"{1e3 * row[step]:.0f}" for step in STEPS) + " |"
          for size, row in result["seconds"].items()),
        "| ten times as many take | " + " | ".join(f"{growth[step]:.1f} x" for step in STEPS) + " |", "",
        "| | weights, MB | memory of wrap, harden and export beyond the model, MB |", "| --- | ---: | ---: |",
        *(f"| {name} | {row['weights_mb']} | {row['more_mb']} |" for name, row in result["memory"].items()),
    ]  # fmt: skip
    return "\n".join(text) + "\n"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=Path, default=RESULT, help="path without .json and .md")
    parser.add_argument("--memory-of", metavar="MODEL", help="print the memory of one model, and nothing else")
    options = parser.parse_args()
    if options.memory_of:
        print(json.dumps(memory_of(options.memory_of)))
        return
    torch.set_num_threads(options.threads)
    runs = max(options.runs, 5)
    result = {**circumstances("scaling.py", f"--runs {runs}"), "runs": runs, **times(runs), "memory": memory()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(markdown(result))
    print(markdown(result))


if __name__ == "__main__":
    main()
