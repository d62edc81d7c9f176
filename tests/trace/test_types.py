"""Models that ask what they were given."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fxprune
from fxprune.trace import graph_module, trace


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


@torch.jit.script
def scripted(x: torch.Tensor, slope: float) -> torch.Tensor:
    return torch.where(x > 0, x, x * slope)


def numpy_number(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x * np.log(4.0) + np.float32(0.5)


def script_function(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return scripted(x, 0.1)


def name_of_type(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if "Double" in x.type() else x


def refused_keyword(net: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        return net.act(x, lengths=None)
    except TypeError:
        return net.act(x)


class Habit(nn.Module):
    def __init__(self, run: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.act = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1), nn.LeakyReLU()
        self.run, self.names = run, {"a": 1}.keys()  # which cannot be copied

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.run(self, self.a(x)))


@pytest.mark.parametrize("run", [numpy_number, script_function, name_of_type, refused_keyword])
def test_habits(run: Any) -> None:
    model, x = Habit(run).double(), torch.randn(2, 3, 5, 4, dtype=torch.float64)
    wrapped = fxprune.wrap(model, 1 / 2, example_inputs=x)
    torch.testing.assert_close(wrapped(x), model(x))
    wrapped.set_masks({"a": torch.tensor([True, False, True, True, False, False])})
    torch.testing.assert_close(fxprune.export(wrapped)(x), wrapped(x))
