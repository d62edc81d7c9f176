"""What gates cost while training: a step of the wrapped net beside a step of the plain one.

    python benchmarks/step_time.py [--runs 60] [--threads N] [--out results/step_time]

ResNet-18, 32 pictures of 64x64, gates drawn once per batch. A step is forward, backward and Adam; for the wrapped net
also ``progress``, which moves the gates, and ``budget_loss``. Eager and under ``torch.compile``, plain and gated in
turn; the ratio is the median over pairs. Compare ratios, not seconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import nn
from torch._inductor import config as inductor

from timing import Task, Watch, circumstances, interleaved, median, parser_of
from torchvision_ops import declare_torchvision_ops

sys.path.insert(0, str(Path(__file__).parents[1]))
import fxprune

RESULT = Path(__file__).parent / "results" / "step_time"
PICTURES, LABELS = torch.randn(32, 3, 64, 64), torch.arange(32) % 10
PARTS = ("forward and loss", "backward", "optimizer", "progress")
HEADER = ("mode", "plain ms", "gated ms", "gated / plain", *(f"{part} (gated - plain) ms" for part in PARTS))


def plain_step(model: nn.Module, run: Callable[[torch.Tensor], torch.Tensor]) -> Task:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return _step(optimizer, lambda: F.cross_entropy(run(PICTURES), LABELS), lambda: None)


def gated_step(net: Any, run: Callable[[torch.Tensor], torch.Tensor], runs: int) -> Task:
    optimizer = torch.optim.Adam(net.parameter_groups(lr=1e-3))
    done = iter(range(1, runs + 10))

    def advance() -> None:
        net.progress = next(done) / (runs + 10)

    advance()
    return _step(optimizer, lambda: F.cross_entropy(run(PICTURES), LABELS) + net.budget_loss(), advance)


def _step(optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor], advance: Callable[[], None]) -> Task:
    def task(watch: Watch) -> None:
        optimizer.zero_grad()
        value = watch.time(PARTS[0], loss)
        watch.time(PARTS[1], value.backward)
        watch.time(PARTS[2], optimizer.step)
        watch.time(PARTS[3], advance)

    return task


def measure(mode: str, runs: int) -> dict[str, Any]:
    """Medians of the parts, and of the ratio of the pairs."""
    from torchvision.models import resnet18

    torch.manual_seed(0)
    model = resnet18(num_classes=10).train()
    net = fxprune.wrap(model, 1 / 4, example_inputs=PICTURES[:2]).train()
    inductor.layout_optimization = False  # with it inductor of torch 2.13 fails on some CPUs, on the plain net, too
    runners = [model, net] if mode == "eager" else [torch.compile(model), torch.compile(net, fullgraph=True)]
    times = interleaved({"plain": plain_step(model, runners[0]), "gated": gated_step(net, runners[1], runs)}, runs)
    totals = {name: [sum(parts) for parts in zip(*steps.values(), strict=True)] for name, steps in times.items()}
    pairs = [gated / plain for plain, gated in zip(totals["plain"], totals["gated"], strict=True)]
    return {
        "mode": mode,
        "plain": median(totals["plain"]),
        "gated": median(totals["gated"]),
        "ratio": round(statistics.median(pairs), 3),
        "quartiles": [round(value, 3) for value in statistics.quantiles(pairs, n=4)],
        "parts": {part: round(median(times["gated"][part]) - median(times["plain"][part]), 4) for part in PARTS},
    }


def cells(row: dict[str, Any]) -> list[str]:
    low, _, high = row["quartiles"]
    times = [f"{1000 * row[name]:.1f}" for name in ("plain", "gated")]
    return [row["mode"], *times, f"{row['ratio']:.3f} [{low:.3f}, {high:.3f}]",
            *(f"{1000 * row['parts'][part]:+.1f}" for part in PARTS)]  # fmt: skip


def markdown(rows: list[dict[str, Any]], head: dict[str, Any]) -> str:
    lines = ["# A training step with gates, beside one without", "", f"`{head['command']}`", ""]
    lines += ["| " + " | ".join(HEADER) + " |", "|" + " --- |" * len(HEADER)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    lines += ["", "Ratios are medians over pairs of steps, with quartiles. " + str(head["machine"]), ""]
    return "\n".join(lines)


def main() -> None:
    parser = parser_of(__doc__)
    parser.set_defaults(runs=60)
    parser.add_argument("--out", type=Path, default=RESULT, help="without suffix: .json and .md are written")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    declare_torchvision_ops()
    warnings.simplefilter("ignore")
    head = circumstances("step_time.py", f"--runs {options.runs}")
    rows = []
    for mode in ("eager", "compiled"):
        rows.append(measure(mode, options.runs))
        torch._dynamo.reset()
    table = Table(*HEADER)
    for row in rows:
        table.add_row(*cells(row))
    Console().print(table)
    options.out.with_suffix(".json").write_text(json.dumps({**head, "rows": rows}, indent=2) + "\n")
    options.out.with_suffix(".md").write_text(markdown(rows, head))


if __name__ == "__main__":
    main()
