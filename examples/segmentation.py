"""Pruning a U-Net: which digit, if any, does each pixel belong to?

    python examples/segmentation.py [EPOCHS]

Pages are made of scikit-learn's digits: several of them in random places on a background with a gradient and noise.
Labels are maps, for which cross entropy, distillation and accuracy work as they stand. Skip connections join by
concatenation: each side keeps the channels that it wants.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fxprune
from fxprune.demo import digits

SIZE, CLASSES = 32, 11  # 0 is background, 1 to 10 are the digits 0 to 9


def pages(pictures: torch.Tensor, labels: torch.Tensor, count: int) -> TensorDataset:
    """One digit in each quarter of a page, moved, or none."""
    x = torch.linspace(-1, 0, SIZE).expand(count, 1, SIZE, SIZE).clone() + 0.3 * torch.randn(count, 1, SIZE, SIZE)
    y = torch.zeros(count, SIZE, SIZE, dtype=torch.long)
    for page in range(count):
        for quarter in torch.randperm(4)[:3].tolist():
            chosen = int(torch.randint(len(labels), ()))
            top, left = (int(torch.randint(16 * part, 16 * part + 5, ())) for part in divmod(quarter, 2))
            ink = (pictures[chosen, 0] + 1) / 2
            place = page, slice(top, top + 12), slice(left, left + 12)
            x[place[0], 0, place[1], place[2]] += 2 * ink
            y[place][ink > 0.4] = labels[chosen] + 1
    return TensorDataset(x, y)


def double(inputs: int, outputs: int) -> nn.Sequential:
    layers = []
    for width in (inputs, outputs):
        layers += [nn.Conv2d(width, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = double(1, width), double(width, 2 * width), double(2 * width, 4 * width)
        self.up2, self.up1 = double(6 * width, 2 * width), double(3 * width, width)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        bottom = self.bottom(F.max_pool2d(two, 2))
        y = self.up2(torch.cat([two, F.interpolate(bottom, scale_factor=2)], 1))
        return self.head(self.up1(torch.cat([one, F.interpolate(y, scale_factor=2)], 1)))


def ink(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Of the pixels with ink, which are named rightly? (Most of a page is background: its share would look fine.)"""
    return (output.argmax(1) == target)[target > 0].double()


def main(epochs: int = 8, count: int = 600, width: int = 16) -> fxprune.Pruned:
    torch.manual_seed(0)
    train, test = digits(size=12)
    batches = DataLoader(pages(*train, count), 16, shuffle=True)
    pruned = fxprune.prune(
        UNet(width), batches, DataLoader(pages(*test, count // 4), 50), budget=1 / 8, metric="flops",
        epochs=(epochs, epochs, 1), teacher="train", metric_fn=ink,
        optimizer=lambda groups: torch.optim.Adam(groups, lr=3e-3),
    )  # fmt: skip
    print(f"pixels of ink named rightly: {pruned.before:.1%} by the full net, {pruned.after:.1%} with 1/8 of its FLOPs")
    return pruned


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
