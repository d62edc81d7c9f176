"""What slim nets are timed against computes what it should."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fxprune
from algorithm2 import algorithm2
from examples.models import resnet8, wrn
from fxprune.gated.wrapped import Wrapped
from limit import cut_at_joins, limit

X = torch.randn(2, 3, 12, 16, dtype=torch.float64)


@pytest.fixture(params=[*((seed, "resnet8") for seed in range(3)), *((seed, "wrn") for seed in range(3))])
def wrapped(request: pytest.FixtureRequest) -> Wrapped:
    seed, name = request.param
    torch.manual_seed(seed)
    model = resnet8(width=8) if name == "resnet8" else wrn(16, 1)  # with joins of joins
    net = fxprune.wrap(model.double().eval(), 1 / 4, example_inputs=X)
    return net.harden({name: torch.rand(len(gate)) for name, gate in net.gates.items()})


def test_algorithm_2_computes_what_the_slim_net_computes(wrapped: Wrapped) -> None:
    torch.testing.assert_close(algorithm2(wrapped)(X), fxprune.export(wrapped)(X), rtol=1e-9, atol=1e-9)


class Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


MOVED = {"index_select", "index_add", "scatter_add", "cat", "slice", "clone"}


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_the_limit_for_a_compiler_is_one_graph(wrapped: Wrapped, memory: torch.memory_format) -> None:
    """What is not behind a join computes what the slim net computes; nothing is left out, nothing moved."""
    slim = fxprune.export(wrapped.to(memory_format=memory))
    cut, inputs = cut_at_joins(slim, X)
    with torch.no_grad():
        with Calls() as own:
            slim(X)
        with Calls() as least:
            *sums, out = cut(*inputs)
    for op in ("convolution", "native_batch_norm", "relu", "addmm", "mean"):
        assert least.seen[op] == own.seen[op], op
    joins = sum(count for kind, count in slim.report.joins.items() if kind != "through")
    assert len(sums) >= joins == least.seen["add"] and out.shape == slim(X).shape
    assert not MOVED & set(least.seen)
    assert not torch.allclose(out, slim(X)) or not joins


def test_the_limit_does_the_same_work_without_moving_channels(wrapped: Wrapped) -> None:
    slim = fxprune.export(wrapped)
    replay = limit(slim, X)
    with torch.no_grad():
        with Calls() as own:
            slim(X)
        with Calls() as least:
            replay(X)
    for op in ("convolution", "native_batch_norm", "relu", "addmm", "mean"):
        assert least.seen[op] == own.seen[op], op
    joins = {kind: count for kind, count in slim.report.joins.items() if kind != "through"}  # a dead side adds nothing
    assert least.seen["add"] == sum(joins.values())
    assert not MOVED & set(least.seen)
