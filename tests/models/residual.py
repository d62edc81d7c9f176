"""Residual streams."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.gates import OUTPUT, SCALES
from tests.models.case import cb, cbr, net


class PostBlock(nn.Module):
    def __init__(self, i: int, o: int, s: int = 1) -> None:
        super().__init__()
        self.a, self.b = cbr(i, o, s=s), cb(o, o)
        self.short = nn.Identity() if i == o and s == 1 else cb(i, o, 1, s)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.b(self.a(x)) + self.short(x))


@net()
def resnet() -> nn.Module:
    """Post-activation, with pooling blocks."""
    body = nn.Sequential(PostBlock(6, 6), PostBlock(6, 8, 2), PostBlock(8, 8), PostBlock(8, 6), PostBlock(6, 6))
    return nn.Sequential(cbr(3, 6), body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))


class PreBlock(nn.Module):
    def __init__(self, i: int, o: int, s: int = 1) -> None:
        super().__init__()
        self.n1, self.a, self.n2 = nn.BatchNorm2d(i), nn.Conv2d(i, o, 3, s, 1), nn.BatchNorm2d(o)
        self.b = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.short = None if i == o and s == 1 else nn.Conv2d(i, o, 1, s)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.n1(x))
        short = x if self.short is None else self.short(y)
        return self.b(F.relu(self.n2(self.a(y)))) + short


@net()
class preactivation(nn.Module):
    """Batch norm on the stream: a dead channel's bias would come back to life there."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.body = nn.Sequential(PreBlock(6, 6), PreBlock(6, 6), PreBlock(6, 8, 2), PreBlock(8, 8))
        self.norm, self.fc = nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(F.relu(self.norm(self.body(self.stem(x)))).mean((2, 3)))


@net(gates={"c": OUTPUT})
class inplace_residual(nn.Module):
    """relu_ changes x, which is read again."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.c = cb(3, 6), nn.Conv2d(6, 6, 3, padding=1), cb(6, 6), nn.Conv2d(6, 4, 1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.relu(x)
        y = y + self.a(x)
        z = self.b(y).add_(x)
        z += 0.5 * y
        F.relu_(z)
        z.mul_(0.7).sub_(y)
        return self.c(z)


@net()
class option_a(nn.Module):
    """Zero-padded shortcut: strided slicing and padding along channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = cbr(3, 4), cbr(4, 8, s=2), cb(8, 8)
        self.c, self.d, self.head = cbr(8, 10, s=2), cb(10, 10), nn.Conv2d(10, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = F.relu(self.b(self.a(x)) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)))
        x = F.relu(self.d(self.c(x)) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, 2), "constant", 0))
        return self.head(x)


@net()
class zero_cat_shortcut(nn.Module):
    """Option A written with a concatenation of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.head = cbr(3, 4), cb(4, 8, s=2), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = F.avg_pool2d(x, 2)
        return self.head(torch.sigmoid(self.a(x) + torch.cat([y, torch.zeros_like(y)], 1)))


@net()
class joins(nn.Module):
    """maximum, minimum, where, sub, div between branches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = cbr(3, 6)
        self.a, self.b, self.c, self.d = cb(6, 6), nn.Conv2d(6, 6, 1), nn.Conv2d(6, 6, 3, padding=1), cb(6, 6)
        self.e, self.f, self.head = nn.Conv2d(6, 6, 1), cb(6, 6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        a, b, c, d = self.a(x), self.b(x), self.c(x), self.d(x)
        m = torch.maximum(a, b) - torch.minimum(c, d)
        m = torch.where(a > 0, m, self.e(m))
        m = m / (1 + self.f(m).abs())
        return self.head(m - torch.max(a, d))


@net()
class division(nn.Module):
    """Dividing by a branch whose channels can die."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = cbr(3, 6), cb(6, 6), cb(6, 6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(torch.div(self.a(x), self.b(x).abs() + 0.5) + self.a(x) / torch.exp(self.b(x)))


@net()
class where_mask(nn.Module):
    """where and masked_fill with a constant in the other branch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = cbr(3, 6), cb(6, 6), cb(6, 6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        a = self.a(x)
        a = torch.where(a > 0.1, a, 0.3)
        b = self.b(a).masked_fill(a > 0.5, -0.2)
        return self.head(b + 0.25)


@net(gates={"b.0": SCALES})
class gated_tanh(nn.Module):
    """WaveNet's sigmoid * tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.skip, self.head = (
            cbr(3, 6),
            cb(6, 6),
            cb(6, 6),
            nn.Conv2d(6, 6, 1),
            nn.Conv2d(6, 4, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(x + self.skip(torch.tanh(self.a(x)) * torch.sigmoid(self.b(x))))


@net()
class parameters(nn.Module):
    """Per-channel parameters added and multiplied, layer scale, a learned scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = cbr(3, 6), nn.Conv2d(6, 6, 3, padding=1), cb(6, 6), nn.Conv2d(6, 4, 1)
        self.layer_scale = nn.Parameter(torch.ones(6, 1, 1))
        self.offset = nn.Parameter(torch.zeros(1, 6, 1, 1))
        self.gain = nn.Parameter(torch.ones(()))
        self.register_buffer("mean", torch.zeros(1, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x - self.mean)
        x = x + self.layer_scale * self.a(x)
        x = self.b(x + self.offset) * self.gain + x
        return self.head(x * self.layer_scale.abs().reshape(1, 6, 1, 1) - self.offset)
