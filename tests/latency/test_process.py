"""Nets that are timed in a process of their own."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import torch
from torch import nn

import fxprune
from examples.models import resnet8
from fxprune.latency import process

X = torch.zeros(2, 3, 16, 16)


def small() -> nn.Module:
    return resnet8(width=8).eval()


def test_nets_are_timed_in_a_process_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many threads, and with what is done only once per call done only once."""
    nets = [fxprune.export(fxprune.wrap(small(), share, example_inputs=X)).eval() for share in (1 / 8, 1.0)]
    monkeypatch.setattr("fxprune.latency.process.in_turns", lambda *_: pytest.fail("timed here"))
    with process.own_process() as timed:
        for rounds in (5, 3):
            slim, full = timed(nets, ((X,), {}), rounds)
            assert len(slim) == len(full) == rounds and min(*slim, *full) > 0


def test_nets_that_no_other_process_can_read_are_timed_here() -> None:
    class Here(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    net = nn.Sequential(nn.Conv2d(3, 4, 1), Here(), nn.Conv2d(4, 2, 1))
    slim = fxprune.export(fxprune.wrap(net, 1.0, example_inputs=X, leaf=[Here])).eval()
    other = fxprune.export(fxprune.wrap(small(), 1.0, example_inputs=X)).eval()
    with process.own_process() as timed:
        for net in (slim, slim, other):  # nor does it matter to the next ones
            assert len(timed([net], ((X,), {}), 3)[0]) == 3


def test_a_process_that_dies_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed by the system, say: what is left is timed here, and nobody hears of a broken pipe."""
    net = fxprune.export(fxprune.wrap(small(), 1.0, example_inputs=X)).eval()
    started: list[subprocess.Popen[str]] = []

    class Noted(subprocess.Popen[str]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    with process.own_process() as timed:
        for _ in range(3):
            assert len(timed([net], ((X,), {}), 3)[0]) == 3
            started[0].kill()
    assert len(started) == 1
