"""Joins, moves of channels, changes of resolution, heads."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.part import MODULES, Part, Values, part, width


@part
class Join(Part):
    a: int
    b: int
    op: str = "add"

    def run(self, module: Any, values: Values) -> Any:
        a, b = values[self.a], values[self.b]
        if self.op == "add":
            return a + b
        if self.op == "sub":
            return a - b
        return torch.maximum(a, b) if self.op == "maximum" else torch.minimum(a, b)


@part
class Mul(Part):
    """The second may be of one channel, or of one pixel."""

    a: int
    b: int
    sigmoid: bool = False

    def run(self, module: Any, values: Values) -> Any:
        b = values[self.b]
        return values[self.a] * (torch.sigmoid(b) if self.sigmoid else b)


@part
class Where(Part):
    condition: int
    a: int
    b: int

    def run(self, module: Any, values: Values) -> Any:
        return torch.where(values[self.condition] > 0.1, values[self.a], values[self.b])


@part
class Cat(Part):
    xs: tuple[int, ...]

    def run(self, module: Any, values: Values) -> Any:
        return torch.cat([values[x] for x in self.xs], 1)


@part
class StackSum(Part):
    xs: tuple[int, ...]
    dim: int = 0

    def run(self, module: Any, values: Values) -> Any:
        return torch.stack([values[x] for x in self.xs], self.dim).sum(self.dim)


# -------------------------------------------------------------------- moving channels


@part
class Split(Part):
    """Appends every piece."""

    x: int
    sizes: tuple[int, ...]
    how: str = "split"

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        if self.how == "chunk":
            return x.chunk(len(self.sizes), 1)
        if self.how == "split":
            return torch.split(x, list(self.sizes), 1)
        starts = [sum(self.sizes[:i]) for i in range(len(self.sizes))]
        return tuple(x[:, start : start + size] for start, size in zip(starts, self.sizes, strict=True))


@part
class Shuffle(Part):
    x: int
    groups: int = 2

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        n, c, h, w = x.shape
        return x.view(n, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(n, c, h, w)


@part
class PixelShuffle(Part):
    x: int

    def build(self, values: Values) -> nn.Module:
        return nn.PixelShuffle(2)

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x])


@part
class PixelUnshuffle(Part):
    x: int

    def run(self, module: Any, values: Values) -> Any:
        return F.pixel_unshuffle(values[self.x], 2)


@part
class PadChannels(Part):
    x: int
    before: int = 0
    after: int = 1
    cat: bool = False

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        if not self.cat:
            return F.pad(x, (0, 0, 0, 0, self.before, self.after))
        n, _, h, w = x.shape
        return torch.cat([x.new_zeros(n, self.before, h, w), x, x.new_zeros(n, self.after, h, w)], 1)


@part
class ChannelStatistic(Part):
    """(N, 1, H, W): spatial attention."""

    x: int
    how: str = "mean"

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        return x.mean(1, keepdim=True) if self.how == "mean" else x.amax(dim=1, keepdim=True)


# -------------------------------------------------------------------- space


@part
class Pool(Part):
    x: int
    kind: str = "max"
    stride: int = 2

    def build(self, values: Values) -> nn.Module | None:
        return nn.MaxPool2d(*((2,) if self.stride == 2 else (3, 1, 1))) if self.kind == "max" else None

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        if self.kind == "max":
            return module(x)
        return F.avg_pool2d(x, 2) if self.stride == 2 else F.avg_pool2d(x, 3, 1, 1)


@part
class GlobalPool(Part):
    x: int
    how: str = "adaptive"

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        if self.how == "adaptive":
            return F.adaptive_avg_pool2d(x, 1)
        return x.mean((2, 3), keepdim=True) if self.how == "mean" else x.amax((2, 3), keepdim=True)


@part
class Upsample(Part):
    x: int

    def build(self, values: Values) -> nn.Module:
        return nn.Upsample(scale_factor=2)

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x])


@part
class Resize(Part):
    x: int
    like: int
    mode: str = "nearest"

    def run(self, module: Any, values: Values) -> Any:
        size = values[self.like].shape[2:]
        return F.interpolate(values[self.x], size=size, mode=self.mode)


@part
class SqueezeExcite(Part):
    x: int
    hidden: int = 3
    linear: bool = False
    gate: str = "sigmoid"

    def build(self, values: Values) -> nn.Module:
        i, gate = width(values[self.x]), MODULES[self.gate]()
        if self.linear:
            return nn.Sequential(nn.Linear(i, self.hidden), nn.ReLU(), nn.Linear(self.hidden, i), gate)
        first, second = nn.Conv2d(i, self.hidden, 1), nn.Conv2d(self.hidden, i, 1)
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), first, nn.ReLU(), second, gate)

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        if not self.linear:
            return x * module(x)
        n, c, _, _ = x.shape
        return x * module(x.mean((2, 3))).view(n, c, 1, 1)


# -------------------------------------------------------------------- heads


@part
class PoolHead(Part):
    x: int
    out: int = 3
    hidden: int = 0

    def build(self, values: Values) -> nn.Module:
        i = width(values[self.x])
        if not self.hidden:
            return nn.Linear(i, self.out)
        return nn.Sequential(nn.Linear(i, self.hidden), nn.ReLU(), nn.Linear(self.hidden, self.out))

    def run(self, module: Any, values: Values) -> Any:
        return module(F.adaptive_avg_pool2d(values[self.x], 1).flatten(1))


@part
class Mlp(Part):
    """Linear layers behind a flatten, or on what is pooled; with batch norms between them, or residual."""

    x: int
    hidden: tuple[int, ...] = (6,)
    flat: bool = False
    norm: bool = False
    residual: bool = False

    def build(self, values: Values) -> nn.Module:
        x = values[self.x]
        widths = [x[0].numel() if self.flat else width(x), *self.hidden]
        layers = [nn.Linear(i, o) for i, o in itertools.pairwise(widths)]
        norms = [nn.BatchNorm1d(o) for o in widths[1:]] if self.norm else []
        back = [nn.Linear(widths[-1], widths[1])] if self.residual else []
        return nn.ModuleDict({name: nn.ModuleList(made) for name, made in
                              (("layers", layers), ("norms", norms), ("back", back))})  # fmt: skip

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        x = x.flatten(1) if self.flat else x.mean((2, 3))
        first = None
        for number, layer in enumerate(module["layers"]):
            x = layer(x)
            x = F.relu(module["norms"][number](x) if self.norm else x)
            first = x if first is None else first
        return (first + module["back"][0](x) if self.residual else x)[:, :, None, None]


@part
class FlattenHead(Part):
    x: int
    out: int = 3
    view: bool = False

    def build(self, values: Values) -> nn.Module:
        return nn.Linear(values[self.x][0].numel(), self.out)

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        return module(x.view(x.shape[0], -1) if self.view else torch.flatten(x, 1))
