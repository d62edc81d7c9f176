"""Everything in one call: the model is trained, pruned to several budgets at once, exported and fine-tuned.

    python examples/prune_in_one_call.py [EPOCHS]

The run is kept in runs/one_call. Stop it with Ctrl-C and start it again: it goes on where it was.
"""

from __future__ import annotations

import sys

import torch

import fxprune
from fxprune.demo import DigitNet, loaders


def main(epochs: int = 8, most: int | None = None, width: int = 32, run: str = "runs/one_call") -> fxprune.Pruned:
    train, test = loaders(most=most)
    torch.manual_seed(0)
    pruned = fxprune.prune(
        DigitNet(width),
        train,
        test,
        budget={"volume": 1 / 4, "flops": 1 / 8},  # or one of them: budget=1/8, metric="flops"
        epochs=(epochs, epochs, max(epochs // 4, 1)),  # pruning, fine-tuning, and that at a tenth of the rate
        teacher="train",  # "self" if the model comes trained
        optimizer=lambda groups: torch.optim.Adam(groups, lr=3e-3, weight_decay=5e-4),
        run=run,
    )
    print(pruned)
    print(f"saved: {pruned.run}/slim/model.py; in Python: fxprune.load('{pruned.run}/slim')")
    return pruned


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
