"""Pruning inside of Lightning's Trainer: the module stays as it is, a callback does the rest.

    pip install '.[lightning,demo]'
    python examples/lightning_callback.py [EPOCHS]

The first half of the epochs prunes; then the slim net takes the network's place, and the second half fine-tunes it.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer

from fxprune.demo import DigitNet, loaders
from fxprune.integrations.lightning import FxPruneCallback


class Reader(LightningModule):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = DigitNet(width)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> None:
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Asked once for the gated net, and once more for the slim one."""
        return torch.optim.Adam(self.parameters(), lr=3e-3, weight_decay=5e-4)


def main(epochs: int = 16, most: int | None = None, width: int = 32, **options: object) -> tuple[float, float]:
    torch.manual_seed(0)
    train, test = loaders(most=most)
    pruning = FxPruneCallback(budget=1 / 8, epochs=epochs // 2, network="net", example_inputs=torch.zeros(1, 1, 16, 16))
    trainer = Trainer(max_epochs=epochs, callbacks=[pruning], logger=False, log_every_n_steps=1, **options)
    trainer.fit(Reader(width), train, test)
    before, after = (cost["volume"] for cost in (pruning.slim.report.before, pruning.slim.report.after))
    right = float(trainer.callback_metrics["accuracy"])
    print(f"volume {before:,} -> {after:,}; {right:.1%} of the digits right")
    return after / before, right


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
