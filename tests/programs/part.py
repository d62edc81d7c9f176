"""What a part of a program is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Draw = Callable[[Any], Any]
Values = list[torch.Tensor]
DENSITIES = (0.4, 0.7, 0.1, 0.0, 1.0)
SIZES = ((8, 6), (8, 8), (9, 7), (12, 10))
CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
IMAGE = 3  # channels
LARGEST = 1e4  # of all values: beyond it rounding alone may exceed the tolerance


part = dataclass(frozen=True, repr=False)


@part
class Part:
    """A step of a program. ``build`` gives it its module, ``run`` computes; values are read by index."""

    def build(self, values: Values) -> nn.Module | None:
        return None

    def run(self, module: Any, values: Values) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        """Python, without the options that have their defaults."""
        shown = [f for f in fields(self) if f.default != getattr(self, f.name)]
        return f"{type(self).__name__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in shown)})"


class Parameters(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.ones(shape))


def width(x: torch.Tensor) -> int:
    return int(x.shape[1])


MODULES: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
}
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "tanh": torch.tanh,
    "hardswish": F.hardswish,
}
ACTIVATIONS = tuple(FUNCTIONS)
