"""What ``fxprune demo`` and the examples share: a small residual net, and scikit-learn's digits."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from fxprune.errors import DataError


class Block(nn.Module):
    """Two 3x3 convolutions beside an identity, or beside a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class DigitNet(nn.Module):
    """A stem and three stages of two blocks, ``width``, 2 and 4 times ``width`` wide, for grey pictures.

    >>> DigitNet(width=4)(torch.zeros(2, 1, 16, 16)).shape
    torch.Size([2, 10])
    """

    def __init__(self, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, 2, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.stage1 = nn.Sequential(Block(width, width), Block(width, width))
        self.stage2 = nn.Sequential(Block(width, 2 * width, 2), Block(2 * width, 2 * width))
        self.stage3 = nn.Sequential(Block(2 * width, 4 * width, 2), Block(4 * width, 4 * width))
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn(self.stem(x)))
        x = self.stage3(self.stage2(self.stage1(x)))
        logits: torch.Tensor = self.head(x.mean((2, 3)))
        return logits


Pairs = tuple[torch.Tensor, torch.Tensor]


def digits(size: int = 16, most: int | None = None) -> tuple[Pairs, Pairs]:
    """Pictures (one channel, from -1 to 1, ``size`` wide) and labels: for training, and every fifth for testing.

    ``most`` takes only so many of them.
    """
    try:
        loaded: Any = importlib.import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        raise DataError("the digits need scikit-learn, which is missing", fix="pip install scikit-learn") from error
    x = torch.tensor(loaded.images[:most], dtype=torch.float32).unsqueeze(1) / 8 - 1
    if size != 8:
        x = F.interpolate(x, (size, size), mode="bilinear")
    y = torch.tensor(loaded.target[:most])
    held_out = torch.arange(len(y)) % 5 == 0
    return (x[~held_out], y[~held_out]), (x[held_out], y[held_out])


class Digits(Dataset[Pairs]):
    """Pictures with their labels, each moved by up to ``shift`` pixels, another way every time."""

    def __init__(self, pictures: torch.Tensor, labels: torch.Tensor, shift: int = 0) -> None:
        self.pictures, self.labels, self.shift = pictures, labels, shift

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Pairs:
        down, right = torch.randint(-self.shift, self.shift + 1, (2,)).tolist()
        return self.pictures[index].roll((down, right), (1, 2)), self.labels[index]


Loader = DataLoader[Pairs]


def loaders(batch_size: int = 64, size: int = 16, most: int | None = None) -> tuple[Loader, Loader]:
    """Batches for training, shifted at random, and for testing."""
    train, test = digits(size, most)
    batches = DataLoader(Digits(*train, shift=2), batch_size, shuffle=True, drop_last=True)
    return batches, DataLoader(Digits(*test), 256)
