"""Ops that look at one element at a time: channels pass through; behind some ops a dead one is no longer zero."""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import fx, nn

from fxprune.channels import Affine
from fxprune.channels.ids import FIXED, ZERO, Ids, IdTable, distinct, immortal
from fxprune.rules.operands import Piece, Slim, per_channel_function, per_channel_module, same_op, whole_op
from fxprune.rules.registry import Cut, Flow, Op, rule, unwritten


def _targets(names: str, *others: Hashable) -> list[Hashable]:
    """All spellings of these names (``torch.relu``, ``F.relu``, ``x.relu()``), and ``others``."""
    targets: dict[Hashable, None] = dict.fromkeys(others)
    for name in names.split():
        targets.update((getattr(owner, name), None) for owner in (torch, F) if hasattr(owner, name))
        if hasattr(torch.Tensor, name):
            targets[name] = None
    return list(targets)


KEEPS_ZERO = _targets(
    """relu relu6 leaky_relu rrelu elu selu celu gelu silu mish hardswish tanh tanhshrink softsign hardshrink softshrink
    sin tan asin atan sinh asinh erf abs absolute neg negative positive sign sgn sqrt square floor ceil round trunc fix
    frac expm1 log1p nan_to_num conj real imag dropout dropout1d dropout2d dropout3d feature_dropout contiguous clone
    detach to float double half bfloat16 type cpu cuda requires_grad_""",
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.RReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish,
    nn.Tanh, nn.Tanhshrink, nn.Softsign, nn.Hardshrink, nn.Softshrink, nn.Dropout, nn.Dropout1d, nn.Dropout2d,
    nn.Dropout3d, operator.neg, operator.pos, operator.abs, round,
)  # fmt: skip
BREAKS_ZERO = _targets(
    """sigmoid hardsigmoid logsigmoid softplus exp exp2 log log2 log10 cos acos cosh acosh atanh erfc rsqrt reciprocal
    threshold logit digamma lgamma logical_not isnan isinf isfinite bitwise_not bool int long""",
    nn.Sigmoid, nn.Hardsigmoid, nn.LogSigmoid, nn.Softplus, nn.Threshold, operator.not_, operator.invert,
)  # fmt: skip


@rule(*KEEPS_ZERO)
def keeps_zero(op: Op) -> Flow:
    return unwritten(op.flow())


@rule(*BREAKS_ZERO)
def breaks_zero(op: Op) -> Flow:
    return Flow(op.flow().ids, clean=False, scaler=True)


@rule(*_targets("alpha_dropout feature_alpha_dropout", nn.AlphaDropout, nn.FeatureAlphaDropout))
def alpha_dropout(op: Op) -> Flow:
    """In training, zeros become other numbers."""
    return replace(op.flow(), clean=False, writer=None)


@rule("type_as")
def type_as(op: Op) -> Flow:
    """Only the dtype of the other tensor is read."""
    return unwritten(op.flow())


@rule(nn.Identity)
def identity(op: Op) -> Flow:
    return op.flow() if len(op.node.users) == 1 else unwritten(op.flow())  # other readers want what is not gated yet


@rule(nn.PReLU, F.prelu, torch.prelu, "prelu")
def prelu(op: Op) -> Flow | None:
    flow = op.flow()
    if op.find(op.raw(1, "weight")) is not None:
        return None  # computed from the input
    if _width(op) > 1:
        note_affine(op, flow, 1, 1)
    return unwritten(flow)


@rule(torch.clamp, torch.clip, "clamp", "clip", "clamp_min", "clamp_max", F.hardtanh, nn.Hardtanh)
def clamp(op: Op) -> Flow:
    """Zero stays zero exactly when it lies within the bounds."""
    low, high = -1.0, 1.0
    if op.node.target in ("clamp_min", "clamp_max"):
        bound = op.value(1, "min", "max")
        low, high = (bound, float("inf")) if op.node.target == "clamp_min" else (float("-inf"), bound)
    elif isinstance(op.module, nn.Hardtanh):
        low, high = op.module.min_val, op.module.max_val
    elif op.node.target is F.hardtanh:
        low, high = op.get("min_val", 1, -1.0), op.get("max_val", 2, 1.0)
    else:
        low, high = op.get("min", 1), op.get("max", 2)
        low, high = float("-inf") if low is None else low, float("inf") if high is None else high
    inside = isinstance(low, (int, float)) and isinstance(high, (int, float)) and low <= 0 <= high
    ids = op.flow().ids
    for bound in op.inputs[1:]:
        ids = also_reads(op.table, ids, op.find(bound))
    return replace(op.flow(), ids=ids, clean=inside, writer=None)


@rule(torch.pow, "pow", operator.pow, "__pow__", "__rpow__")
def power(op: Op) -> Flow:
    """If the exponent is learned, or the base is fixed, zero may become any number."""
    base, exponent = (op.find(op.raw(position, name)) for position, name in enumerate(("input", "exponent")))
    number = op.value(1, "exponent")
    if base is None:
        return Flow(op.flow(1, "exponent").ids, clean=False)
    if isinstance(number, (int, float)):
        return replace(base, clean=number > 0, writer=None)
    return Flow(also_reads(op.table, base.ids, exponent), clean=False)  # a base of zero may give infinity


@rule(torch.masked_fill, "masked_fill")
def masked_fill(op: Op) -> Flow:
    flow, mask, value = op.flow(), op.find(op.raw(1, "mask")), op.get("value", 2)
    clean = isinstance(value, (int, float)) and value == 0
    return Flow(also_reads(op.table, flow.ids, mask), clean, flow.scaler)


def note_affine(op: Op, flow: Flow, axis: int, count: int, groups: int = 1, *, cut: bool = True) -> None:
    """A module with ``count`` parameters per channel of ``axis``; without any, too: whoever cuts it must know of all of
    its calls. They stay whole unless that is where channels lie."""
    ids = flow.along(axis, op.table, op.out.shape[axis]).reshape(groups, -1)
    count = count if cut and flow.axis == axis else 0
    op.notes.affines.append(Affine(op.node, str(op.node.target), ids, count, np.unique(ids)))


def vectors(op: Op, flow: Flow, constant: fx.Node, of_heads: npt.NDArray[np.bool_]) -> Cut | None:
    """The vectors of a functional norm: one entry per channel of axis 1."""
    value = constant.meta["value"]
    cut = flow.axis == 1 and value.ndim == 1 and value.numel() > 1
    return Cut(flow.ids.reshape(1, -1)) if cut else None


def padded(ids: Ids) -> bool:
    """Has the model padded this tensor with channels of zeros?"""
    return bool((ids == ZERO).any())


def not_zero(op: Op, ids: Ids) -> Ids:
    """Behind an op that turns zeros into other numbers, channels that the model padded with zeros carry data.

    They live as long as the tensor that was padded; at least one channel of that tensor has to stay alive.
    """
    if not padded(ids):
        return ids
    others = np.unique(ids[ids != ZERO])
    if others.size == 0 or bool(immortal(others).any()):
        return np.where(ids == ZERO, FIXED, ids)
    op.notes.sized.append((op.node, others))
    return np.where(ids == ZERO, op.table.mix(others[None], rows=1, owner=op.node.name), ids)


def also_reads(table: IdTable, ids: Ids, other: Flow | None) -> Ids:
    """As alive as ``ids``, but ``other`` is needed too: a condition chooses values without carrying any."""
    if other is None or bool(immortal(other.ids).all()):
        return ids
    return table.all(ids, table.any(ids, other.ids))


_SOFTMAX = _targets("softmax log_softmax softmin cumsum", nn.Softmax, nn.LogSoftmax, nn.Softmin)


@rule(*_SOFTMAX, nn.Softmax2d, F.normalize, F.local_response_norm, nn.LocalResponseNorm)
def along_axis(op: Op) -> Flow:
    """Reads a whole axis. Channels on another axis pass through; along their own axis every living one is needed."""
    norm = op.node.target in (F.normalize, F.local_response_norm) or isinstance(op.module, nn.LocalResponseNorm)
    return share_statistics(op, statistics_axes(op), clean=norm, scaler=not norm)


def statistics_axes(op: Op) -> list[int]:
    if isinstance(op.module, (nn.Softmax2d, nn.LocalResponseNorm)) or op.node.target is F.local_response_norm:
        return [op.out.ndim - 3 if isinstance(op.module, nn.Softmax2d) else 1]
    position, default = (2, 1) if op.node.target is F.normalize else (1, None)
    dim = op.get("dim", position, default)
    dims = range(op.out.ndim) if dim is None else dim if isinstance(dim, (tuple, list)) else [dim]
    return [int(axis) % op.out.ndim for axis in dims]


def share_statistics(op: Op, axes: list[int], *, clean: bool, scaler: bool = False) -> Flow:
    """Every element depends on all others along ``axes``: to compute one, all living ones are needed."""
    flow = op.flow()
    axes = [axis for axis in axes if flow.ids.shape[axis] > 1]
    ids = flow.ids if clean else not_zero(op, flow.ids)
    if axes:
        kept = [axis for axis in range(ids.ndim) if axis not in axes]
        groups = ids.transpose(*kept, *axes).reshape(-1, math.prod(ids.shape[axis] for axis in axes))
        different, which = distinct(groups)  # all positions of a map have the same ids
        statistics = op.table.mix(different, rows=1, owner=op.node.name)
        ids = op.table.all(
            ids, statistics[which].reshape([1 if axis in axes else ids.shape[axis] for axis in range(ids.ndim)])
        )
        if not clean and statistics.size > 1 and not op.table.is_grid(ids):
            # A mask has one entry for all positions of a channel, and a dead one becomes a number by its statistics.
            ids = op.table.collapse(ids)
            every = op.table.any(*statistics.reshape(-1, 1)).reshape((1,) * ids.ndim)
            ids = also_reads(op.table, ids, Flow(every))
    return Flow(ids, clean, scaler or flow.scaler, filled=not clean and padded(flow.ids))


@type_as.emitter
def _type_as(op: Op, slim: Slim) -> Piece | None:
    piece, other = slim.piece(op.node.args[0]), op.raw(1, "other")
    if piece is None:
        return None
    like = slim.piece(other) if slim.flow(other) is not None else Piece(slim.argument(other))
    call = slim.graph.call_method
    node = call("to", (piece.node, op.out.dtype)) if like is None else call("type_as", (piece.node, like.node))
    return Piece(node, piece.axis, piece.positions)


prelu.constants(vectors)


@prelu.emitter
def _prelu(op: Op, slim: Slim) -> Piece | None:
    if op.module is None:
        return per_channel_function(op, slim)
    return same_op(op, slim) if _width(op) == 1 else per_channel_module(op, slim)


@along_axis.emitter
def _along_axis(op: Op, slim: Slim) -> Piece | None:
    return beside_channels(op, slim, statistics_axes(op))


def _width(op: Op) -> int:
    return int(op.module.weight.numel()) if isinstance(op.module, nn.PReLU) else 0


def beside_channels(op: Op, slim: Slim, axes: list[int]) -> Piece | None:
    """The same op if the pruned axis is none of ``axes``; else the op on the complete tensor."""
    piece = slim.piece(op.inputs[0])
    if piece is None:
        return None
    return whole_op(op, slim) if piece.axis in axes else same_op(op, slim)
