"""What a net of the zoo is, and what its parameters and outputs are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tests.gates import Gates

Shapes = tuple[tuple[int, ...], ...]
Inputs = Any  # a tuple of tensors, or a dict of keyword arguments
SHAPE, OTHERS = (2, 3, 8, 10), ((1, 3, 12, 8), (3, 3, 16, 20))


@dataclass(frozen=True)
class Case:
    """A net of the zoo; calling it builds the net."""

    name: str
    build: Callable[[], nn.Module]
    shapes: Shapes
    others: tuple[Shapes, ...]
    keywords: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()  # the ops that keep every channel; see tests/gates.py, also for the next line
    gates: Gates = field(default_factory=dict)  # layers that are no convolution with all its gates
    branches: bool = False  # other image sizes must raise
    pickles: bool = True  # False: torch itself refuses to pickle the model
    leaf: bool = False  # some submodule must be kept as a leaf

    def __call__(self, seed: int = 0) -> tuple[nn.Module, Inputs, list[Inputs]]:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = self.build().double().eval()
        generator = torch.Generator().manual_seed(seed + 1)
        randomise(model, generator)
        return model, self._inputs(self.shapes, generator), [self._inputs(other, generator) for other in self.others]

    def _inputs(self, shapes: Shapes, generator: torch.Generator) -> Inputs:
        tensors = tuple(torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)
        return dict(zip(self.keywords, tensors, strict=True)) if self.keywords else tensors


ZOO: dict[str, Case] = {}


def net(*shapes: tuple[int, ...], others: tuple[Any, ...] = OTHERS, **flags: Any) -> Callable[[Any], Any]:
    """Register a class or function that builds a model; ``others`` holds one shape (or tuple of shapes) per entry."""

    def register(build: Any) -> Any:
        name = build.__name__
        assert name not in ZOO, name
        wide = tuple(other if isinstance(other[0], tuple) else (other,) for other in others)
        ZOO[name] = Case(name, build, shapes or (SHAPE,), wide, **flags)
        return build

    return register


@torch.no_grad()
def randomise(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """Every parameter and buffer gets values that no symmetry, zero or one can hide behind."""

    def uniform(tensor: torch.Tensor, low: float, high: float) -> None:
        tensor.copy_(torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype) * (high - low) + low)

    def normal(tensor: torch.Tensor, scale: float) -> None:
        tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) * scale)

    norms = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
    for module in model.modules():
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is None or not tensor.is_floating_point():
                continue
            if "var" in name or (isinstance(module, norms) and name == "weight"):
                uniform(tensor, 0.5, 1.5)
            elif name == "slope" or isinstance(module, nn.PReLU):
                uniform(tensor, 0.1, 0.5)
            elif "scale" in name:
                uniform(tensor, 0.5, 1.5)
            elif "blur" in name:
                uniform(tensor, 0.1, 0.3)
            elif tensor.ndim > 2:
                normal(tensor, 1.4 / math.sqrt(max(tensor[0].numel(), 1)))
            elif tensor.ndim == 2:
                normal(tensor, 1.4 / math.sqrt(tensor.shape[1]))
            else:
                normal(tensor, 0.3)
    return model


def cbr(i: int, o: int, k: int = 3, s: int = 1, g: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, groups=g, bias=False), nn.BatchNorm2d(o), nn.ReLU())


def cb(i: int, o: int, k: int = 3, s: int = 1, g: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, groups=g, bias=False), nn.BatchNorm2d(o))


class Wrap(nn.Module):
    """stem -> body -> head: what most nets below need around the part that they are about."""

    def __init__(self, body: nn.Module, width: int = 8, out: int | None = None, bias: bool = True) -> None:
        super().__init__()
        self.stem = cbr(3, width)
        self.body = body
        self.head = nn.Conv2d(width if out is None else out, 4, 1, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.stem(x)))


def leaves(tree: Any) -> list[torch.Tensor]:
    """Every tensor of a nested output, in order; dataclasses included."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [leaf for entry in tree.values() for leaf in leaves(entry)]
    if isinstance(tree, (list, tuple)):
        return [leaf for entry in tree for leaf in leaves(entry)]
    if hasattr(tree, "__dataclass_fields__"):
        return [leaf for name in tree.__dataclass_fields__ for leaf in leaves(getattr(tree, name))]
    return []
