"""Attention that cannot be followed: it keeps its channels, and ``inspect`` says which line does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxprune
from tests.exactness import call, check_export, error, random_masks


class ByData(nn.Module):
    """As many heads as the input says."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = 2 if float(x.sum()) > 0 else 4
        q, k, v = self.qkv(x).reshape(*x.shape[:2], 3, heads, 8 // heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class PickedByData(nn.Module):
    """Which rows of the projection are queries, keys and values is up to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.qkv(x)
        made = made[:, :, made.mean((0, 1)).argsort()]
        return self.proj(F.scaled_dot_product_attention(*made.chunk(3, dim=-1)))


class WeightByData(nn.Module):
    """One parameter for all projections, its rows taken in an order that the input gives."""

    def __init__(self) -> None:
        super().__init__()
        self.packed, self.proj = nn.Parameter(torch.randn(24, 8)), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = x.mean((0, 1)).argsort()
        rows = (order[:, None] * 3 + torch.arange(3, device=x.device)).flatten()
        q, k, v = F.linear(x, self.packed[rows]).chunk(3, dim=-1)
        return self.proj(F.scaled_dot_product_attention(q, k, v))


class Around(nn.Module):
    """A stream with an MLP, and attention that nobody can follow."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.embed, self.attention = nn.Linear(6, 8), attention
        self.wide, self.back, self.head = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        x = x + self.attention(x)
        return self.head((x + self.back(F.gelu(self.wide(x)))).mean(1))


X = torch.randn(2, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("attention", "op", "layers"),
    [
        (ByData, "ByData (attention)", ("embed",)),
        (PickedByData, "_operator.getitem", ("attention.qkv",)),
        (WeightByData, "torch._C._nn.linear", ("embed",)),
    ],
)
def test_what_cannot_be_followed_is_frozen_and_named(attention: Any, op: str, layers: tuple[str, ...]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Around(attention()).double().eval()
    seen = fxprune.inspect(model, X)
    (freeze,) = (freeze for freeze in seen.freezes if freeze.op == op)
    assert set(layers) <= set(freeze.layers)
    assert str(freeze.source).startswith(f"{Path(__file__)}:")
    wrapped = fxprune.wrap(model, budget=0.9, example_inputs=X)
    assert {"wide", "back"} & set(wrapped.gates) == {"wide", "back"} - set(freeze.layers)
    assert error(call(wrapped, (X,)), call(model, (X,))) < 1e-12
    for seed in range(3):
        wrapped.set_masks(random_masks(wrapped, 0.5, torch.Generator().manual_seed(seed)))
        check_export(wrapped, [(X,), (-X[:1],), (X.repeat(2, 2, 1),)])
