"""Pruning a net that enlarges pictures (convolutions, then a pixel shuffle), with a loss and a metric of one's own.

    python examples/super_resolution.py [EPOCHS]

Pages of scikit-learn's digits are halved in size and enlarged again. A pixel shuffle makes one picture of r^2 channels;
no layer is pruned that writes the output.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fxprune
from fxprune.demo import digits


def pages(pictures: torch.Tensor, count: int) -> TensorDataset:
    """Sixteen digits each, 32x32, at half their size; and as they were."""
    chosen = torch.randint(len(pictures), (count, 4, 4))
    large = pictures[chosen, 0].permute(0, 1, 3, 2, 4).reshape(count, 1, 32, 32)
    return TensorDataset(F.avg_pool2d(large, 2), large)


def enlarger(width: int) -> nn.Sequential:
    layers = [nn.Conv2d(1, width, 5, padding=2), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, 4, 3, padding=1), nn.PixelShuffle(2))


def psnr(output: torch.Tensor, target: torch.Tensor) -> float:
    """In decibels, for values from -1 to 1: larger is better."""
    return float(10 * torch.log10(4 / F.mse_loss(output, target)))


def loss(output: torch.Tensor, target: torch.Tensor, taught: torch.Tensor | None) -> torch.Tensor:
    """The picture, and what the full net makes of it (None while that is trained itself)."""
    found = F.mse_loss(output, target)
    return found if taught is None else found + F.mse_loss(output, taught)


def main(epochs: int = 10, count: int = 1000, width: int = 32) -> tuple[float, float, float]:
    torch.manual_seed(0)
    (train, _), (test, _) = digits(size=8)
    testing = pages(test, 200)
    small, large = testing.tensors
    pruned = fxprune.prune(
        enlarger(width), DataLoader(pages(train, count), 32, shuffle=True), DataLoader(testing, 200), budget=1 / 4,
        epochs=(epochs, epochs, 2), teacher="train", loss=loss, metric_fn=psnr,
        optimizer=lambda groups: torch.optim.Adam(groups, lr=2e-3),
    )  # fmt: skip
    plain = psnr(F.interpolate(small, scale_factor=2, mode="bicubic"), large)
    print(f"bicubic {plain:.2f} dB, full net {pruned.before:.2f} dB, a quarter of it {pruned.after:.2f} dB")
    return plain, pruned.before, pruned.after


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
