"""Depthwise and grouped convolutions, shuffles, splits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.case import cb, cbr, net


class InvertedResidual(nn.Module):
    def __init__(self, i: int, o: int, s: int) -> None:
        super().__init__()
        self.expand, self.dw, self.project = cbr(i, 2 * i, 1), cbr(2 * i, 2 * i, 3, s, 2 * i), cb(2 * i, o, 1)
        self.residual = i == o and s == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.project(self.dw(self.expand(x)))
        return x + y if self.residual else y


@net()
def mobilenet() -> nn.Module:
    return nn.Sequential(
        cbr(3, 6), cbr(6, 6, 3, g=6), InvertedResidual(6, 6, 1), InvertedResidual(6, 8, 2), InvertedResidual(8, 8, 1),
        nn.Conv2d(8, 4, 1),
    )  # fmt: skip


@net()
def depthwise_multiplier() -> nn.Module:
    return nn.Sequential(
        cbr(3, 5), nn.Conv2d(5, 10, 3, padding=1, groups=5), nn.BatchNorm2d(10), nn.Sigmoid(), cbr(10, 6, 1),
        nn.Conv2d(6, 12, 3, padding=1, groups=6), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False),
        nn.Conv2d(12, 4, 1),
    )  # fmt: skip


@net()
def depthwise_on_input() -> nn.Module:
    """Depthwise on the image itself and as the last layer."""
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, groups=3), nn.ReLU(), cbr(6, 6), nn.Conv2d(6, 6, 3, groups=6))


@net()
def resnext() -> nn.Module:
    return nn.Sequential(cbr(3, 8), Bottleneck(8, 8, 4), Bottleneck(8, 12, 2), nn.Conv2d(8, 4, 1))


class Bottleneck(nn.Module):
    def __init__(self, width: int, inner: int, groups: int) -> None:
        super().__init__()
        self.a, self.b, self.c = cbr(width, inner, 1), cbr(inner, inner, 3, g=groups), cb(inner, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.c(self.b(self.a(x))))


@net()
def uneven_groups() -> nn.Module:
    """Grouped convolutions in a row, of different group counts and widths."""
    return nn.Sequential(
        cbr(3, 8), nn.Conv2d(8, 12, 3, padding=1, groups=4), nn.Sigmoid(), nn.Conv2d(12, 6, 1, groups=2), nn.ReLU(),
        nn.Conv2d(6, 12, 3, groups=3, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 4, 1, groups=4),
    )  # fmt: skip


def shuffle(x: torch.Tensor, groups: int) -> torch.Tensor:
    b, c, h, w = x.size()
    return torch.transpose(x.view(b, groups, c // groups, h, w), 1, 2).contiguous().view(b, -1, h, w)


class Shuffle1(nn.Module):
    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.a, self.dw, self.b = (
            cbr(width, width, 1, g=groups),
            cb(width, width, 3, g=width),
            cb(width, width, 1, g=groups),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.b(self.dw(shuffle(self.a(x), self.groups))))


@net()
def shufflenet_v1() -> nn.Module:
    return nn.Sequential(cbr(3, 8), Shuffle1(8, 2), Shuffle1(8, 4), nn.ChannelShuffle(2), nn.Conv2d(8, 4, 1))


class Shuffle2(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(cbr(half, half, 1), cb(half, half, 3, g=half), cbr(half, half, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim=1)
        return shuffle(torch.cat((a, self.branch(b)), dim=1), 2)


class Shuffle2Down(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.a = nn.Sequential(cb(i, i, 3, 2, i), cbr(i, o // 2, 1))
        self.b = nn.Sequential(cbr(i, o // 2, 1), cb(o // 2, o // 2, 3, 2, o // 2), cbr(o // 2, o // 2, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return shuffle(torch.cat((self.a(x), self.b(x)), dim=1), 2)


@net()
def shufflenet_v2() -> nn.Module:
    return nn.Sequential(
        cbr(3, 6), Shuffle2Down(6, 8), Shuffle2(8), Shuffle2(8), Shuffle2(8), nn.Conv2d(8, 6, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5),
    )  # fmt: skip


@net()
class res2net(nn.Module):
    """Splits with a running sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a = cbr(3, 6), cbr(6, 12, 1)
        self.convs = nn.ModuleList(cbr(3, 3) for _ in range(3))
        self.b, self.head = cb(12, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        parts = torch.split(self.a(x), 3, 1)
        done, running = [parts[0]], None
        for conv, part in zip(self.convs, parts[1:], strict=True):
            running = conv(part if running is None else running + part)
            done.append(running)
        return self.head(F.relu(x + self.b(torch.cat(done, 1))))


@net()
class csp(nn.Module):
    """Split, a residual stream in one half, concatenation (C2f collects every step)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a = cbr(3, 6), cbr(6, 8, 1)
        self.steps = nn.ModuleList(nn.Sequential(cbr(4, 4), cbr(4, 4)) for _ in range(2))
        self.b, self.head = cbr(16, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = list(self.a(self.stem(x)).split((4, 4), 1))
        y.extend(y[-1] + step(y[-1]) for step in self.steps)
        return self.head(self.b(torch.cat(y, 1)))


@net()
class mixconv(nn.Module):
    """A split of channels over depthwise kernels of different size."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.head = cbr(3, 6), cbr(6, 9, 1), nn.Conv2d(9, 4, 1)
        self.sizes = [4, 3, 2]
        self.convs = nn.ModuleList(
            nn.Conv2d(n, n, k, padding=k // 2, groups=n) for n, k in zip(self.sizes, (3, 5, 1), strict=True)
        )
        self.norm = nn.BatchNorm2d(9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.split(self.a(self.stem(x)), self.sizes, dim=1)
        y = torch.cat([conv(part) for conv, part in zip(self.convs, y, strict=True)], 1)
        return self.head(torch.sigmoid(self.norm(y)))


@net(gates={"a.0": 4})
class slices(nn.Module):
    """Channel slices, flips, rolls, repeats and an interleaved selection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = cbr(3, 8), cb(8, 8), nn.Conv2d(12, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.a(x)
        y = torch.sigmoid(y[:, ::2]) * y[:, 1::2] + x[:, -4:] - x.narrow(1, 1, 4)
        y = torch.cat([y, torch.flip(y, [1]), torch.roll(y, 1, 1)], 1)
        z = self.b(y) + y[:, :3].repeat(1, 2, 1, 1) - y[:, 3:6].repeat_interleave(2, dim=1)
        return self.head(z)


class OctaveConv(nn.Module):
    def __init__(self, ih: int, il: int, oh: int, ol: int) -> None:
        super().__init__()
        self.hh, self.hl = nn.Conv2d(ih, oh, 3, padding=1), nn.Conv2d(ih, ol, 3, padding=1)
        self.lh, self.ll = nn.Conv2d(il, oh, 3, padding=1), nn.Conv2d(il, ol, 3, padding=1)
        self.nh, self.nl = nn.BatchNorm2d(oh), nn.BatchNorm2d(ol)

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        h, low = pair
        oh = self.hh(h) + F.interpolate(self.lh(low), scale_factor=2)
        ol = self.ll(low) + self.hl(F.avg_pool2d(h, 2))
        return F.relu(self.nh(oh)), F.relu(self.nl(ol))


@net()
class octave(nn.Module):
    """Features travel as tuples of two resolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.low = cbr(3, 5), cbr(3, 4, s=2)
        self.a, self.b, self.head = OctaveConv(5, 4, 6, 4), OctaveConv(6, 4, 6, 3), nn.Conv2d(9, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, low = self.b(self.a((self.stem(x), self.low(x))))
        return self.head(torch.cat([F.max_pool2d(h, 2), low], 1))


@net(gates={"a": 6, "b.0": 4, "c": 6})
class glu(nn.Module):
    """F.glu, nn.GLU and a chunked one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.c = cbr(3, 6), nn.Conv2d(6, 12, 3, padding=1), cb(6, 8), nn.Conv2d(4, 12, 1)
        self.glu, self.head = nn.GLU(dim=1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + F.glu(self.a(x), dim=1)
        y = self.glu(self.b(x))
        left, right = torch.chunk(self.c(y), 2, 1)
        return self.head(left * right.sigmoid() + x)


@net()
class simple_gate(nn.Module):
    """NAFNet: x1 * x2 without any activation, simplified channel attention, scaled residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.a, self.dw = (
            nn.Conv2d(3, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.Conv2d(6, 12, 1),
            nn.Conv2d(12, 12, 3, 1, 1, groups=12),
        )
        self.sca, self.b, self.head = (
            nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 6, 1)),
            nn.Conv2d(6, 6, 1),
            nn.Conv2d(6, 4, 1),
        )
        self.beta_scale = nn.Parameter(torch.zeros(1, 6, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.dw(self.a(self.norm(x)))
        y1, y2 = y.chunk(2, dim=1)
        y = y1 * y2
        y = self.b(y * self.sca(y))
        return self.head(x + y * self.beta_scale)
