"""Linear layers on maps and tokens: 1x1 convolutions whose channels come last."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.gates import OUTPUT, SCALES
from tests.models.case import cbr, net


class _Block(nn.Module):
    """ConvNeXt's: depthwise, norm over channels, four times as wide and back, scaled per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dw, self.norm = nn.Conv2d(width, width, 3, padding=1, groups=width), nn.LayerNorm(width)
        self.wide, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.dw(x).permute(0, 2, 3, 1))
        y = self.scale * self.back(F.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


@net(gates={"stem": 1})
class convnext_stages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 2, 2), nn.GroupNorm(1, 6)
        self.blocks = nn.Sequential(_Block(6), _Block(6), nn.Conv2d(6, 8, 2, 2), _Block(8))
        self.last, self.head = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.norm(self.stem(x)))
        return self.head(self.last(x.mean((2, 3))))


class _Response(nn.Module):
    """ConvNeXt V2's normalisation: each channel by its norm over the map, beside those of the others."""

    def __init__(self, width: int, fused: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.fused = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width)), fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fused:
            size = x.norm(p=2, dim=(1, 2), keepdim=True)
            scaled = x * (size / (size.mean(-1, keepdim=True) + 1e-6))
            return x + torch.addcmul(self.bias.view(1, 1, 1, -1), self.weight.view(1, 1, 1, -1), scaled)
        size = torch.linalg.vector_norm(x, ord=2, dim=(1, 2), keepdim=True)
        return self.weight * (x * size / (size.mean(dim=-1, keepdim=True) + 1e-6)) + self.bias + x


@net(gates={"head": 4})  # which is added to a norm of what is pruned
class normalises_responses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = nn.Conv2d(3, 6, 2, 2), nn.Linear(6, 12), nn.Linear(12, 8)
        self.one, self.other, self.head = _Response(12, True), _Response(8, False), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.one(F.gelu(self.a(self.stem(x).permute(0, 2, 3, 1))))
        y = self.other(self.b(y))
        return self.head(y.mean((1, 2))) + torch.linalg.norm(y, dim=-1).mean((1, 2))[:, None]


@net((2, 5, 6), others=((1, 7, 6), (3, 2, 6)), gates={"gate": SCALES})
class tokens_without_convolution(nn.Module):
    """A stream of tokens, and nothing but linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8, bias=False)
        self.gate, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        x = x + self.b(F.silu(self.a(self.norm(x))))
        x = x + torch.sigmoid(self.gate(x)) * x
        return self.head(x.mean(1))


@net(others=((1, 3, 8, 10), (3, 3, 8, 10)))
class mixes_tokens(nn.Module):
    """An MLP-Mixer: its linear layers go along the positions as well as along the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 2, 2)
        self.norms = nn.ModuleList(nn.LayerNorm(6) for _ in range(2))
        self.along = nn.Sequential(nn.Linear(20, 9), nn.GELU(), nn.Linear(9, 20))
        self.across = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6))
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = x + self.along(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        x = x + self.across(self.norms[1](x))
        return self.head(x.mean(1))


@net((2, 3, 8, 8), others=((1, 3, 8, 8), (3, 3, 8, 8)), gates={"qkv": "queries 4, heads 2, values 4"})
class windows(nn.Module):
    """Attention in windows that are folded into the batch, and patches that are merged."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 1), nn.LayerNorm(8)
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
        self.merge, self.head = nn.Linear(32, 6, bias=False), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).permute(0, 2, 3, 1)
        b, h, w, c = x.shape
        y = torch.roll(self.norm(x), (-2, -2), (1, 2))
        y = y.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        q, k, v = self.qkv(y).reshape(-1, 16, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        y = (q @ k.transpose(-2, -1) * 0.5).softmax(-1) @ v
        y = self.proj(y.transpose(1, 2).reshape(-1, 16, c))
        y = y.view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        x = x + torch.roll(y, (2, 2), (1, 2))
        x = torch.cat([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], -1)
        return self.head(self.merge(x).mean((1, 2)))


@net((2, 4, 6), others=((1, 4, 6), (3, 4, 6)))
class linear_with_batch_norms(nn.Module):
    """Over channels, with the tokens folded into the batch (LeViT); over tokens; and over pairs that are folded."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.over_channels = nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8)
        self.b, self.over_tokens = nn.Linear(8, 7), nn.BatchNorm1d(4)
        self.c, self.folded, self.head = nn.Linear(7, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        y = F.relu(self.over_channels(y.flatten(0, 1)).reshape_as(y))
        y = F.relu(self.over_tokens(self.b(y)))
        y = F.relu(self.folded(self.c(y.reshape(-1, 7)))).view(-1, 4, 6)
        return self.head(y.mean(1))


@net()
class linear_called_on_map_and_point(nn.Module):
    """One layer, called twice on maps and once on their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.shared, self.head = cbr(3, 6), nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).movedim(1, -1)
        y = torch.relu(self.shared(torch.relu(self.shared(x))))
        return self.head((x + y).mean((1, 2)) + self.shared(x.amax((1, 2))))


@net(gates={"linear": 8})
class linear_as_a_function(nn.Module):
    """``F.linear`` on a map, with a weight of its own and with that of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layer = cbr(3, 6), nn.Linear(8, 8)
        self.weight, self.bias = nn.Parameter(torch.zeros(8, 6)), nn.Parameter(torch.zeros(8))
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(F.linear(self.stem(x).movedim(1, -1), self.weight, bias=self.bias))
        y = y + F.linear(F.gelu(self.layer(y)), self.layer.weight, self.layer.bias)
        return self.head(y.movedim(-1, 1))


@net(gates={"b": OUTPUT})
class linear_on_a_point(nn.Module):
    """A map that has one position for the example."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.pool = cbr(3, 6), nn.AdaptiveAvgPool2d(1)
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(F.gelu(self.a(self.pool(self.stem(x)).permute(0, 2, 3, 1))))
