"""A small residual net and something for it to learn."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import fxprune
from fxprune.gated.wrapped import Wrapped


class Net(nn.Module):
    """Two residual stages."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stem = self.layer(3, width)
        self.one, self.two = self.layer(width, width), self.layer(width, width)
        self.down, self.shortcut = self.layer(width, 2 * width, 2), self.layer(width, 2 * width, 2)
        self.three = self.layer(2 * width, 2 * width)
        self.head = nn.Linear(2 * width, 4)

    @staticmethod
    def layer(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.two(torch.relu(self.one(x))))
        x = torch.relu(self.shortcut(x) + self.three(torch.relu(self.down(x))))
        return self.head(x.mean((2, 3)))


X = torch.randn(256, 3, 8, 8, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0].mean((1, 2)) > 0).long() + 2 * (X[:, 1, :4].mean((1, 2)) > X[:, 1, 4:].mean((1, 2))).long()


def wrapped_net(budget: Any = 1 / 4, **options: Any) -> Wrapped:
    torch.manual_seed(0)
    return fxprune.wrap(Net(), budget, example_inputs=X[:1], **options).train()
