"""Models that ask what they were given."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import pytest
import torch
from torch import nn

from fxprune.tracing import graph_module, trace


@singledispatch
def doubled(x: Any) -> Any:
    raise TypeError(type(x))


@doubled.register
def _(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def is_a_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def is_a_scripted_tensor(x: Any) -> bool:
    return bool(torch.jit.isinstance(x, torch.Tensor))


def is_a_scripted_union(x: Any) -> bool:
    return bool(torch.jit.isinstance(x, (list[torch.Tensor], torch.Tensor)))


def is_dispatched(x: Any) -> bool:
    return doubled(x) is not None


class Asking(nn.Module):
    def __init__(self, question: Callable[[Any], bool]) -> None:
        super().__init__()
        self.conv, self.question = nn.Conv2d(3, 4, 1), question

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        return doubled(x) if self.question(x) else x


@pytest.mark.parametrize(
    "question", [is_a_tensor, torch.is_tensor, is_a_scripted_tensor, is_a_scripted_union, is_dispatched]
)
def test_a_tensor_is_one_for_whoever_asks(question: Callable[[Any], bool]) -> None:
    model, x = Asking(question).double(), torch.randn(2, 3, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(graph_module(trace(model, x), model)(x), doubled(model.conv(x)), rtol=0, atol=0)
