"""``connectivity="auto"`` takes the net that measures fastest."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch

import fxprune
from examples.models import resnet8
from fxprune.latency import auto
from fxprune.wrapped import Wrapped

X = torch.zeros(2, 3, 16, 16)


@pytest.fixture
def wrapped() -> Wrapped:
    torch.manual_seed(0)
    net = fxprune.wrap(resnet8(width=8).eval(), 1 / 2, example_inputs=X)
    return net.harden({name: torch.rand(len(gate)) for name, gate in net.gates.items()})


@pytest.mark.parametrize(("fastest", "gain", "like"), [(0, 0.5, "mixed"), (3, 0.5, "dense"), (3, 0.99, "mixed")])
def test_whole_nets_decide(
    wrapped: Wrapped, monkeypatch: pytest.MonkeyPatch, fastest: int, gain: float, like: str
) -> None:
    """And a gain that may be noise is none."""

    def timed(nets: Any, inputs: Any, rounds: int) -> list[list[float]]:
        assert len(nets) == 4
        return [[gain if number == fastest else 1.0] * rounds for number in range(len(nets))]

    monkeypatch.setattr(auto, "in_turns", timed)
    found = fxprune.export(wrapped, connectivity="auto")
    expected = fxprune.export(wrapped, connectivity=like)
    assert found.report.widths == expected.report.widths and found.report.after == expected.report.after
    assert expected.report.after["volume"] >= fxprune.export(wrapped).report.after["volume"]


@pytest.mark.parametrize("chosen", [1, 2])  # join by join, and everywhere
def test_the_cheapest_layer_of_a_join_may_be_widened_alone(
    wrapped: Wrapped, monkeypatch: pytest.MonkeyPatch, chosen: int
) -> None:
    """Where a block has a convolution on its shortcut, the other one is added to it: nothing is copied together."""

    def timed(nets: Any, inputs: Any, rounds: int) -> list[list[float]]:
        return [[1.0 if number == chosen else 2.0] * rounds for number in range(len(nets))]

    def by_op(nets: Any, inputs: Any, rounds: int) -> list[dict[str, float]]:
        return [defaultdict(lambda took=took: took) for took in (2.0, 1.0, 3.0)]  # type: ignore[misc]

    monkeypatch.setattr(auto, "in_turns", timed)
    monkeypatch.setattr(auto, "by_op", by_op)
    mixed, between, dense = (fxprune.export(wrapped, connectivity=each).report for each in ("mixed", "auto", "dense"))
    assert between.error <= 1e-9
    widths = {name: (mixed.widths[name], width, dense.widths[name]) for name, width in between.widths.items()}
    assert all(few <= some <= most for few, some, most in widths.values())
    wider = {name for name, (few, some, _) in widths.items() if some > few}
    shortcuts = {name for name in widths if "shortcut" in name}
    assert shortcuts == {"stage2.shortcut.0", "stage3.shortcut.0"} <= wider
    for name in shortcuts:  # and not the block's own second layer
        assert name.replace("shortcut.0", "conv2") not in wider
