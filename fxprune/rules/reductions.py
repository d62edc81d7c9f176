"""Sums, means, extremes over axes."""

from __future__ import annotations

from typing import Any

import torch

from fxprune.ids import Ids, IdTable
from fxprune.rules.registry import Flow, Op, rule

_KEEP = ("sum", "mean", "amax", "amin", "max", "min", "norm", "std", "var", "nansum", "nanmean", "median", "count_nonzero")
_BREAK = ("logsumexp", "prod", "argmax", "argmin", "all", "any")


@rule(*(getattr(torch, name) for name in _KEEP if hasattr(torch, name)), *_KEEP)
@rule(*(getattr(torch, name) for name in _BREAK), *_BREAK)
def reduce(op: Op) -> Any:
    flow = op.flow()
    name = op.node.target if isinstance(op.node.target, str) else getattr(op.node.target, "__name__", "")
    position = 2 if name == "norm" else 1
    dims = op.get("dim", position)
    other = op.find(op.raw(1, "other"))
    if name in ("max", "min") and other is not None:  # torch.max(x, y) is an elementwise maximum
        return Flow(op.table.any(flow.ids, other.ids), flow.zero and other.zero)
    axes = list(range(flow.ids.ndim)) if dims is None else [dims] if isinstance(dims, int) else list(dims)
    axes = [int(axis) % flow.ids.ndim for axis in axes] if flow.ids.ndim else []
    ids = flow.ids
    for axis in axes:
        ids = any_over(op.table, ids, axis)
    keep = isinstance(_first(op.out), torch.Tensor) and _first(op.out).ndim == flow.ids.ndim
    if not keep:
        ids = ids.reshape([size for axis, size in enumerate(ids.shape) if axis not in axes])
    answer = Flow(ids, flow.zero and name in _KEEP)
    if isinstance(op.out, (tuple, list)):  # values and indices
        return answer, Flow(ids, zero=False)
    return answer


def any_over(table: IdTable, ids: Ids, axis: int) -> Ids:
    """*any* over one axis, which keeps size 1."""
    if ids.shape[axis] == 1:
        return ids
    return table.any(*(ids.take([k], axis) for k in range(ids.shape[axis])))


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, (tuple, list)) else value
