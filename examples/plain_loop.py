"""Pruning in a training loop of your own: four lines of it are fxprune's.

    python examples/plain_loop.py [EPOCHS]

A residual net learns to read digits; gates close while the budget slides down to an eighth of the activation volume;
the slim net is an ordinary module and is fine-tuned like one.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import fxprune
from fxprune.demo import DigitNet, loaders


def train(net: nn.Module, batches: DataLoader, epochs: int) -> None:
    """A plain loop, for the full net and for the slim one."""
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=5e-4)
    net.train()
    for _ in range(epochs):
        for x, y in batches:
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def prune(model: nn.Module, batches: DataLoader, epochs: int, budget: float) -> nn.Module:
    teacher = model.eval()
    net = fxprune.wrap(model, budget, example_inputs=next(iter(batches))[0]).train()  # 1: a copy with gates
    optimizer = torch.optim.Adam(net.parameter_groups(lr=3e-3, weight_decay=5e-4))
    for epoch in range(epochs):
        for step, (x, y) in enumerate(batches):
            net.progress = (epoch + step / len(batches)) / epochs  # 2: where the budget is
            with torch.no_grad():
                taught = teacher(x)
            loss = fxprune.distillation_loss(net(x), taught, y) + net.budget_loss()  # 3: what keeps the net under it
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    net.progress = 1.0
    net.harden()
    torch.optim.swa_utils.update_bn(batches, net)  # the statistics were learned under the noise of the gates
    return fxprune.export(net.eval())  # 4: a plain, smaller module


@torch.no_grad()
def accuracy(net: nn.Module, batches: DataLoader) -> float:
    net.eval()
    return float(torch.cat([(net(x).argmax(1) == y).double() for x, y in batches]).mean())


def main(epochs: int = 8, most: int | None = None, width: int = 32) -> tuple[float, float]:
    torch.manual_seed(0)
    batches, test = loaders(most=most)
    model = DigitNet(width)
    train(model, batches, epochs)
    slim = prune(model, batches, epochs, budget=1 / 8)
    pruned = accuracy(slim, test)
    train(slim, batches, epochs)
    before, after = slim.report.before["volume"], slim.report.after["volume"]
    full, fine = accuracy(model, test), accuracy(slim, test)
    print(f"volume {before:,} -> {after:,}; right: {full:.1%} full, {pruned:.1%} pruned, {fine:.1%} fine-tuned")
    return after / before, fine


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
