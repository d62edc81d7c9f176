"""Four small nets, one per way in which channels hang together, in float64 and with random statistics."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

IMAGE = (3, 6, 6)


def norm(width: int) -> nn.BatchNorm2d:
    made = nn.BatchNorm2d(width)
    nn.init.uniform_(made.weight, 0.5, 1.5)
    nn.init.uniform_(made.bias, -0.5, 0.5)
    made.running_mean.uniform_(-0.3, 0.3)  # type: ignore[union-attr]
    made.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    return made


class Residual(nn.Module):
    """Two blocks on one stream; the second one's batch norm comes before its convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 6, 3, padding=1, bias=False), norm(6)
        self.conv1, self.norm1 = nn.Conv2d(6, 6, 3, padding=1, bias=False), norm(6)
        self.norm2, self.conv2 = norm(6), nn.Conv2d(6, 6, 1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem_norm(self.stem(x)).relu()
        x = x + self.norm1(self.conv1(x))
        x = x + self.conv2(self.norm2(x).relu())
        return self.head(x.mean((2, 3)))


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expand, self.expand_norm = nn.Conv2d(3, 8, 1, bias=False), norm(8)
        self.depthwise, self.depthwise_norm = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), norm(8)
        self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.project = nn.Conv2d(8, 5, 1)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.depthwise_norm(self.depthwise(self.expand_norm(self.expand(x)).relu())).relu()
        x = x * self.excite(self.squeeze(x.mean((2, 3), keepdim=True)).relu()).sigmoid()
        return self.head(self.project(x).relu().mean((2, 3)))


class Concatenation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(3, 4, 1)
        self.both_norm, self.both = norm(9), nn.Conv2d(9, 6, 1)
        self.last = nn.Conv2d(15, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.left(x).relu(), self.right(x)], 1)
        return self.last(torch.cat([x, self.both(self.both_norm(x)).sigmoid()], 1))


class Shared(nn.Module):
    """One convolution and one batch norm, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 1)
        self.twice, self.twice_norm = nn.Conv2d(6, 6, 3, padding=1, bias=False), norm(6)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).tanh()
        x = self.twice_norm(self.twice(x)).relu()
        x = self.twice_norm(self.twice(x)).relu()
        return self.head(self.drop(x.mean((2, 3))))


NETS: dict[str, Callable[[], nn.Module]] = {
    "residual": Residual, "depthwise": Depthwise, "concatenation": Concatenation, "shared": Shared
}  # fmt: skip


def small_net(name: str, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETS[name]().double()


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, *IMAGE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
