"""Squeeze-and-excite and attention of all kinds."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.gates import SCALES
from tests.models.case import cb, cbr, net

HEADS = "queries 4, heads 2, values 4"


@net(gates={"excite": SCALES})
class squeeze_excite(nn.Module):
    """In convolution form, on a depthwise inverted residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.expand, self.dw = cbr(3, 6), cbr(6, 12, 1), cbr(12, 12, 3, g=12)
        self.reduce, self.excite = nn.Conv2d(12, 4, 1), nn.Conv2d(4, 12, 1)
        self.project, self.head = cb(12, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.dw(self.expand(x))
        s = F.adaptive_avg_pool2d(y, 1)
        y = y * torch.sigmoid(self.excite(F.silu(self.reduce(s))))
        return self.head(x + self.project(y))


@net(gates={"fc.2": SCALES})
class squeeze_excite_linear(nn.Module):
    """view(b, c), Linear, view(b, c, 1, 1), expand_as."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a = cbr(3, 6), cb(6, 8)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(nn.Linear(8, 4, bias=False), nn.ReLU(), nn.Linear(4, 8), nn.Sigmoid())
        self.b, self.head = cbr(8, 6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.a(x)
        b, c, _, _ = y.size()
        s = self.fc(self.pool(y).view(b, c)).view(b, c, 1, 1)
        return self.head(x + self.b(y * s.expand_as(y)))


@net(gates={"eca": SCALES})
class efficient_attention(nn.Module):
    """ECA: a 1-D convolution along the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.head = cbr(3, 6), cb(6, 8), nn.Conv2d(8, 4, 1)
        self.eca = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(self.stem(x))
        s = y.mean((2, 3), keepdim=True)
        s = self.eca(s.squeeze(-1).transpose(-1, -2)).transpose(-1, -2).unsqueeze(-1)
        return self.head(F.relu(y * torch.sigmoid(s).expand_as(y)))


@net(gates={"spatial": SCALES})
class cbam(nn.Module):
    """Mean and maximum over space, then over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.head = cbr(3, 6), cb(6, 8), nn.Conv2d(8, 4, 1)
        self.fc = nn.Sequential(nn.Conv2d(8, 4, 1, bias=False), nn.ReLU(), nn.Conv2d(4, 8, 1, bias=False))
        self.spatial = nn.Conv2d(2, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(self.stem(x))
        y = y * torch.sigmoid(self.fc(F.adaptive_avg_pool2d(y, 1)) + self.fc(F.adaptive_max_pool2d(y, 1)))
        m, _ = torch.max(y, dim=1, keepdim=True)
        y = y * torch.sigmoid(self.spatial(torch.cat([torch.mean(y, dim=1, keepdim=True), m], 1)))
        return self.head(y)


@net()
class channel_statistics(nn.Module):
    """Reductions over the channel axis of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.head = cbr(3, 6), cb(6, 8), nn.Conv2d(8, 4, 1)
        self.b = nn.Conv2d(7, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(self.stem(x))
        parts = [
            y.sum(1, keepdim=True),
            y.amax(1, keepdim=True),
            y.min(dim=1, keepdim=True).values,
            y.mean(1).unsqueeze(1),
        ]
        parts += [y.std(1, keepdim=True), y.norm(dim=1, keepdim=True), torch.logsumexp(y, 1, keepdim=True)]
        return self.head(y + self.b(torch.cat(parts, 1)))


@net()
class non_local(nn.Module):
    """Spatial self-attention: view, permute, matmul, softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.q, self.k, self.v = cbr(3, 6), nn.Conv2d(6, 4, 1), nn.Conv2d(6, 4, 1), nn.Conv2d(6, 5, 1)
        self.out, self.head = cb(5, 6, 1), nn.Conv2d(6, 4, 1)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        b, _, h, w = x.shape
        q = self.q(x).view(b, -1, h * w).permute(0, 2, 1)
        k = self.k(x).view(b, 4, h * w)
        attention = torch.softmax(torch.bmm(q, k) / 2, dim=-1)
        v = self.v(x).flatten(2).transpose(1, 2)
        y = (attention @ v).transpose(1, 2).contiguous().view(b, 5, h, w)
        return self.head(x + self.gain * self.out(y))


@net()
class gram(nn.Module):
    """Channel attention: matmul over space gives channels x channels (DANet)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.head = cbr(3, 6), cb(6, 8), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(self.stem(x))
        b, c, h, w = y.size()
        q, k = y.view(b, c, -1), y.view(b, c, -1).permute(0, 2, 1)
        energy = torch.bmm(q, k) / (h * w)
        attention = torch.softmax(torch.max(energy, -1, keepdim=True)[0].expand_as(energy) - energy, dim=-1)
        return self.head(y + torch.bmm(attention, q).view(b, c, h, w))


@net()
class context(nn.Module):
    """GCNet: a softmax over positions, a matmul that pools, layer norm on the context."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mask, self.head = cbr(3, 6), nn.Conv2d(6, 1, 1), nn.Conv2d(6, 4, 1)
        self.add = nn.Sequential(nn.Conv2d(6, 4, 1), nn.LayerNorm([4, 1, 1]), nn.ReLU(), nn.Conv2d(4, 6, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        b, c, h, w = x.shape
        mask = self.mask(x).view(b, 1, h * w, 1).softmax(2)
        pooled = torch.matmul(x.view(b, c, h * w).unsqueeze(1), mask).view(b, c, 1, 1)
        return self.head(x + self.add(pooled))


@net()
class selective_kernels(nn.Module):
    """Stacked branches, softmax over branches, sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = cbr(3, 6), cbr(6, 8, 3), cbr(6, 8, 5)
        self.reduce = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(4, 8), nn.Linear(4, 8)])
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        branches = torch.stack([self.a(x), self.b(x)], dim=1)
        z = self.reduce(branches.sum(1).mean((-1, -2)))
        weights = torch.softmax(torch.stack([head(z) for head in self.heads], 1), dim=1)
        return self.head((branches * weights[:, :, :, None, None]).sum(dim=1))


@net()
class split_attention(nn.Module):
    """ResNeSt: view to five dimensions, sum over the radix."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a = cbr(3, 6), cbr(6, 12, 3, g=2)
        self.fc1, self.fc2 = nn.Sequential(nn.Conv2d(6, 4, 1), nn.BatchNorm2d(4), nn.ReLU()), nn.Conv2d(4, 12, 1)
        self.project, self.head = cb(6, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.a(x)
        b, c, h, w = y.shape
        y = y.reshape(b, 2, c // 2, h, w)
        gap = F.adaptive_avg_pool2d(y.sum(dim=1), 1)
        attention = self.fc2(self.fc1(gap)).view(b, 1, 2, -1).transpose(1, 2)
        attention = F.softmax(attention, dim=1).reshape(b, -1, 1, 1)
        y = (y * attention.reshape(b, 2, c // 2, 1, 1)).sum(dim=1).contiguous()
        return self.head(x + self.project(y))


@net(gates={"qkv": HEADS})
class multi_head(nn.Module):
    """Attention with heads over tokens, qkv by one 1x1 convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.qkv, self.out, self.head = (
            cbr(3, 8),
            nn.Conv2d(8, 24, 1),
            nn.Conv2d(8, 8, 1),
            nn.Conv2d(8, 4, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).reshape(b, 3, 2, c // 2, h * w).unbind(1)
        attention = torch.softmax(q.transpose(-2, -1) @ k * 0.5, dim=-1)
        y = (v @ attention.transpose(-2, -1)).reshape(b, c, h, w)
        return self.head(x + self.out(y))


@net(gates={"qkv": HEADS})
class fused_attention(nn.Module):
    """The same in one call, with a mask and a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.qkv, self.out, self.head = cbr(3, 8), nn.Conv2d(8, 24, 1), cb(8, 8, 1), nn.Conv2d(8, 4, 1)
        self.q, self.kv, self.last = nn.Conv2d(8, 6, 1), nn.Conv2d(8, 11, 1), nn.Conv2d(5, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).reshape(b, 3, 2, c // 2, h * w).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(-1, -2).reshape(b, c, h, w))
        k, v = self.kv(x).flatten(2).transpose(1, 2).split([6, 5], dim=-1)
        q = self.q(x).flatten(2).transpose(1, 2)
        y = F.scaled_dot_product_attention(query=q, key=k, value=v, scale=0.7)
        return self.head(x + self.last(y.transpose(1, 2).reshape(b, 5, h, w)))


@net(others=((1, 3, 8, 10), (3, 3, 8, 10)), gates={"qkv": HEADS})
class masked_heads(nn.Module):
    """Attention with a mask per head, as positions make one: a dead head must not shift the others' masks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.qkv, self.out, self.head = cbr(3, 8), nn.Conv2d(8, 24, 1), cb(8, 8, 1), nn.Conv2d(8, 4, 1)
        self.mask = nn.Parameter(torch.zeros(1, 2, 80, 80))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).reshape(b, 3, 2, c // 2, h * w).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        return self.head(x + self.out(y.transpose(-1, -2).reshape(b, c, h, w)))


@net()
class einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = cbr(3, 6), cbr(6, 6), cb(6, 5)
        self.matrix, self.head = nn.Parameter(torch.rand(6, 5)), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(self.stem(x))
        return self.head(torch.einsum("bdhw,cd->bchw", self.b(x), self.matrix) + x)


class _Block(nn.Module):
    """Attention with two heads and an MLP, each behind a norm and beside a stream."""

    def __init__(self, width: int, attend: nn.Module) -> None:
        super().__init__()
        self.attend, self.before, self.between = attend, nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.back = nn.Linear(width, 12), nn.Linear(12, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.before(x))
        return x + self.back(F.gelu(self.wide(self.between(x))))


class _Packed(nn.Module):
    """One projection for all three, taken apart by reshape, permute and unbind, as in timm."""

    def __init__(self, width: int, fused: bool) -> None:
        super().__init__()
        self.qkv, self.proj, self.fused = nn.Linear(width, 3 * width), nn.Linear(width, width), fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = (q * 0.5 @ k.transpose(-2, -1)).softmax(dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, n, c))


_PACKED = "queries 4, heads 2, values 4"
_LAYERS = {"q_proj": "queries 4", "k_proj": "keys", "v_proj": "heads 2, values 4", "out_proj": 8}
_TRANSFORMER = {
    f"{block}.{layer}": gates
    for block in (0, 1)
    for layer, gates in (("attend.qkv", _PACKED), ("attend.proj", 8), ("wide", 12), ("back", 8))
}


@net(
    (2, 3, 8, 8),
    others=((1, 3, 8, 8), (3, 3, 8, 8)),
    gates={"patches": 8} | {f"blocks.{name}": count for name, count in _TRANSFORMER.items()},
)
class vision_transformer(nn.Module):
    """A class token and a table of positions on one stream, its norm in front of the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.token, self.positions = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.zeros(1, 5, 8))
        self.blocks = nn.Sequential(_Block(8, _Packed(8, fused=True)), _Block(8, _Packed(8, fused=False)))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        x = self.norm(self.blocks(x))
        return self.head(x[:, 0] + x.mean(1))


@net(
    (2, 5, 6),
    others=((1, 7, 6), (3, 2, 6)),
    gates={"embed": 8, "q": "queries 4", "k": "keys", "v": "heads 2, values 4", "out": 8},
)
class causal_heads(nn.Module):
    """Three projections, heads by view and transpose, and a mask made of sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.out, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        y, shape = self.norm(x), (x.shape[0], x.shape[1], 2, 4)
        q, k, v = (layer(y).view(shape).transpose(1, 2) for layer in (self.q, self.k, self.v))
        positions = torch.arange(x.shape[1], device=x.device)
        future = positions[None, :] > positions[:, None]
        scores = torch.matmul(q, k.transpose(2, 3)) / 2
        scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)
        y = torch.matmul(torch.softmax(scores, dim=-1), v).transpose(1, 2).contiguous()
        return self.head((x + self.out(y.view(x.shape[0], x.shape[1], -1))).mean(1))


@net(
    (2, 5, 6),
    others=((1, 5, 6), (3, 5, 6)),
    gates={"embed": 8, "keys": 6, "values": 7}
    | {f"{layer}.{name}": gates for layer in ("first", "second") for name, gates in _LAYERS.items()},
)
class attention_layers(nn.Module):
    """``nn.MultiheadAttention`` on its own input with a mask, and on keys and values of other widths."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.keys, self.values = nn.Linear(6, 8), nn.Linear(6, 6), nn.Linear(6, 7)
        self.first = nn.MultiheadAttention(8, 2, batch_first=True)
        self.second = nn.MultiheadAttention(8, 2, batch_first=True, kdim=6, vdim=7, bias=False)
        self.register_buffer("mask", torch.triu(torch.ones(5, 5, dtype=torch.bool), 1))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keys, values = F.relu(self.keys(x[:, 1:])), F.relu(self.values(x[:, 1:]))
        x = self.embed(x)
        x = x + self.first(x, x, x, attn_mask=self.mask)[0]
        x = x + self.second(x, keys, values, need_weights=False)[0]
        return self.head(x.mean(1))


@net(
    (5, 2, 8), (4, 2, 8),
    others=(((5, 1, 8), (4, 1, 8)), ((6, 3, 8), (2, 3, 8))),
    gates={f"{layer}.{name}": gates for name, gates in _LAYERS.items() for layer in (
        "encode.self_attn", "decode.self_attn", "decode.multihead_attn")}
    | {f"{stack}.linear{n}": width for stack in ("encode", "decode") for n, width in ((1, 12), (2, 8))},
)  # fmt: skip
class encodes_and_decodes(nn.Module):
    """Transformers of torch, tokens first."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.TransformerEncoderLayer(8, 2, 12, activation="gelu", norm_first=True)
        self.decode, self.head = nn.TransformerDecoderLayer(8, 2, 12), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.head(self.decode(y, self.encode(x)))


def _turned(x: torch.Tensor) -> torch.Tensor:
    one, other = x.chunk(2, dim=-1)
    return torch.cat((-other, one), dim=-1)


class _Shared(nn.Module):
    """Two heads of queries for each one of keys and values, turned by their positions."""

    def __init__(self, expanded: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, width, bias=False) for width in (16, 8, 8))
        self.out, self.expanded = nn.Linear(16, 8, bias=False), expanded
        self.register_buffer("frequencies", torch.tensor([1.0, 0.1]))

    def repeated(self, x: torch.Tensor) -> torch.Tensor:
        if not self.expanded:
            return x.repeat_interleave(2, dim=1)
        b, heads, n, width = x.shape
        return x[:, :, None].expand(b, heads, 2, n, width).reshape(b, 2 * heads, n, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        angles = torch.arange(n, device=x.device)[:, None] * self.frequencies
        cos, sin = (torch.cat((angles, angles), -1)[None, None].to(x.dtype) for angles in (angles.cos(), angles.sin()))
        q, k, v = (layer(x).view(b, n, -1, 4).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = q * cos + _turned(q) * sin, k * cos + _turned(k) * sin
        scores = q @ self.repeated(k).transpose(2, 3) * 0.5
        y = scores.softmax(-1, dtype=torch.float64).to(q.dtype) @ self.repeated(v)
        return self.out(y.transpose(1, 2).reshape(b, n, -1))


@net(
    (2, 5, 6),
    others=((1, 7, 6), (3, 2, 6)),
    gates={"embed": 8} | {f"blocks.{block}.{name}": width for block in (0, 1) for name, width in (
        ("attend.q", "queries 2"), ("attend.k", "keys"), ("attend.v", "heads 2, values 4"), ("attend.out", 8),
        ("wide", 12), ("back", 8))},
)  # fmt: skip
class grouped_queries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.blocks = nn.Sequential(_Block(8, _Shared(expanded=False)), _Block(8, _Shared(expanded=True)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(x)))


class _Windows(nn.Module):
    """Swin's: windows of 4 x 4 in the batch, a bias per head by relative position, a mask made of sizes."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.qkv, self.proj, self.shift = nn.Linear(8, 24), nn.Linear(8, 8), shift
        self.biases = nn.Parameter(torch.zeros(7 * 7, 2))
        places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        offsets = places[:, :, None] - places[:, None] + 3
        self.register_buffer("relative", offsets[0] * 7 + offsets[1])

    def masks(self, x: torch.Tensor, h: int, w: int) -> torch.Tensor:
        parts = (slice(0, -4), slice(-4, -self.shift), slice(-self.shift, None))
        regions = x.new_zeros((h, w))
        for number, (rows, columns) in enumerate((rows, columns) for rows in parts for columns in parts):
            regions[rows, columns] = number
        regions = regions.view(h // 4, 4, w // 4, 4).permute(0, 2, 1, 3).reshape(-1, 16)
        apart = regions.unsqueeze(1) - regions.unsqueeze(2)
        return apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, h, w, c = x.shape
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        y = x.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        q, k, v = self.qkv(y).reshape(y.shape[0], 16, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        scores = (q * 0.5) @ k.transpose(-2, -1)
        scores = scores + self.biases[self.relative.view(-1)].view(16, 16, -1).permute(2, 0, 1).unsqueeze(0)
        if self.shift:
            masks = self.masks(x, h, w)
            count = masks.shape[0]
            scores = scores.view(y.shape[0] // count, count, 2, 16, 16) + masks.unsqueeze(1).unsqueeze(0)
            scores = scores.view(-1, 2, 16, 16)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, c)
        y = self.proj(y).view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return torch.roll(y, (self.shift, self.shift), (1, 2)) if self.shift else y


@net(
    (2, 3, 8, 8),
    others=((1, 3, 8, 8), (3, 3, 12, 8)),
    gates={"stem": 8} | {f"blocks.{name}": count for name, count in _TRANSFORMER.items()},
)
class shifted_windows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, 8, 1), nn.LayerNorm(8), nn.Linear(8, 3)
        self.blocks = nn.Sequential(_Block(8, _Windows(0)), _Block(8, _Windows(2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.stem(x).permute(0, 2, 3, 1))).mean((1, 2)))


@net((2, 5, 6), others=((1, 7, 6), (3, 2, 6)), gates={"embed": 8, "hidden": 12, "back": 8})
class reads_the_last_token(nn.Module):
    """CLIP's: which token is the last one is up to the data."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.hidden, self.back = nn.Linear(6, 8), nn.Linear(8, 12), nn.Linear(12, 8)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last, y = x[..., 0].argmax(-1), self.embed(x)
        y = self.norm(y + self.back(F.gelu(self.hidden(y))))
        return self.head(y[torch.arange(y.shape[0], device=y.device), last] + y[:, last].mean(1))


@net(
    (2, 5, 6),
    others=((1, 7, 6), (3, 2, 6)),
    gates={"embed": 8, "each.qkv": _PACKED, "each.proj": 8, "alike.qkv": _PACKED, "alike.proj": 8},
)
class masks_by_data(nn.Module):
    """What is attended to is up to the input, for all heads alike or for each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.each = nn.ModuleDict({"qkv": nn.Linear(8, 24), "proj": nn.Linear(8, 8)})
        self.alike = nn.ModuleDict({"qkv": nn.Linear(8, 24), "proj": nn.Linear(8, 8)})

    def attend(self, layers: nn.ModuleDict, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = layers["qkv"](x).reshape(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        return layers["proj"](F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, x = x[:, None, None, :, 0], self.embed(x)
        x = x + self.attend(self.each, x, torch.cat([scores, -scores], 1).expand(-1, -1, x.shape[1], -1))
        x = x + self.attend(self.alike, x, scores >= scores.amin(-1, keepdim=True))
        return self.head(x.mean(1))
