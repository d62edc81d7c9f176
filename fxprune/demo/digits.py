"""Real handwriting: the 1,797 digits of 8x8 grey values that come with scikit-learn."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from fxprune.errors import DataError

Pairs = tuple[torch.Tensor, torch.Tensor]


def digits(size: int = 16, most: int | None = None) -> tuple[Pairs, Pairs]:
    """Pictures (one channel, from -1 to 1, ``size`` wide) and labels: for training, and every fifth for testing.

    ``most`` takes only so many of them.
    """
    try:
        found: Any = importlib.import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        raise DataError("the digits need scikit-learn, which is missing", fix="pip install scikit-learn") from error
    x = torch.tensor(found.images[:most], dtype=torch.float32).unsqueeze(1) / 8 - 1
    if size != 8:
        x = F.interpolate(x, (size, size), mode="bilinear")
    y = torch.tensor(found.target[:most])
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


def loaders(
    batch_size: int = 64, size: int = 16, most: int | None = None
) -> tuple[DataLoader[Pairs], DataLoader[Pairs]]:
    """Batches for training, shifted at random, and for testing."""
    train, test = digits(size, most)
    batches = DataLoader(Digits(*train, shift=2), batch_size, shuffle=True, drop_last=True)
    return batches, DataLoader(Digits(*test), 256)
