"""CIFAR-10, small, as loaders for ``fxprune compare`` and for loops of your own.

The data is an .npz of train_x, train_y, test_x, test_y (uint8 N x 3 x 32 x 32, and labels), or the folder of
torchvision's CIFAR10.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F

VARIABLE = "FXPRUNE_CIFAR10"
WATCHED = 2000  # of the validation pictures, to be looked at while training
MEAN, STD = (torch.tensor(v).reshape(1, 3, 1, 1) for v in ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]))
Pair = tuple[torch.Tensor, torch.Tensor]


def pictures(path: str) -> dict[str, Pair]:
    """train: 10,000; val: 10,000 others; test: all."""
    if path.endswith(".npz"):
        with np.load(path) as arrays:
            arrays_of = {name: (arrays[f"{name}_x"], arrays[f"{name}_y"]) for name in ("train", "test")}
    else:
        from torchvision.datasets import CIFAR10

        sets = {"train": CIFAR10(path, train=True), "test": CIFAR10(path, train=False)}
        arrays_of = {name: (data.data.transpose(0, 3, 1, 2), np.array(data.targets)) for name, data in sets.items()}
    parts = [("train", "train", slice(10_000)), ("val", "train", slice(10_000, 20_000)), ("test", "test", slice(None))]
    pairs = {}
    for name, source, part in parts:
        x, y = (torch.from_numpy(np.ascontiguousarray(array[part])) for array in arrays_of[source])
        pairs[name] = ((x.float() / 255 - MEAN) / STD, y.long())
    return pairs


class Loader:
    """Shuffled batches, mirrored and (for the teacher) shifted at random. All draws come from torch's generator."""

    def __init__(self, data: Pair, batch: int, training: bool = False, shift: int = 0) -> None:
        (self.x, self.y), self.batch, self.training, self.shift = data, batch, training, shift

    def __len__(self) -> int:
        return len(self.x) // self.batch

    def __iter__(self) -> Iterator[Pair]:
        order = torch.randperm(len(self.x)) if self.training else torch.arange(len(self.x))
        for number in range(len(self)):
            which = order[number * self.batch : (number + 1) * self.batch]
            x = self.x[which]
            yield (self._changed(x) if self.training else x), self.y[which]

    def _changed(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x)
        if self.shift == 0:
            return x
        down, right = torch.randint(0, 2 * self.shift + 1, (2, len(x), 1))
        wide, along = F.pad(x, [self.shift] * 4), torch.arange(x.shape[2])
        rows, columns = (down + along)[:, None, :, None], (right + along)[:, None, None, :]
        return wide[torch.arange(len(x))[:, None, None, None], torch.arange(3)[None, :, None, None], rows, columns]


def part(data: Pair, which: slice) -> Pair:
    return data[0][which], data[1][which]


def loaders(
    data: str | None = None, batch_size: int = 64, shift: int = 0, held_out: str = "test"
) -> tuple[Loader, Loader, Loader]:
    """For training, to watch it, and to tell the accuracy in the end: on the test pictures, or, as long as anything is
    chosen by it (``held_out="val"``), on those validation pictures that are not watched."""
    path = data or os.environ.get(VARIABLE)
    if not path:
        raise ValueError(f"no pictures: set {VARIABLE} to cifar10.npz or to the folder of torchvision's CIFAR10")
    if held_out not in ("test", "val"):
        raise ValueError(f'held_out is "test" or "val", not {held_out!r}')
    pairs = pictures(path)
    last = pairs["test"] if held_out == "test" else part(pairs["val"], slice(WATCHED, None))
    train = Loader(pairs["train"], batch_size, training=True, shift=shift)
    return train, Loader(part(pairs["val"], slice(WATCHED)), 500), Loader(last, 500)
