"""Squeeze-and-excite and attention of all kinds."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.gates import SCALES
from tests.models.case import cb, cbr, net


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


@net()
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


@net()
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


@net()
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


@net()
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


@net(others=((1, 3, 8, 10), (3, 3, 8, 10)))
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
