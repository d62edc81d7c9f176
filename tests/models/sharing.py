"""Layers, weights and parameters that are used more than once."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.gates import OUTPUT
from tests.models.case import cbr, net


@net(gates={"tower.1": OUTPUT, "score": OUTPUT})
class fpn(nn.Module):
    """One module called three times, a dict of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2, self.c3 = cbr(3, 4), cbr(4, 6, s=2), cbr(6, 8, s=2)
        self.l1, self.l2, self.l3 = nn.Conv2d(4, 6, 1), nn.Conv2d(6, 6, 1), nn.Conv2d(8, 6, 1)
        self.smooth, self.tower = nn.Conv2d(6, 6, 3, padding=1), nn.Sequential(cbr(6, 6), nn.Conv2d(6, 4, 1))
        self.score = nn.Conv2d(6, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        a = self.c1(x)
        b = self.c2(a)
        c = self.c3(b)
        p3 = self.l3(c)
        p2 = self.l2(b) + F.interpolate(p3, size=b.shape[-2:])
        p1 = self.l1(a) + F.interpolate(p2, scale_factor=2.0, mode="nearest")
        levels = [self.smooth(p) for p in (p1, p2, p3)]
        return {
            "boxes": [self.tower(p) for p in levels],
            "scores": {str(n): self.score(F.relu(p)) for n, p in enumerate(levels)},
        }


@net((2, 3, 8, 10), (2, 3, 8, 10), others=(((1, 3, 12, 8), (1, 3, 12, 8)), ((3, 3, 9, 7), (3, 3, 9, 7))))
class siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(cbr(3, 6), cbr(6, 8), nn.Conv2d(8, 6, 1))
        self.head = nn.Sequential(cbr(12, 6, 1), nn.Conv2d(6, 4, 1))

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        a, b = self.backbone(left), self.backbone(right)
        return self.head(torch.cat([(a - b).abs(), a * b], 1))


@net()
class tied(nn.Module):
    """One convolution called twice with different batch norms, in a recurrent loop."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.n1, self.n2 = (
            cbr(3, 6),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.BatchNorm2d(6),
        )
        self.norm, self.a, self.head = nn.BatchNorm2d(6), nn.Conv2d(6, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = F.relu(self.n1(self.conv(x)))
        y = torch.sigmoid(self.n2(self.conv(y)))
        z = self.norm(self.a(y)) + self.norm(x)
        return self.head(z)


@net()
class recurrent(nn.Module):
    """One block of convolution and norm applied three times to its own output, with and without the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.plain = cbr(3, 6), cbr(6, 6), nn.Conv2d(6, 6, 1)
        self.norm, self.head = nn.BatchNorm2d(6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for _ in range(3):
            x = x + self.block(x)
        return self.head(self.norm(self.plain(x)) + self.plain(torch.sigmoid(x)))


@net(gates={"conv2d": 8, "conv2d_1": 8})
class shared_weight(nn.Module):
    """One parameter, two dilations (TridentNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = cbr(3, 6), nn.Conv2d(8, 4, 1)
        self.weight, self.bias = nn.Parameter(torch.rand(8, 6, 3, 3)), nn.Parameter(torch.rand(8))
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        a = F.conv2d(x, self.weight, self.bias, padding=1)
        b = F.conv2d(x, self.weight, self.bias, padding=2, dilation=2)
        return self.head(F.relu(self.norm(a)) + torch.sigmoid(b))


@net()
class shared_parameter(nn.Module):
    """Two modules that hold the same parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = (
            cbr(3, 6),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.Conv2d(6, 4, 1),
        )
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.b(torch.sigmoid(self.a(self.stem(x))))))


class StandardisedConv(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self.weight
        mean, std = w.mean((1, 2, 3), keepdim=True), w.std((1, 2, 3), keepdim=True)
        return F.conv2d(x, (w - mean) / (std + 1e-5), self.bias, self.stride, self.padding, self.dilation, self.groups)


@net(gates={"3": 4})
def weight_standardised() -> nn.Module:
    return nn.Sequential(
        StandardisedConv(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), StandardisedConv(6, 8, 3, padding=1),
        nn.GroupNorm(4, 8), nn.ReLU(), StandardisedConv(8, 8, 3, padding=1, groups=2, bias=False), nn.Sigmoid(),
        StandardisedConv(8, 4, 1),
    )  # fmt: skip


@net(pickles=False)
def parametrized() -> nn.Module:
    weight_norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(
        weight_norm(nn.Conv2d(3, 6, 3, padding=1)), nn.ReLU(), weight_norm(nn.Conv2d(6, 8, 3, padding=1)), nn.Sigmoid(),
        nn.Conv2d(8, 4, 1),
    )  # fmt: skip
