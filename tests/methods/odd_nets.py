"""Nets with something that tells the channels of a layer apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.models.case import randomise as randomised


def randomise(model: Any) -> Any:
    return randomised(model, torch.Generator().manual_seed(0))


class Odd(nn.Module):
    """A layer of eight channels, something that tells them apart, and a reader."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.a, self.b, self.one = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3), nn.Conv2d(8, 1, 1)
        self.bn, self.prelu, self.scale = nn.BatchNorm2d(8), nn.PReLU(8), nn.Parameter(torch.rand(1, 8, 1, 1))
        self.read = nn.Conv2d(4 if kind == "halves" else 8, 4, 1)
        if kind == "tied readers":
            self.also = nn.Conv2d(8, 4, 1)
            self.also.weight = self.read.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        kinds = {
            "norm later": lambda: self.bn(torch.relu(y)),
            "norm on a stream": lambda: self.bn(y + self.b(x)),
            "prelu": lambda: self.prelu(y),
            "scale": lambda: torch.relu(y) * self.scale,
            "chunk": lambda: torch.cat([torch.relu(y[:, :4]), torch.sigmoid(y[:, 4:])], 1),
            "halves": lambda: y[:, :4] * y[:, 4:],
            "attention": lambda: y * torch.sigmoid(self.one(y)),
            "mean": lambda: y + y.mean(1, keepdim=True),
            "softmax": lambda: y.softmax(1),
            "tied readers": lambda: torch.relu(y),
        }
        y = kinds[self.kind]()
        out: torch.Tensor = self.read(y) + self.also(y.flip(3)) if self.kind == "tied readers" else self.read(y)
        return out
