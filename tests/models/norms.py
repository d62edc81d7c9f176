"""Norms other than a batch norm behind a convolution."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.case import cbr, net


@net(gates={"0": 4, "6": 1})
def group_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU(), nn.Conv2d(8, 6, 3, padding=1), nn.GroupNorm(6, 6),
        nn.ReLU(), nn.Conv2d(6, 6, 1), nn.GroupNorm(1, 6), nn.ReLU(), nn.Conv2d(6, 4, 1),
    )  # fmt: skip


@net(gates={"0": 20})
def group_norm_of_many_groups() -> nn.Module:
    """As many groups as channels in each: not to be taken for tokens by channels."""
    return nn.Sequential(nn.Conv2d(3, 400, 1), nn.GroupNorm(20, 400), nn.ReLU(), nn.Conv2d(400, 4, 1))


@net()
class group_norm_residual(nn.Module):
    """Group norm on a stream and behind a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.n, self.b = (
            nn.Conv2d(3, 6, 3, padding=1),
            nn.Conv2d(6, 6, 1),
            nn.GroupNorm(3, 6),
            nn.Conv2d(6, 6, 1),
        )
        self.m, self.head = nn.GroupNorm(4, 12), nn.Conv2d(12, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.a(x)
        x = self.n(x)
        return self.head(F.relu(self.m(torch.cat([x, self.b(x)], 1))))


@net()
def instance_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.InstanceNorm2d(6, affine=True), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1),
        nn.InstanceNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 1),
        nn.InstanceNorm2d(6, affine=True, track_running_stats=True), nn.Softplus(), nn.Conv2d(6, 4, 1),
    )  # fmt: skip


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dw, self.norm = nn.Conv2d(width, width, 3, padding=1, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.layer_scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.dw(x).permute(0, 2, 3, 1))
        y = self.layer_scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class LayerNormFirst(nn.Module):
    """Channels-first layer norm by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + 1e-6)
        return self.scale[:, None, None] * x + self.bias[:, None, None]


class LayerNormLast(nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


@net(gates={"2.up": 12, "2.down": 6, "3.up": 12, "3.down": 6, "6.up": 16, "6.down": 8})
def convnext() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 2, 2), LayerNormLast(6), ConvNeXtBlock(6), ConvNeXtBlock(6), LayerNormFirst(6),
        nn.Conv2d(6, 8, 2, 2), ConvNeXtBlock(8), nn.AdaptiveAvgPool2d(1), LayerNormFirst(8),
        nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


@net()
def layer_norm_by_hand() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        LayerNormFirst(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 1),
        LayerNormFirst(6),
        nn.Conv2d(6, 4, 1),
    )


class FrozenBatchNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w, b = self.weight.reshape(1, -1, 1, 1), self.bias.reshape(1, -1, 1, 1)
        rv, rm = self.running_var.reshape(1, -1, 1, 1), self.running_mean.reshape(1, -1, 1, 1)
        scale = w * (rv + 1e-5).rsqrt()
        return x * scale + (b - rm * scale)


@net()
def frozen_batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), FrozenBatchNorm(6), nn.ReLU(), PostFrozen(6), nn.Conv2d(6, 4, 1)
    )


class PostFrozen(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.n = nn.Conv2d(width, width, 3, padding=1), FrozenBatchNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.n(self.a(x)))


@net(gates={"c": 3})
class functional_norm(nn.Module):
    """F.batch_norm and F.dropout with self.training; F.instance_norm, F.group_norm."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.head = (
            nn.Conv2d(3, 6, 3, padding=1),
            nn.Conv2d(6, 8, 1),
            nn.Conv2d(8, 6, 1),
            nn.Conv2d(6, 4, 1),
        )
        self.norm_scale, self.bias = nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(6))
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("var", torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.batch_norm(self.a(x), self.mean, self.var, self.norm_scale, self.bias, self.training, 0.1, 1e-5)
        x = F.dropout(F.relu(x), 0.5, self.training)
        x = F.instance_norm(self.b(x))
        x = F.group_norm(self.c(F.dropout2d(x, training=self.training)), 3)
        if self.training:
            x = x + 1
        return self.head(F.relu(x))


@net()
def batch_norm_without_affine() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, affine=False), nn.ReLU(), nn.Conv2d(6, 6, 1),
        nn.BatchNorm2d(6, track_running_stats=False), nn.ReLU(), nn.LocalResponseNorm(3), nn.Conv2d(6, 4, 1),
    )  # fmt: skip


@net()
class normalised(nn.Module):
    """L2 normalisation and softmax over the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = cbr(3, 6), nn.Conv2d(6, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.normalize(self.a(x), dim=1)
        x = x * torch.softmax(self.b(x), 1)
        return self.head(x / (x.norm(dim=1, keepdim=True) + 0.1))
