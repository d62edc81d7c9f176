"""Does a guarded layer keep a channel, in every step of every method?

    python benchmarks/guards.py [--jobs 2] [--out results/guards]

A ResNet-8 on scikit-learn's digits (the setting of compare_digits.toml), pruned to 1/16 and 1/32 of the volume by
every method, three seeds. Counted: the gates of every forward pass while pruning, as they were drawn, with which no
signal gets from the input to the output; those with which a guarded layer has no channel; and guarded layers that the
slim net lacks.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from timing import machine
from training import Row, in_a_process, publish, rows_of, run_missing

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from handwriting import loaders
from models import resnet8

import fxprune
from fxprune.analysis import Analysis
from fxprune.api import analyse
from fxprune.gated.bank import GateBank
from fxprune.methods import METHODS

RESULT = Path(__file__).parent / "results" / "guards"
BUDGETS, SEEDS = {"1/16": 1 / 16, "1/32": 1 / 32}, (0, 1, 2)
EXAMPLE = torch.zeros(1, 3, 16, 16)


def adam(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr=6e-3, weight_decay=1e-4)


def teacher(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    net, (train, _) = resnet8(width=16), loaders()
    optimizer = torch.optim.Adam(net.parameters(), lr=6e-3, weight_decay=1e-4)
    for _ in range(10):
        for x, y in train:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net.train()(x), y).backward()
            optimizer.step()
    return net.eval()


class Watch:
    """Looks at the gates of every forward pass while training."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis, self.steps, self.dead, self.empty = analysis, 0, 0, 0
        names = {guard.layer for guard in analysis.guards.layers if guard.read}
        self.guarded = [layer for layer in analysis.layers if layer.name in names]

    def look(self, values: torch.Tensor) -> None:
        opened = np.atleast_2d((values.detach() != 0).numpy()).T
        alive, present = self.analysis.costs.logic.alive(opened), self.analysis.costs.logic.present(opened)
        self.steps += 1
        self.dead += not all(alive[ids].any(0).all() for ids in self.analysis.channels.outputs)
        self.empty += not all(present[layer.calls[0].ids.reshape(-1)].any(0).all() for layer in self.guarded)


def one(key: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    method, budget, seed = key.split(",")
    net, watch = teacher(int(seed)), Watch(analyse(resnet8(width=16), EXAMPLE))
    draw, values = GateBank._draw, GateBank.values

    def drawn(bank: GateBank, count: int | None) -> torch.Tensor:
        z = draw(bank, count)
        watch.look(z)
        return z

    def fixed(bank: GateBank) -> torch.Tensor:
        z = values(bank)
        if bank.training:
            watch.look(z)
        return z

    torch.manual_seed(int(seed))
    with mock.patch.object(GateBank, "_draw", drawn), mock.patch.object(GateBank, "values", fixed):
        pruned = fxprune.prune(
            net, *loaders(), budget=BUDGETS[budget], epochs=(4, 4, 1), method=method, optimizer=adam, seed=int(seed),
            progress=False,
        )  # fmt: skip
    widths, cost = pruned.report["widths"], pruned.report["cost"]["volume"]
    return {
        "method": method, "budget": budget, "seed": int(seed), "steps": watch.steps, "dead": watch.dead,
        "empty": watch.empty, "missing": [layer.name for layer in watch.guarded if not widths[layer.name]],
        "used": round(cost["after"] / cost["before"] / BUDGETS[budget], 4),
        "accuracy": round(100 * (pruned.after or 0), 1),
    }  # fmt: skip


def key_of(row: Row) -> str:
    return f"{row['method']},{row['budget']},{row['seed']}"


def markdown(rows: list[dict[str, Any]]) -> str:
    head = ("method", "budget", "steps", "without a living way", "with an empty guarded layer",
            "guarded layers missing", "budget used", "accuracy %")  # fmt: skip
    smallest = fxprune.inspect(resnet8(width=16), EXAMPLE).smallest_budget
    least = ", ".join(f"{share:.4f} of {name}" for name, share in smallest.items() if "network" not in name)
    lines = ["# Guarded layers, ResNet-8 on digits", "", "`python benchmarks/guards.py`", "",
             "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]  # fmt: skip
    for method in METHODS:
        for budget in BUDGETS:
            some = [row for row in rows if (row["method"], row["budget"]) == (method, budget)]
            if some:
                lines.append("| " + " | ".join([
                    method, budget, *(str(sum(row[name] for row in some)) for name in ("steps", "dead", "empty")),
                    str(sum(len(row["missing"]) for row in some)),
                    f"{min(row['used'] for row in some):.3f} to {max(row['used'] for row in some):.3f}",
                    ", ".join(str(row["accuracy"]) for row in some),
                ]) + " |")  # fmt: skip
    lines += ["", f"Three seeds each. The smallest net that holds its guards takes {least}.", "", str(machine()), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, a thread each")
    parser.add_argument("--out", type=Path, default=RESULT, help="without suffix: .jsonl and .md are written")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one)))
        return
    file = options.out.with_suffix(".jsonl")
    keys = [f"{method},{budget},{seed}" for method in METHODS for budget in BUDGETS for seed in SEEDS]
    run_missing(file, keys, key_of, lambda key: in_a_process(__file__, "--one", key), options.jobs)
    rows = rows_of(file)
    publish(rows, key_of, markdown(rows), options.out)


if __name__ == "__main__":
    main()
