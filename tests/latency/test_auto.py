"""``connectivity="auto"`` takes the net that measures fastest."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import fxprune
from examples.models import resnet8
from fxprune.gated.wrapped import Wrapped
from fxprune.latency import auto

X = torch.zeros(2, 3, 16, 16)


@pytest.fixture
def wrapped() -> Wrapped:
    torch.manual_seed(0)
    net = fxprune.wrap(resnet8(width=8).eval(), 1 / 2, example_inputs=X)
    return net.harden({name: torch.rand(len(gate)) for name, gate in net.gates.items()})


def _took(*seconds: float) -> Callable[..., list[dict[str, float]]]:
    """Every op of the mixed net, of the one with cheap layers widened, and of the one with all of them."""
    return lambda nets, inputs, rounds: [defaultdict(lambda took=took: took) for took in seconds]  # type: ignore[misc]


@pytest.mark.parametrize(("fastest", "gain", "like"), [(0, 0.5, "mixed"), (-1, 0.5, "dense"), (-1, 0.99, "mixed")])
def test_whole_nets_decide(
    wrapped: Wrapped, monkeypatch: pytest.MonkeyPatch, fastest: int, gain: float, like: str
) -> None:
    """And a gain that may be noise is none."""

    def timed(nets: Any, inputs: Any, rounds: int) -> list[list[float]]:
        return [[gain if net is nets[fastest] else 1.0] * rounds for net in nets]

    monkeypatch.setattr(auto, "in_turns", timed)
    monkeypatch.setattr(auto, "by_op", _took(1.0, 2.0, 3.0))
    found = fxprune.export(wrapped, connectivity="auto")
    expected = fxprune.export(wrapped, connectivity=like)
    assert found.report.widths == expected.report.widths and found.report.after == expected.report.after
    assert expected.report.after["volume"] >= fxprune.export(wrapped).report.after["volume"]


class Slow(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return self.net(x)  # type: ignore[no-any-return]


def test_nets_are_timed_as_they_will_run(wrapped: Wrapped) -> None:
    """Here, by somebody who makes all of them slow but the last one, that of regular blocks."""
    mixed, dense = (fxprune.export(wrapped, connectivity=each).report.widths for each in ("mixed", "dense"))
    seen: list[nn.Module] = []

    def prepare(net: nn.Module) -> nn.Module:
        seen.append(net)
        return Slow(net) if len(seen) < 3 else net

    found = fxprune.export(wrapped, connectivity="auto", prepare=prepare).report
    assert len(seen) == 3 and found.widths == dense != mixed and found.error <= 1e-9


def test_a_compiler_prepares() -> None:
    torch.manual_seed(0)
    net = fxprune.wrap(resnet8(width=4).eval(), 1 / 2, example_inputs=X)
    net.harden({name: torch.rand(len(gate)) for name, gate in net.gates.items()})
    slim = fxprune.export(net, connectivity="auto", prepare=partial(torch.compile, backend="eager"))
    assert isinstance(slim, torch.fx.GraphModule) and slim.report.error <= 1e-9  # and nothing of the compiler


def test_only_auto_prepares(wrapped: Wrapped) -> None:
    with pytest.raises(fxprune.FxPruneError, match='write connectivity="auto"'):
        fxprune.export(wrapped, prepare=torch.compile)


def test_the_cheapest_layer_of_a_join_may_be_widened_alone(
    wrapped: Wrapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a block has a convolution on its shortcut, the other one is added to it: nothing is copied together."""

    def timed(nets: Any, inputs: Any, rounds: int) -> list[list[float]]:
        assert len(nets) == 3  # join by join and everywhere are the same net here
        return [[1.0 if number == 1 else 2.0] * rounds for number in range(len(nets))]

    monkeypatch.setattr(auto, "in_turns", timed)
    monkeypatch.setattr(auto, "by_op", _took(2.0, 1.0, 3.0))
    mixed, between, dense = (fxprune.export(wrapped, connectivity=each).report for each in ("mixed", "auto", "dense"))
    assert between.error <= 1e-9
    widths = {name: (mixed.widths[name], width, dense.widths[name]) for name, width in between.widths.items()}
    assert all(few <= some <= most for few, some, most in widths.values())
    wider = {name for name, (few, some, _) in widths.items() if some > few}
    shortcuts = {name for name in widths if "shortcut" in name}
    assert shortcuts == {"stage2.shortcut.0", "stage3.shortcut.0"} <= wider
    for name in shortcuts:  # and not the block's own second layer
        assert name.replace("shortcut.0", "conv2") not in wider
