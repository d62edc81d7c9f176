"""Inputs and outputs of all kinds, and what Python does in between."""

from __future__ import annotations

import math
import random
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.gates import DEPTHWISE, OUTPUT
from tests.models.case import cb, cbr, net

Named = namedtuple("Named", ["logits", "features"])


@dataclass
class Output:
    logits: torch.Tensor
    hidden: list[torch.Tensor]


class Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = cbr(3, 6), cbr(6, 8), nn.Conv2d(8, 6, 1)

    def features(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = self.a(x)
        b = self.b(a)
        return a, b, self.c(b)


@net(gates={"a.0": OUTPUT, "b.0": OUTPUT, "c": OUTPUT})
class outputs_list(Trunk):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        a, b, c = self.features(x)
        return [c, a, F.softplus(b)]


@net(gates={"a.0": OUTPUT, "b.0": OUTPUT, "c": OUTPUT})
class outputs_nested(Trunk):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        a, b, c = self.features(x)
        return {"out": (c, [b * 2, {"deep": a.mean((2, 3))}]), "input": x, "none": None, "number": 3}


@net(gates={"a.0": OUTPUT, "c": OUTPUT})
class outputs_named(Trunk):
    def forward(self, x: torch.Tensor) -> Named:
        a, _, c = self.features(x)
        return Named(logits=c.mean((2, 3)), features=a)


@net(gates={"a.0": OUTPUT, "b.0": OUTPUT, "c": OUTPUT})
class outputs_dataclass(Trunk):
    def forward(self, x: torch.Tensor) -> Output:
        a, b, c = self.features(x)
        return Output(logits=c, hidden=[a, b])


@net()
class stream_is_output(nn.Module):
    """A residual stream that is itself an output, and sums of two prunable branches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.c = cbr(3, 6), cb(6, 6), cb(6, 6), cb(6, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.stem(x)
        y = x + self.a(x)
        return torch.sigmoid(y), self.b(y) + self.c(y)


@net((2, 3, 8, 10), (2, 2, 8, 10), others=(((1, 3, 12, 8), (1, 2, 12, 8)),), keywords=("image", "extra"))
class keyword_inputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = cbr(3, 6), cbr(2, 4), nn.Conv2d(10, 4, 1)

    def forward(self, extra: torch.Tensor, image: torch.Tensor, factor: float = 0.5) -> torch.Tensor:
        return self.head(torch.cat([self.a(image) * factor, torch.sigmoid(self.b(extra))], 1))


@net(others=((3, 3, 8, 10), (2, 3, 12, 16)), branches=True)
class branch_on_size(nn.Module):
    """A Python branch on the image's size."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = cbr(3, 6), cbr(6, 6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        x = self.b(x) if x.shape[-1] > 11 else F.relu(self.b(x) - 1)
        return self.head(x)


@net()
class size_arithmetic(nn.Module):
    """x.size(1) in arithmetic, shapes as factors, coordinates from the size."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = cbr(3, 6), cb(8, 6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        b, _, h, w = x.shape
        ys = torch.linspace(-1, 1, h, dtype=x.dtype, device=x.device).view(1, 1, h, 1).expand(b, 1, h, w)
        xs = torch.arange(w, dtype=x.dtype, device=x.device).view(1, 1, 1, w).expand(b, 1, h, w) / w
        y = self.b(torch.cat([x, ys, xs], 1)) * (x.size(1) ** -0.5)
        y = y.reshape(b, x.size(1) // 2, 2, h, w).mean(2) / math.sqrt(x.size(1))
        return self.head(torch.cat([y, x[:, : x.size(1) // 2]], 1) * (h * w / x[0].numel() + y.shape[1]))


def cumulative(x: torch.Tensor) -> torch.Tensor:
    return torch.cumprod(1 + 0.1 * x, dim=1)


@net(frozen=("torch.cumprod",), gates={"b.0": "frozen by torch.cumprod"})
class unknown_op(nn.Module):
    """Ops without a rule keep what reaches them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.head = cbr(3, 6), cb(6, 6), cbr(6, 6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        x = cumulative(self.b(x)) + x
        y = torch.linalg.vector_norm(self.c(x), dim=1, keepdim=True)
        return self.head(x / (1 + y))


@torch.fx.wrap
def odd_function(x: torch.Tensor, power: int) -> torch.Tensor:
    if float(x.detach().double().sum()) > 1e9:
        return x
    return x.cumsum(1) * power


@net(
    leaf=True, frozen=("tests.models.python.odd_function",), gates={"a.0": "frozen by tests.models.python.odd_function"}
)
class wrapped_function(nn.Module):
    """torch.fx.wrap'ed code that cannot be traced into."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = cbr(3, 6), cbr(6, 6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.b(odd_function(self.a(x), 2)))


class DataDependent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return self.conv(x)
        return self.conv(-x) * 2


@net(leaf=True, frozen=("DataDependent (2)",), gates={"1.0": "frozen by DataDependent (2)"})
def untraceable() -> nn.Module:
    """A submodule with a data-dependent branch becomes a leaf."""
    return nn.Sequential(cbr(3, 6), cbr(6, 6), DataDependent(6), cbr(6, 6), nn.Conv2d(6, 4, 1))


@net()
class channels_last_detour(nn.Module):
    """Permute, linear with a norm, permute back; movedim and a matmul with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.fc, self.b, self.head = cbr(3, 6), nn.Linear(6, 8), nn.Conv2d(8, 6, 1), nn.Conv2d(5, 4, 1)
        self.matrix = nn.Parameter(torch.rand(6, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        y = torch.sigmoid(self.fc(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        y = torch.movedim(self.b(y), 1, -1) @ self.matrix
        return self.head(y.movedim(-1, 1))


@net(frozen=("torch.conv2d",), gates={"b.0": "frozen by torch.conv2d", "kernel": "frozen by torch.conv2d"})
class dynamic_filter(nn.Module):
    """The kernel is computed from the input (CondConv with one expert mixture per batch would need groups=b)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.kernel, self.head = cbr(3, 6), cbr(6, 6), nn.Linear(6, 6 * 9), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.b(self.a(x))
        b, c, h, w = x.shape
        kernel = self.kernel(x.mean((2, 3))).reshape(b * c, 1, 3, 3)
        y = F.conv2d(x.reshape(1, b * c, h, w), kernel, padding=1, groups=b * c).reshape(b, c, h, w)
        return self.head(y)


@net()
class unfolded(nn.Module):
    """F.unfold as im2col, then a matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = cbr(3, 4), nn.Conv2d(5, 4, 1)
        self.kernel = nn.Parameter(torch.rand(5, 4 * 9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        patches = F.unfold(x, 3, padding=1)
        return self.head((self.kernel @ patches).view(x.shape[0], 5, x.shape[2], x.shape[3]))


@net()
class tokens(nn.Module):
    """A hybrid: convolutional stem, tokens, an MLP mixer over channels, a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.patch = cbr(3, 6), nn.Conv2d(6, 8, 2, 2)
        self.token, self.norm = nn.Parameter(torch.zeros(1, 1, 8)), nn.LayerNorm(8)
        self.mlp, self.fc = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8)), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(self.stem(x)).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        x = x + self.mlp(self.norm(x))
        return self.fc(x[:, 0] + x.mean(1))


@net(gates={"b_conv_transpose2d": 6, "a_conv_transpose2d_1": OUTPUT})
class tied_autoencoder(nn.Module):
    """The decoder is the encoder's weight, the other way around."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.b(F.relu(self.a(x))))
        x = F.relu(F.conv_transpose2d(x, self.b.weight))
        return F.conv_transpose2d(x, self.a.weight, padding=1)


@net(gates={"a_conv2d": DEPTHWISE, "b_conv2d_2": 6, "b_conv2d_3": 6})
class borrowed_kernels(nn.Module):
    """Functional convolutions whose kernels are made from another layer's weight, before and after its own call."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.a(x))
        x = F.conv2d(x, self.a.weight.new_ones(6, 1, 3, 3) / 9, padding=1, groups=6)
        y = F.conv2d(x, self.b.weight, self.b.bias, padding=1) + F.conv2d(x, self.b.weight, padding=1)
        y = y + F.conv2d(x, (self.b.weight - self.b.weight.mean()).sum((2, 3), keepdim=True)) + self.b(x)
        return self.head(F.relu(y))


@net()
class stochastic_depth(nn.Module):
    """Random in training only, the identity in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.drop, self.head = cbr(3, 6), cb(6, 6), DropPath(), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(F.relu(x + self.drop(self.a(x))))


class DropPath(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        return x * float(random.random() < 0.5)


@net()
class chosen_forward(nn.Module):
    """A part whose forward is chosen when it is made; a device that is asked for its name."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 3, padding=1)
            self.forward = self.split_cat

        def split_cat(self, x: torch.Tensor) -> torch.Tensor:
            one, other = torch.split(x, [2, 4], dim=1)
            with torch.autocast(device_type=x.device.type, enabled=False):
                return torch.cat([self.conv(one), other], 1)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.part, self.head = cbr(3, 6), self.Part(), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(x + self.part(x))
