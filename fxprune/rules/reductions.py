"""Sums, means, extremes over axes."""

from __future__ import annotations

from typing import Any

import torch

from fxprune.channels.ids import Ids, IdTable
from fxprune.rules.joins import any_of, both
from fxprune.rules.operands import GridPiece, Piece, Slim
from fxprune.rules.registry import Flow, Op, name_of, rule

_KEEP = ("sum", "mean", "amax", "amin", "max", "min", "norm", "std", "var", "nansum", "nanmean", "median")
_TWICE = ("var_mean", "std_mean")  # two results of this kind
_NORMS = ("norm", "linalg_vector_norm", "linalg_norm")  # whose second argument is which norm
_BREAK = ("logsumexp", "prod", "argmax", "argmin", "all", "any")


@rule(
    *(getattr(torch, name) for name in _KEEP + _TWICE + _BREAK), *_KEEP, *_BREAK,
    torch.linalg.vector_norm, torch.linalg.norm,
)  # fmt: skip
def reduce(op: Op) -> Any:
    name = name_of(op.node)
    if _elementwise(op):  # torch.max(x, y); y may be a parameter
        operands = [op.find(op.raw(0)), op.find(op.raw(1, "other"))]
        return Flow(any_of(op, [flow for flow in operands if flow is not None]), clean=None not in operands)
    flow = op.flow()
    axes = reduced_axes(op, flow.ids.ndim)
    ids = _without_positions(op.table, flow.ids, axes)
    for axis in axes:
        ids = any_over(op.table, ids, axis)
    keep = isinstance(_first(op.out), torch.Tensor) and _first(op.out).ndim == flow.ids.ndim
    if not keep:
        ids = ids.reshape([size for axis, size in enumerate(ids.shape) if axis not in axes])
    answer = Flow(ids, clean=name not in _BREAK, scaler=flow.scaler)
    if name in _TWICE:
        return answer, answer
    if isinstance(op.out, (tuple, list)):  # values and indices
        return answer, Flow(ids, clean=False)
    return answer


def _elementwise(op: Op) -> bool:
    return isinstance(op.value(1, "other"), torch.Tensor)


def reduced_axes(op: Op, rank: int) -> list[int]:
    name = name_of(op.node)
    dims = op.get("dim", 2 if name in _NORMS else 1)
    everything = dims is None or isinstance(dims, bool)  # x.std(False): whether to correct it
    axes = list(range(rank)) if everything else [dims] if isinstance(dims, int) else list(dims)
    return [int(axis) % rank for axis in axes] if rank else []


def _without_positions(table: IdTable, ids: Ids, axes: list[int]) -> Ids:
    """Tokens beside a class token have ids of two kinds. Once channels are summed nothing tells the kinds apart, and a
    mask with an entry per token would fit one image size only."""
    if sum(size > 1 for size in ids.shape) < 2:
        return ids
    collapsed = table.collapse(ids)
    return collapsed if any(collapsed.shape[axis] > 1 for axis in axes) else ids


def any_over(table: IdTable, ids: Ids, axis: int) -> Ids:
    """*any* over one axis, which keeps size 1."""
    if ids.shape[axis] == 1:
        return ids
    return table.any(*(ids.take([k], axis) for k in range(ids.shape[axis])))


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, (tuple, list)) else value


@reduce.emitter
def _reduce(op: Op, slim: Slim) -> Piece | GridPiece | None:
    name = name_of(op.node)
    if _elementwise(op):
        return both(op, slim)
    source = op.inputs[0]
    piece = slim.piece(source)
    if piece is None:
        return None
    rank = source.meta["value"].ndim
    axes = reduced_axes(op, rank)
    if piece.axis is None or (piece.axis in axes and name != "sum"):
        return Piece(slim.replay(op.node))
    node = slim.same(op, {source: piece.node})
    if piece.axis in axes:
        return Piece(node)
    kept = _first(op.out).ndim == rank
    axis = piece.axis if kept else piece.axis - sum(other < piece.axis for other in axes)
    return Piece(node, axis, piece.positions)
