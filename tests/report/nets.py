"""Models for the report and command-line tests, loaded by path as a user's own would be."""

from __future__ import annotations

import torch
from torch import nn


class Opaque(nn.Module):
    """Cannot be traced: which way it goes depends on the data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Odd(nn.Module):
    """One of everything that the report has words for."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.grouped = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.normed = nn.Sequential(nn.Conv2d(16, 16, 1), nn.GroupNorm(2, 16))
        self.twice = nn.Conv2d(16, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.squeeze = nn.Conv2d(32, 4, 1)
        self.excite = nn.Conv2d(4, 32, 1)
        self.a_branch_with_quite_a_long_name = nn.Sequential(nn.Sequential(nn.Conv2d(32, 8, 1)))
        self.opaque = Opaque()
        self.frozen = nn.Conv2d(32, 8, 1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = x + self.normed(self.grouped(x))
        x = torch.cat([x, self.twice(torch.relu(self.twice(x)))], 1)
        x = self.depthwise(x)
        x = x * torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        opaque = self.opaque(self.a_branch_with_quite_a_long_name(x))
        frozen = torch.renorm(self.frozen(x), 2, 0, 1.0)
        if x.shape[2] > 4:
            opaque = torch.relu(opaque)
        out: torch.Tensor = self.head(opaque + frozen)
        return out


class Two(nn.Module):
    """Two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 1), nn.Conv2d(5, 4, 1)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.left(x) + self.right(y))
        return out


def small(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.Conv2d(width, 4, 3))


def chatty() -> nn.Module:
    print("printed by the model's own code")
    return small(8)


def without_layers() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.ReLU())


def with_nan() -> nn.Module:
    net = small(8)
    next(net.parameters()).data.fill_(float("nan"))
    return net


def wrapped() -> nn.Module:
    net = small(8)
    net._fxprune_wrapped = True  # type: ignore[assignment]
    return net


def no_model() -> dict[str, int]:
    return {"not": 1}


def fails() -> nn.Module:
    raise RuntimeError("the weights are not there\nand a second line")


def interrupted() -> nn.Module:
    raise KeyboardInterrupt


def quits() -> nn.Module:
    raise SystemExit(3)


model = small(8)
number = 3


class Tokens(nn.Module):
    """A small transformer: a class token, and attention by one projection and by three."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 16, 4, 4), nn.Parameter(torch.zeros(1, 1, 16))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)
        self.attend, self.head = nn.MultiheadAttention(16, 4, batch_first=True), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1)
        q, k, v = self.qkv(self.norms[0](x)).reshape(x.shape[0], -1, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.proj(((q @ k.transpose(-2, -1)).softmax(-1) @ v).transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        out: torch.Tensor = self.head(self.norms[2](x)[:, 0])
        return out
