"""Python's collector is left as it was found."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import fxprune
from fxprune.errors import FxPruneError


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_as_it_was(on: bool) -> None:
    try:
        (gc.enable if on else gc.disable)()
        fxprune.export(fxprune.wrap(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)), 1 / 2,
                                    example_inputs=torch.zeros(1, 3, 4, 4)))  # fmt: skip
        assert gc.isenabled() == on
        with pytest.raises(FxPruneError):
            fxprune.wrap(nn.ReLU(), 1 / 2, example_inputs=torch.zeros(1, 3, 4, 4))
        assert gc.isenabled() == on
    finally:
        gc.enable()
