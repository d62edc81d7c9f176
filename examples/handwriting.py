"""Loaders of scikit-learn's digits for ``fxprune prune examples/handwriting.toml`` and for loops of your own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset, TensorDataset

Pairs = tuple[torch.Tensor, torch.Tensor]


class Shifted(Dataset[Pairs]):
    """Every picture moved by up to a pixel or two, another way each time."""

    def __init__(self, pictures: torch.Tensor, labels: torch.Tensor) -> None:
        self.pictures, self.labels = pictures, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Pairs:
        down, right = torch.randint(-2, 3, (2,)).tolist()
        return self.pictures[index].roll((down, right), (1, 2)), self.labels[index]


def loaders(
    batch_size: int = 64, workers: int = 0, augment: bool = True, most: int | None = None
) -> tuple[DataLoader[Pairs], DataLoader[Pairs]]:
    """For training and for validation (every fifth picture); ``most`` takes only so many pictures."""
    found = load_digits()
    x = torch.tensor(found.images, dtype=torch.float32)[:most, None] / 8 - 1
    x = F.interpolate(x, scale_factor=2, mode="bilinear").expand(-1, 3, -1, -1).contiguous()
    y = torch.tensor(found.target)[:most]
    held_out = torch.arange(len(y)) % 5 == 0
    training = (Shifted if augment else TensorDataset)(x[~held_out], y[~held_out])
    validation = TensorDataset(x[held_out], y[held_out])
    train = DataLoader(training, batch_size, shuffle=True, drop_last=True, num_workers=workers)
    return train, DataLoader(validation, 256)
