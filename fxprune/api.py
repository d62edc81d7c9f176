"""The public calls: lists of passes, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from fxprune.inspection import Inspection, describe
from fxprune.passes.analysis import analyse


def inspect(
    model: nn.Module, example_inputs: Any, *, ignore: Sequence[str] = (), leaf: Sequence[str | type] = ()
) -> Inspection:
    """Which convolutions can be pruned, what each costs, which are guarded or frozen, and why.

    ``example_inputs`` is a tensor, a tuple of positional or a dict of keyword arguments. ``ignore`` names convolutions
    (shell patterns) that keep all their channels, ``leaf`` submodules that are not looked into. The model is not touched.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1))
    >>> [(layer.name, layer.ungated) for layer in inspect(net, torch.zeros(1, 3, 4, 4)).layers]
    [('0', None), ('1', 'writes a model output')]
    """
    analysis = analyse(model, example_inputs, ignore=tuple(ignore), leaf=tuple(leaf))
    return describe(analysis, type(model).__name__, example_inputs)
