"""The counting that budgets are held against, and the smallest budget that an error tells."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxprune
from budgets import counted, cut, judged, smallest
from fxprune.errors import OptionError

TOKENS = 5


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.attention = nn.Linear(6, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


X = (torch.randn(1, TOKENS, 6),)


def test_products_of_attention_are_counted() -> None:
    linear = TOKENS * (6 * 8 + 8 * 3 * 8 + 8 * 8) + 8 * 3
    products = 2 * TOKENS * TOKENS * 8
    assert counted(Attends().eval(), X) == {
        "flops": 2 * (linear + products),
        "params": 6 * 8 + 8 + 3 * (8 * 8 + 8) + 8 * 8 + 8 + 8 * 3 + 3,
    }


def test_the_smallest_budget_that_an_error_tells_can_be_met() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    args = (torch.randn(1, 3, 8, 8),)
    with pytest.raises(OptionError) as raised:
        fxprune.wrap(net, 1e-4, metric="flops", example_inputs=args).harden()
    least = smallest(raised.value)
    assert least is not None
    row = {"share": least, **cut(net, args, counted(net, args), "flops", least)}
    assert row["counted"] <= least and judged(row) == ""


def test_what_is_wrong_is_told() -> None:
    row = {"share": 0.5, "float32": 1e-7, "float64": 1e-16}
    assert judged({**row, "counted": 0.5}) == ""
    assert judged({**row, "counted": 0.51}) == "over the budget"
    assert judged({**row, "counted": 0.4}) == "0.800 of it used"
    assert judged({**row, "counted": 0.5, "float64": 1e-3}) == "inexact"
