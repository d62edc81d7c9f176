"""What is measured of every net of a comparison."""

from __future__ import annotations

import torch
from torch import nn

from fxprune.compare.tables import as_csv
from fxprune.compare.worker import latency


class Pairs(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert(x.shape[0] > 1, "several pictures")
        return x + 1


def test_batches_that_a_net_does_not_take_are_left_out() -> None:
    found = latency(Pairs(), Pairs(), ((torch.zeros(2, 3, 4, 4),), {}), (8,))
    assert list(found) == ["8", "32"]


def test_all_batches_are_columns() -> None:
    rows = [{"entry": "bar", "latency": {"1": 0.5, "8": 0.25, "32": 0.2}}, {"entry": "wm"}]
    head, first, _ = as_csv(rows).splitlines()
    assert head.endswith("latency_1,latency_8,latency_32,seconds") and first.endswith("0.5,0.25,0.2,")
