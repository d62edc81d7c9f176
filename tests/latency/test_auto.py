"""``connectivity="auto"`` takes the net that measures fastest."""

from __future__ import annotations

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


@pytest.mark.parametrize(("fastest", "like"), [(0, "mixed"), (2, "dense")])
def test_whole_nets_decide(wrapped: Wrapped, monkeypatch: pytest.MonkeyPatch, fastest: int, like: str) -> None:
    def timed(nets: Any, inputs: Any, rounds: int) -> list[list[float]]:
        assert len(nets) == 3
        return [[1.0 if number == fastest else 2.0] * rounds for number in range(len(nets))]

    monkeypatch.setattr(auto, "in_turns", timed)
    found = fxprune.export(wrapped, connectivity="auto")
    expected = fxprune.export(wrapped, connectivity=like)
    assert found.report.widths == expected.report.widths and found.report.after == expected.report.after
    assert expected.report.after["volume"] >= fxprune.export(wrapped).report.after["volume"]
