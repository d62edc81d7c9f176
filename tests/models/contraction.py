"""Sums of products that are written as einsum and its kin; tensors whose channels lie along several axes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.case import Wrap, net


class Weighted(nn.Module):
    """A learned matrix over the channels, one over the columns' places in pairs of rows, a scale per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.more = nn.Parameter(torch.zeros(6, 8)), nn.Parameter(torch.zeros(6, 5))
        self.rows, self.scale = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.einsum("bchw,c->bchw", x, self.scale)
        b, c, h, w = x.shape
        x = torch.einsum("...rw,rs->...sw", x.reshape(b, c, h // 2, 2, w), self.rows).reshape(b, c, h, w)
        x = torch.einsum("bchw, dc -> bdhw", x, self.mix)
        return torch.tensordot(x, self.more, dims=([1], [0])).permute(0, 3, 1, 2)


@net()
def einsum_with_weights() -> nn.Module:
    return Wrap(Weighted(), out=5)


class EinsumAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Conv2d(8, 24, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).reshape(x.shape[0], 3, 2, 4, -1).unbind(1)
        scores = torch.einsum("bndi,bndj->bnij", q, k).softmax(-1)
        return self.out(torch.einsum("bnij,bndj->bndi", [scores, v]).reshape_as(x))


@net(gates={"body.qkv": "queries 4, heads 2, values 4"})
def einsum_attention() -> nn.Module:
    return Wrap(EinsumAttention())


class ChannelAttention(nn.Module):
    """Between channels: they lie along both axes of the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = x.flatten(2), self.other(x).flatten(2)
        scores = torch.bmm(one, other.mT) / 40
        scores = torch.max(scores, -1, keepdim=True)[0].expand_as(scores) - scores
        return x + torch.bmm(scores.softmax(-1), other).view_as(x)


@net()
def attention_between_channels() -> nn.Module:
    return Wrap(ChannelAttention())


@net()
class products_of_two_widths(nn.Module):
    """Bilinear pooling: one map's channels lie along the rows, those of another one, fewer, along the columns."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.head = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 6, 1), nn.Conv2d(8, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = self.one(x).flatten(2), self.other(x).flatten(2)
        return self.head((one @ other.mT / 40).unsqueeze(-1))


@net()
class stacked_calls(nn.Module):
    """More calls of one layer than it has channels, beside each other, and an op that makes something of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        calls = torch.stack([self.conv(x + step) for step in range(6)], 1)
        return self.head(calls.sigmoid().mean(1))


@net()
class sources_into_the_batch(nn.Module):
    """A separator's masks: the channels of each source, as if it were a sample of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.head = nn.Conv2d(3, 16, 3), nn.Conv2d(2, 3, 1), nn.Conv2d(3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = F.pixel_shuffle(x.reshape(x.shape[0] * 2, 8, *x.shape[2:]), 2)
        return self.head(F.relu(self.conv(x))).unflatten(0, (-1, 2)).flatten(1, 2)


@net(others=((1, 3, 8, 10), (3, 3, 8, 10)))
class levels_beside_each_other(nn.Module):
    """A detector's boxes relative to fixed anchors, all levels in one tensor: more levels than there are channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.boxes = nn.ModuleList([nn.Conv2d(6, 4, 1, stride=stride) for stride in (1, 2, 4)])
        self.register_buffer("anchors", torch.zeros(1, 2, 8 * 10 + 4 * 5 + 2 * 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        one, other = torch.cat([box(x).flatten(2) for box in self.boxes], 2).chunk(2, 1)
        one, other = self.anchors - one, self.anchors + other
        return torch.cat([(one + other) / 2, other - one], 1)


@net()
class a_token_of_which_nothing_is_read(nn.Module):
    """Put before the others, which are more: where none of its living channels is read, it still takes its place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.head = nn.Conv2d(3, 8, 1), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).flatten(2).mT
        x = x[:, :1] + x * torch.cat([self.one(x.mean(1, keepdim=True)), x[:, 1:]], 1)
        return self.head(x)


@net()
class wavelengths_in_single_precision(nn.Module):
    """Constants that the code asks for in float32, as position encodings do, in nets that are compared in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = 10000 ** (torch.arange(8, device=self.stem.weight.device).to(torch.float32) / 8)
        return self.head((self.stem(x) / lengths.reshape(8, 1, 1)).sin())
