"""Convolutions, norms, activations and parameters."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.heads import Attention, Form
from tests.programs.part import FUNCTIONS, MODULES, Parameters, Part, Values, part, width


@part
class Conv(Part):
    x: int
    out: int
    k: int = 1
    stride: int = 1
    bias: bool = True
    groups: int = 1

    def build(self, values: Values) -> nn.Module:
        i = width(values[self.x])
        return nn.Conv2d(i, self.out, self.k, self.stride, self.k // 2, groups=self.groups, bias=self.bias)

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x])


@part
class ConvBn(Conv):
    relu: bool = False

    def build(self, values: Values) -> nn.Module:
        tail = [nn.ReLU()] if self.relu else []
        return nn.Sequential(super().build(values), nn.BatchNorm2d(self.out), *tail)


@part
class Depthwise(Part):
    x: int
    multiplier: int = 1
    k: int = 3
    stride: int = 1
    bias: bool = True

    def build(self, values: Values) -> nn.Module:
        i = width(values[self.x])
        return nn.Conv2d(i, i * self.multiplier, self.k, self.stride, self.k // 2, groups=i, bias=self.bias)

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x])


@part
class Transposed(Part):
    x: int
    out: int
    stride: int = 2
    bias: bool = True
    groups: int = 1

    def build(self, values: Values) -> nn.Module:
        i, k = width(values[self.x]), {1: 3, 2: 4}[self.stride]
        return nn.ConvTranspose2d(i, self.out, k, self.stride, 1, groups=self.groups, bias=self.bias)

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x])


@part
class Reuse(Part):
    """The module of an earlier part, on another value of the same width."""

    part: int
    x: int

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x])


# -------------------------------------------------------------------- norms, activations, parameters


@part
class Norm(Part):
    """Batch norm on a stream."""

    x: int

    def build(self, values: Values) -> nn.Module:
        return nn.BatchNorm2d(width(values[self.x]))

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x])


@part
class GroupNorm(Part):
    x: int
    groups: int = 1

    def build(self, values: Values) -> nn.Module:
        return nn.GroupNorm(self.groups, width(values[self.x]))

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x])


@part
class LayerNorm(Part):
    """Over channels and space: one image size only."""

    x: int

    def build(self, values: Values) -> nn.Module:
        return nn.LayerNorm(list(values[self.x].shape[1:]))

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x])


@part
class ChannelsLast(Part):
    """permute, LayerNorm or Linear (or both), permute back."""

    x: int
    inner: str = "norm"
    out: int = 0  # of the linear layers; 0: as wide as the input

    def build(self, values: Values) -> nn.Module:
        i = width(values[self.x])
        o = self.out or i
        if self.inner == "norm":
            return nn.LayerNorm(i)
        if self.inner == "linear":
            return nn.Linear(i, o)
        return nn.Sequential(nn.LayerNorm(i), nn.Linear(i, 2 * i), nn.GELU(), nn.Linear(2 * i, o))

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x].permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@part
class Act(Part):
    x: int
    kind: str = "relu"
    module: bool = False

    def build(self, values: Values) -> nn.Module | None:
        return MODULES[self.kind]() if self.module else None

    def run(self, module: Any, values: Values) -> Any:
        return (module if self.module else FUNCTIONS[self.kind])(values[self.x])


@part
class InPlace(Part):
    """The operand itself changes; who reads it later reads the new value."""

    x: int
    how: str = "module"
    y: int = 0  # of "add" and "mul"

    def build(self, values: Values) -> nn.Module | None:
        return nn.ReLU(inplace=True) if self.how == "module" else None

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        if self.how == "module":
            return module(x)
        if self.how == "function":
            return F.relu(x, inplace=True)
        if self.how == "method":
            return x.relu_()
        if self.how == "add":
            x += values[self.y]
            return x
        return x.mul_(values[self.y])


@part
class Affine(Part):
    """Constants: a dead channel is no zero behind them."""

    x: int
    scale: float = 1.0
    shift: float = 0.0

    def run(self, module: Any, values: Values) -> Any:
        return values[self.x] * self.scale + self.shift


@part
class PerChannel(Part):
    """A parameter per channel, added or multiplied."""

    x: int
    op: str = "add"
    batch: bool = True  # (1, C, 1, 1) or (C, 1, 1)

    def build(self, values: Values) -> nn.Module:
        return Parameters(*([1] if self.batch else []), width(values[self.x]), 1, 1)

    def run(self, module: Any, values: Values) -> Any:
        return values[self.x] + module.value if self.op == "add" else module.value * values[self.x]


@part
class Attend(Part):
    """Attention over the pixels, or with queries of one map on keys and values of another."""

    x: int
    a: int
    form: Form = Form()
    heads: int = 2
    width: int = 2
    shared: int = 1
    token: bool = False  # a class token among them

    def build(self, values: Values) -> nn.Module:
        i = width(values[self.x])
        net = nn.ModuleDict({"attend": Attention(i, self.form, self.heads, self.width, shared=self.shared)})
        if self.token:
            net["token"] = Parameters(1, 1, i)
        return net

    def run(self, module: Any, values: Values) -> Any:
        maps = [values[self.x], values[self.a]]
        x, other = (value.flatten(2).transpose(1, 2) for value in maps)
        if self.token:
            x = torch.cat((module["token"].value.expand(x.shape[0], -1, -1), x), 1)
        y = module["attend"](x) if self.a == self.x else module["attend"](x, other)
        y = y[:, 1:] * torch.sigmoid(y[:, :1]) if self.token else y
        n, _, h, w = maps[0].shape
        return y.transpose(1, 2).reshape(n, -1, h, w)
