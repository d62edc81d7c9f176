"""Pruning in rounds: a slim net is an ordinary module, so it can be wrapped and pruned again.

    python examples/iterative.py [ROUNDS]

Every round halves the volume of what the last one left, which also is its teacher, and fine-tunes the result.
"""

from __future__ import annotations

import sys

import torch
from rich.console import Console
from rich.table import Table

import fxprune
from fxprune.demo import DigitNet, loaders


def main(rounds: int = 4, epochs: int = 6, most: int | None = None, width: int = 32) -> list[tuple[int, float]]:
    torch.manual_seed(0)
    train, test = loaders(most=most)
    model, teacher, found = DigitNet(width), "train", []
    for _ in range(rounds):
        pruned = fxprune.prune(
            model, train, test, budget=1 / 2, epochs=(epochs, epochs, 1), teacher=teacher,
            optimizer=lambda groups: torch.optim.Adam(groups, lr=3e-3, weight_decay=5e-4),
        )  # fmt: skip
        cost = pruned.report["cost"]["volume"]
        found += [(cost["before"], pruned.before)] * (not found) + [(cost["after"], pruned.after)]
        model, teacher = pruned.slim, "self"
    table = Table("round", "volume", "of the full net", "right")
    for number, (volume, right) in enumerate(found):
        table.add_row(str(number), f"{volume:,}", f"1/{found[0][0] / volume:.1f}", f"{right:.1%}")
    Console().print(table)
    return found


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
