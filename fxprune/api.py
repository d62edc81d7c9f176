"""The public calls: lists of passes, nothing else."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from fxprune.budget.target import Target
from fxprune.inspection import Inspection, describe
from fxprune.passes.analysis import analyse
from fxprune.passes.compile import compile_slim
from fxprune.wrapped import Wrapped


def wrap(
    model: nn.Module,
    budget: float | Mapping[str, float],
    *,
    example_inputs: Any = None,
    metric: str = "volume",
    ignore: Sequence[str] = (),
    leaf: Sequence[str | type] = (),
) -> Wrapped:
    """A copy of ``model`` with a gate on every prunable channel."""
    target = Target.of(budget, metric)
    analysis = analyse(model, example_inputs, ignore=tuple(ignore), leaf=tuple(leaf))
    return Wrapped(model, analysis, target, {"ignore": tuple(ignore), "leaf": tuple(leaf)})


def export(wrapped: Wrapped) -> fx.GraphModule:
    """The slim module."""
    if not wrapped.hardened:
        wrapped = copy.deepcopy(wrapped).harden()
    present = wrapped.analysis.costs.physical(torch.from_numpy(wrapped.masks()).double()).numpy() > 0
    slim, joins = compile_slim(wrapped.analysis.channels, wrapped._model, present, wrapped.gate_values())
    object.__setattr__(slim, "joins", joins)
    return slim


def inspect(
    model: nn.Module, example_inputs: Any, *, ignore: Sequence[str] = (), leaf: Sequence[str | type] = ()
) -> Inspection:
    """Which convolutions can be pruned, what each costs, which are guarded or frozen, and why.

    ``example_inputs`` is a tensor, a tuple of positional or a dict of keyword arguments. ``ignore`` names convolutions
    (shell patterns) that keep all their channels, ``leaf`` submodules that are not looked into. The model is untouched.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1))
    >>> [(layer.name, layer.ungated) for layer in inspect(net, torch.zeros(1, 3, 4, 4)).layers]
    [('0', None), ('1', 'writes a model output')]
    """
    analysis = analyse(model, example_inputs, ignore=tuple(ignore), leaf=tuple(leaf))
    return describe(analysis, type(model).__name__, example_inputs)
