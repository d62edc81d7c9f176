"""Normalisation layers. Of layer and group norms of pruned channels the statistics of all channels are computed from
the living ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import fx, nn

from fxprune.channels.ids import Ids
from fxprune.rules.elementwise import beside_channels, not_zero, note_affine, padded, share_statistics, vectors
from fxprune.rules.operands import (
    Piece,
    Slim,
    cut_module,
    even_columns,
    per_channel_function,
    per_channel_module,
    scaled_by_gate,
    whole_op,
)
from fxprune.rules.registry import Cut, Flow, NoChannels, Op, rule


def layer_norm_of_living(op: Op, slim: Slim, piece: Piece, axes: list[int]) -> Piece:
    """``axes`` are normalised together; one of them is the pruned one."""
    assert piece.axis is not None and piece.positions is not None
    share, count = piece.positions.size / op.out.shape[piece.axis], math.prod(op.get("normalized_shape", 1))
    cut = (piece.axis - axes[0], piece.positions)
    weight, bias = _vector(op, slim, "weight", 2, *cut), _vector(op, slim, "bias", 3, *cut)
    apart, scale = _standard(slim, piece.node, axes, share, op.get("eps", 4, 1e-5), count)
    node = _affine(slim, slim.graph.call_function(torch.mul, (apart, scale)), weight, bias)
    return Piece(node, piece.axis, piece.positions)


def group_norm_of_living(op: Op, slim: Slim, living: Ids) -> Piece:
    """Groups with holes: each has as many channels as the one with the most left, zeros among them."""
    count, groups = op.out.shape[1], op.get("num_groups", 1)
    kept = np.zeros(count, dtype=bool)
    kept[living] = True
    rows = kept.reshape(groups, -1)
    alive = np.flatnonzero(rows.any(1))
    columns = even_columns(rows[alive])
    positions = (alive[:, None] * rows.shape[1] + columns).reshape(-1)
    shape, rank = columns.shape, op.out.ndim + 1

    def spread(name: str, position: int) -> fx.Node | None:
        held = _vector(op, slim, name, position, 0, positions)
        return None if held is None else slim.graph.call_method("reshape", (held, (*shape, *(1,) * (rank - 3))))

    node = slim.fetch(op.inputs[0], 1, positions)
    node = slim.graph.call_method("unflatten", (node, 1, shape))
    share, weight, bias = shape[1] / rows.shape[1], spread("weight", 2), spread("bias", 3)
    apart, scale = _standard(slim, node, list(range(2, rank)), share, op.get("eps", 4, 1e-5))
    scale = _affine(slim, scale, weight, None)  # small beside the map
    made = Piece(slim.graph.call_method("flatten", (_affine(slim, apart, scale, bias), 1, 2)), 1, positions)
    return Piece(slim.select(made, 1, living, op.out), 1, living)


def _standard(
    slim: Slim, x: fx.Node, axes: list[int], share: float, eps: float, count: int | None = None
) -> tuple[fx.Node, fx.Node]:
    """How far ``x`` is from the mean of all channels, and one over their deviation; ``count`` of them in all, if that
    is known. Those that are gone are zeros, as far from the mean as it is from zero.

    Several times faster than ``torch.var_mean``, and as exact: nothing large is taken from something large.
    """
    call = slim.graph.call_function
    mean = call(torch.mean, (x, axes), {"keepdim": True})  # of what is left
    apart = call(torch.sub, (x, mean), {"alpha": share})
    if count is None:  # it depends on the size of the map
        square = call(torch.mean, (call(torch.square, (apart,)), axes), {"keepdim": True})
        variance = call(torch.mul, (square, share))
    else:
        norm = call(torch.linalg.vector_norm, (apart,), {"dim": axes, "keepdim": True})
        variance = call(torch.square, (call(torch.mul, (norm, count**-0.5)),))
    variance = call(torch.add, (variance, eps))
    variance = call(torch.addcmul, (variance, mean, mean), {"value": share * share * (1 - share)})
    return apart, call(torch.rsqrt, (variance,))


def _affine(slim: Slim, x: fx.Node, factor: fx.Node | None, shift: fx.Node | None) -> fx.Node:
    call = slim.graph.call_function
    if factor is None:
        return x if shift is None else call(torch.add, (x, shift))
    return call(torch.mul, (x, factor)) if shift is None else call(torch.addcmul, (shift, x, factor))


def _vector(op: Op, slim: Slim, name: str, position: int, axis: int, positions: Ids) -> fx.Node | None:
    """A norm's weight or bias, cut along ``axis``, under its own name."""
    if op.module is not None:
        held = getattr(op.module, name)
        if held is None:
            return None
        cut = held.detach().index_select(axis, torch.from_numpy(positions).to(held.device))
        return slim.attribute(f"{op.node.target}.{name}", cut, grad=held.requires_grad)
    raw: Any = op.raw(position, name)
    return slim.constant(raw, axis, positions) if isinstance(raw, fx.Node) else None


def _note_affine(op: Op, flow: Flow, axis: int, *parameters: Any, groups: int = 1, cut: bool = True) -> None:
    if op.module is not None:
        count = sum(parameter is not None for parameter in parameters)
        note_affine(op, flow, axis, count, groups, cut=cut)


def _normed(op: Op) -> Flow:
    """The channels that go in; a norm whose weight or bias is computed from the input is none of ours."""
    if any(op.find(argument) is not None for argument in (*op.node.args[1:], *op.node.kwargs.values())):
        raise NoChannels(f"{op.node.name}: a conditional norm")
    return op.flow()


@rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, F.batch_norm)
def batch_norm(op: Op) -> Flow:
    """An affine map per channel. Alone behind a convolution it takes that convolution's gate behind itself."""
    flow = _normed(op)
    _note_affine(op, flow, 1, op.get("weight", 3), op.get("bias", 4))
    if flow.writer is not None and len(flow.writer.users) == 1:
        return replace(flow, writer=None, gate_of=flow.writer)
    return replace(flow, clean=False, writer=None)


@rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, F.instance_norm)
def instance_norm(op: Op) -> Flow:
    flow = _normed(op)
    _note_affine(op, flow, 1, op.get("weight", 3), op.get("bias", 4))
    if any(size > 1 for size in flow.ids.shape[2:]):  # channels that lie where maps do
        return share_statistics(op, list(range(2, flow.ids.ndim)), clean=False)
    return replace(flow, clean=False, writer=None)


@rule(nn.LayerNorm, F.layer_norm, nn.RMSNorm)
def layer_norm(op: Op) -> Flow:
    flow, shape = _normed(op), op.get("normalized_shape", 1)
    axes = list(range(flow.ids.ndim - len(shape), flow.ids.ndim))
    if flow.axis in axes or len(shape) == 1:
        axis, parameters = axes[-1] if flow.axis is None else flow.axis, (op.get("weight", 2), op.get("bias", 3))
        each = sum(held.numel() for held in parameters if held is not None) // op.out.shape[axis]
        cut = _called_once(op) and not isinstance(op.module, nn.RMSNorm) and axis in axes
        if op.module is not None:
            note_affine(op, flow, axis, each, cut=cut)
    return share_statistics(op, axes, clean=False)


@rule(nn.GroupNorm, F.group_norm, torch.group_norm)
def group_norm(op: Op) -> Flow | None:
    flow, groups = _normed(op), op.get("num_groups", 1)
    parameters = op.get("weight", 2), op.get("bias", 3)
    _note_affine(op, flow, 1, *parameters, groups=groups, cut=_called_once(op))
    count = flow.ids.shape[1]
    if any(size > 1 for size in flow.ids.shape[2:]):
        return share_statistics(op, list(range(2, flow.ids.ndim)), clean=False) if count == 1 else None
    if count == 1 or count == groups:
        return replace(flow, clean=False, writer=None)
    if flow.axis != 1:
        return None
    ids = not_zero(op, flow.ids)
    grouped = ids.reshape(groups, -1)
    op.notes.tied.append(grouped)
    statistics = op.table.mix(grouped, rows=1, owner=op.node.name).repeat(grouped.shape[1], 1)
    return Flow(op.table.all(ids, statistics.reshape(ids.shape)), clean=False, filled=padded(flow.ids))


batch_norm.constants(vectors)
instance_norm.constants(vectors)


@layer_norm.constants
def _cut_layer_norm(op: Op, flow: Flow, constant: fx.Node, of_heads: npt.NDArray[np.bool_]) -> Cut | None:
    first = op.out.ndim - len(op.get("normalized_shape", 1))
    if flow.axis is None or flow.axis < first or not _called_once(op):
        return None
    return Cut(flow.ids.reshape(1, -1))


@group_norm.constants
def _cut_group_norm(op: Op, flow: Flow, constant: fx.Node, of_heads: npt.NDArray[np.bool_]) -> Cut | None:
    return vectors(op, flow, constant, of_heads) if _called_once(op) else None


@batch_norm.emitter
def _batch_norm(op: Op, slim: Slim) -> Piece | None:
    """Cut to the channels that exist; takes in the gate of the layer that it follows."""
    piece = per_channel_module(op, slim) if op.module is not None else per_channel_function(op, slim)
    layer = next((writer for writer, norm in slim.channels.anchors.items() if norm is op.node), None)
    values = slim.gate_values.get(slim.owner[layer]) if layer is not None else None
    if piece is None or values is None:
        return piece
    if op.module is None or len(slim.calls.get(str(op.node.target), [])) > 1 or op.module.weight is None:
        return scaled_by_gate(slim, piece, 1, values, op.out.ndim)
    if bool((values != 1).any()):
        made = slim.root.get_submodule(str(op.node.target))
        z = values[torch.from_numpy(piece.along(1, values.numel()))]
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.mul_(z.to(parameter))
    return piece


@instance_norm.emitter
def _instance_norm(op: Op, slim: Slim) -> Piece | None:
    return per_channel_module(op, slim) if op.module is not None else per_channel_function(op, slim)


@layer_norm.emitter
def _layer_norm(op: Op, slim: Slim) -> Piece | None:
    axes = list(range(op.out.ndim - len(op.get("normalized_shape", 1)), op.out.ndim))
    piece = slim.piece(op.inputs[0])
    if piece is not None and piece.axis in axes and not isinstance(op.module, nn.RMSNorm) and _called_once(op):
        return layer_norm_of_living(op, slim, piece, axes)
    return beside_channels(op, slim, axes)


def _called_once(op: Op) -> bool:
    """Calls that share a weight would each cut it to channels of their own."""
    if op.module is not None:
        called = [node for node in op.node.graph.nodes if node.op == "call_module" and node.target == op.node.target]
        return len(called) == 1
    return all(len(node.users) == 1 for node in op.node.all_input_nodes if op.find(node) is None)


@group_norm.emitter
def _group_norm(op: Op, slim: Slim) -> Piece | None:
    """Whole groups are cut out; a group with holes is computed from what is left of it."""
    piece = slim.piece(op.inputs[0])
    if piece is None:
        return None
    groups, count = op.get("num_groups", 1), op.out.shape[1]
    if piece.axis != 1:
        return beside_channels(op, slim, list(range(2, op.out.ndim)))
    existing = np.zeros(count, dtype=bool)
    existing[piece.along(1, count)] = True
    kept = existing.reshape(groups, -1)
    if not _called_once(op):
        return whole_op(op, slim)
    positions = np.flatnonzero(existing)
    if op.module is None or not bool((kept.all(1) == kept.any(1)).all()):
        return group_norm_of_living(op, slim, positions)
    made = cut_module(op.module, positions, count)
    made.num_groups = int(kept.all(1).sum())  # type: ignore[assignment]
    path = slim.module(str(op.node.target), made)
    return Piece(slim.graph.call_module(path, (slim.fetch(op.inputs[0], 1, positions),)), 1, positions)
