"""What gates cost while training: a step of the wrapped net beside a step of the plain one.

    python benchmarks/step_time.py [--nets resnet18 ...] [--sizes 32 ...] [--modes eager compiled] [--runs 60]
                                   [--batch 32] [--threads N] [--out results/step_time]

Square pictures, gates drawn once per batch. A step is forward, backward and Adam; for the wrapped net also
``progress``, which moves the gates, and ``budget_loss``. Eager and under ``torch.compile``, plain and gated in turn;
the ratio is the median over pairs, and beside it that of the sums: every tenth step also looks at what each gate costs.
Compare ratios, not seconds. A row that is in the .jsonl file already (of this machine, with as many runs) is not
measured again, so that the same command goes on where it was cut off.
"""

from __future__ import annotations

import argparse
import itertools
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

from timing import Task, Watch, circumstances, interleaved, keep_memory, median, parser_of
from torchvision_ops import declare_torchvision_ops

sys.path.insert(0, str(Path(__file__).parents[1]))
import fxprune

RESULT = Path(__file__).parent / "results" / "step_time"
NETS, SIZES, MODES = ("resnet18", "resnet50", "mobilenet_v2"), (32, 64, 112, 224), ("eager", "compiled")
LABELS = 10
PARTS = ("forward and loss", "backward", "optimizer", "progress")
HEADER = (
    "net", "pixels", "mode", "plain ms", "gated ms", "gated / plain", "of the sums",
    *(f"{part} (gated - plain) ms" for part in PARTS),
)  # fmt: skip
KEY = ("net", "size", "mode", "batch", "threads", "runs", "processor")


def plain_step(model: nn.Module, loss: Callable[[], torch.Tensor]) -> Task:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return _step(optimizer, loss, lambda: None)


def gated_step(net: Any, loss: Callable[[], torch.Tensor], runs: int) -> Task:
    optimizer = torch.optim.Adam(net.parameter_groups(lr=1e-3))
    done = iter(range(1, runs + 10))

    def advance() -> None:
        net.progress = next(done) / (runs + 10)

    advance()
    return _step(optimizer, lambda: loss() + net.budget_loss(), advance)


def _step(optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor], advance: Callable[[], None]) -> Task:
    def task(watch: Watch) -> None:
        optimizer.zero_grad()
        found = watch.time(PARTS[0], loss)
        watch.time(PARTS[1], found.backward)
        watch.time(PARTS[2], optimizer.step)
        watch.time(PARTS[3], advance)

    return task


def measure(asked: dict[str, Any]) -> dict[str, Any]:
    """Medians of the parts, and of the ratio of the pairs."""
    from torchvision import models

    torch.manual_seed(0)
    pictures = torch.randn(asked["batch"], 3, asked["size"], asked["size"])
    labels = torch.arange(asked["batch"]) % LABELS
    model = getattr(models, asked["net"])(num_classes=LABELS).train()
    net = fxprune.wrap(model, 1 / 4, example_inputs=pictures[:2], verify=False).train()
    inductor.layout_optimization = False  # with it inductor of torch 2.13 fails on some CPUs, on the plain net, too
    compiled = asked["mode"] == "compiled"
    runners = [torch.compile(model), torch.compile(net, fullgraph=True)] if compiled else [model, net]
    plain, gated = (lambda run=run: F.cross_entropy(run(pictures), labels) for run in runners)
    tasks = {"plain": plain_step(model, plain), "gated": gated_step(net, gated, asked["runs"])}
    times = interleaved(tasks, asked["runs"])
    totals = {name: [sum(parts) for parts in zip(*steps.values(), strict=True)] for name, steps in times.items()}
    pairs = [gated / plain for plain, gated in zip(totals["plain"], totals["gated"], strict=True)]
    return {
        "plain": median(totals["plain"]),
        "gated": median(totals["gated"]),
        "ratio": round(statistics.median(pairs), 3),
        "quartiles": [round(value, 3) for value in statistics.quantiles(pairs, n=4)],
        "of_sums": round(sum(totals["gated"]) / sum(totals["plain"]), 3),
        "parts": {part: round(median(times["gated"][part]) - median(times["plain"][part]), 5) for part in PARTS},
    }


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def cells(row: dict[str, Any]) -> list[str]:
    low, _, high = row["quartiles"]
    times = [f"{1000 * row[name]:.1f}" for name in ("plain", "gated")]
    ratios = [f"{row['ratio']:.3f} [{low:.3f}, {high:.3f}]", f"{row['of_sums']:.3f}"]
    parts = [f"{1000 * row['parts'][part]:+.1f}" for part in PARTS]
    return [row["net"], str(row["size"]), row["mode"], *times, *ratios, *parts]


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = ["# A training step with gates, beside one without"]
    for machine, group in itertools.groupby(sorted(rows, key=_place), lambda row: str(row["machine"])):
        held = list(group)
        lines += ["", f"`{held[0]['command']}`", "", "| " + " | ".join(HEADER) + " |", "|" + " --- |" * len(HEADER)]
        lines += ["| " + " | ".join(cells(row)) + " |" for row in held]
        lines += ["", "Ratios are medians over pairs of steps, with quartiles; then the sum of all gated steps by that "
                  f"of all plain ones. Batches of {held[0]['batch']}. {machine}"]  # fmt: skip
    return "\n".join([*lines, ""])


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return str(row["machine"]), NETS.index(row["net"]), row["mode"] != "eager", row["size"], row["runs"]


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.set_defaults(runs=60)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=NETS)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="of the square pictures")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--out", type=Path, default=RESULT, help="without suffix: .jsonl and .md are written")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    torch.set_num_threads(options.threads)
    declare_torchvision_ops()
    warnings.simplefilter("ignore")
    head = circumstances("step_time.py", f"--runs {options.runs} --batch {options.batch}")
    file = options.out.with_suffix(".jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    fixed = {"batch": options.batch, "threads": options.threads, "runs": options.runs}
    fixed["processor"] = head["machine"]["processor"]
    for mode, net, size in itertools.product(options.modes, options.nets, options.sizes):
        asked = {"net": net, "size": size, "mode": mode, **fixed}
        if key_of(asked) not in map(key_of, rows):
            rows.append({**asked, **measure(asked), **head})
            with file.open("a") as log:
                log.write(json.dumps(rows[-1]) + "\n")
            torch._dynamo.reset()
        options.out.with_suffix(".md").write_text(markdown(rows))
    table = Table(*HEADER)
    for row in sorted(rows, key=_place):
        table.add_row(*cells(row))
    Console().print(table)


if __name__ == "__main__":
    keep_memory()
    main()
