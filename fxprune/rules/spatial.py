"""Ops on the positions of a feature map, channel by channel: pooling, resizing, padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from fxprune.channels.ids import ZERO
from fxprune.rules.elementwise import beside_channels
from fxprune.rules.joins import both
from fxprune.rules.operands import Piece, Slim, same_op, whole_op
from fxprune.rules.registry import Flow, Op, rule, unwritten


def _keeps_channels(flow: Flow, axes: int) -> bool:
    return all(size == 1 for size in flow.ids.shape[-axes:])


def _by_rank(*stems: str) -> list[Any]:
    """nn.MaxPool1d .. 3d, F.max_pool1d .. 3d, and the same names in torch, where they exist."""
    targets: list[Any] = []
    for stem in stems:
        name = {"max_pool": "MaxPool", "avg_pool": "AvgPool", "adaptive_avg_pool": "AdaptiveAvgPool",
                "adaptive_max_pool": "AdaptiveMaxPool", "lp_pool": "LPPool"}[stem]  # fmt: skip
        for rank in "123":
            candidates = [(nn, f"{name}{rank}d"), (F, f"{stem}{rank}d"), (torch, f"{stem}{rank}d")]
            for owner, attribute in candidates:
                target = getattr(owner, attribute, None)
                if target is not None and target not in targets:
                    targets.append(target)
    return targets


@rule(*_by_rank("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", "lp_pool"))
def pool(op: Op) -> Any:
    name = type(op.module).__name__ if op.module is not None else str(getattr(op.node.target, "__name__", ""))
    rank = next(int(letter) for letter in reversed(name) if letter.isdigit())
    flow = unwritten(op.flow())
    if not _keeps_channels(flow, rank):
        return None  # pooling along the channels
    return (flow, flow) if isinstance(op.out, (tuple, list)) else flow  # return_indices=True


@rule(nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d, F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)
def unpool(op: Op) -> Flow:
    """The indices say where each value goes in the map; a dead channel has no values to place."""
    return Flow(op.table.all(op.flow().ids, op.flow(1, "indices").ids), clean=False)


@rule(F.interpolate, F.upsample, nn.Upsample, nn.UpsamplingBilinear2d, nn.UpsamplingNearest2d)
def resize(op: Op) -> Flow | None:
    flow = op.flow()
    return unwritten(flow) if all(size == 1 for size in flow.ids.shape[2:]) else None


@rule(F.grid_sample, torch.grid_sampler)
def grid_sample(op: Op) -> Flow | None:
    flow, grid = op.flow(), op.find(op.raw(1, "grid"))
    if not _keeps_channels(flow, op.out.ndim - 2):
        return None
    if grid is None:
        return unwritten(flow)
    where = Flow(grid.ids).along(0, op.table, 1).reshape((1,) * flow.ids.ndim)
    return Flow(op.table.all(flow.ids, where))


@rule(
    F.unfold, nn.Unfold, F.fold, nn.Fold,
    F.pixel_shuffle, nn.PixelShuffle, F.pixel_unshuffle, nn.PixelUnshuffle,
)  # fmt: skip
def unfold(op: Op) -> Flow | None:
    """Patches: each channel becomes several (unfold, pixel unshuffle) or is put together from them (fold, shuffle)."""
    flow = op.flow()
    count = op.out.shape[1]
    if flow.ids.ndim < 3 or not all(size == 1 for size in flow.ids.shape[2:]) or flow.ids.shape[1] == 1:
        return unwritten(flow) if flow.ids.size == 1 and op.out.ndim == flow.ids.ndim else None
    ids = flow.along(1, op.table, op.value().shape[1])  # along the batch they may vary, too
    ids = np.repeat(ids, count // ids.size) if count >= ids.size else op.table.any(*ids.reshape(count, -1).T)
    return Flow(ids.reshape(1, count, *(1,) * (op.out.ndim - 2)))


_KINDS = ("Constant", "Zero", "Reflection", "Replication", "Circular")
_PADS = [getattr(nn, f"{kind}Pad{rank}d") for kind in _KINDS for rank in "123"]


@rule(F.pad, torch.constant_pad_nd, *_PADS)
def pad(op: Op) -> Flow | None:
    flow = op.flow()
    widths = list(op.get("padding" if op.module is not None else "pad", 1))
    plain = op.node.target is torch.constant_pad_nd  # (input, pad, value)
    mode = "constant" if op.module is not None or plain else op.get("mode", 2, "constant")
    value = op.get("value", 2 if plain else 3, 0) or 0
    ids = flow.ids
    for index in range(len(widths) // 2):
        axis = ids.ndim - 1 - index
        before, after = int(widths[2 * index]), int(widths[2 * index + 1])
        if (before, after) == (0, 0) or (ids.shape[axis] == 1 and not _is_channel_axis(op, flow, axis)):
            continue
        if mode != "constant" or value != 0:
            return None
        full = op.out.shape[axis] - before - after
        wide = np.repeat(ids, full, axis) if ids.shape[axis] == 1 else ids
        wide = wide.take(range(max(-before, 0), wide.shape[axis] - max(-after, 0)), axis)  # negative padding crops
        pads = [(0, 0)] * ids.ndim
        pads[axis] = (max(before, 0), max(after, 0))
        ids = np.pad(wide, pads, constant_values=ZERO)
    return Flow(ids, clean=value == 0, scaler=flow.scaler)


def _is_channel_axis(op: Op, flow: Flow, axis: int) -> bool:
    """A single-channel tensor padded along axis 1 (a 'pad the shortcut' trick) has a channel axis of size 1."""
    return axis == 1 and flow.ids.size == 1 and op.out.ndim > 2


@pool.emitter
@resize.emitter
def _spatial(op: Op, slim: Slim) -> Piece | None:
    rank = op.inputs[0].meta["value"].ndim
    return beside_channels(op, slim, list(range(2, rank)))


unpool.emitter(both)


@grid_sample.emitter
def _grid_sample(op: Op, slim: Slim) -> Piece | None:
    source, grid = op.node.args[0], op.raw(1, "grid")
    assert isinstance(source, fx.Node)
    piece = slim.compact(source, 1)
    if piece is None:
        return None
    node = slim.same(op, {source: piece.node, grid: slim.argument(grid)})
    return Piece(node, piece.axis, piece.positions)


@unfold.emitter
def _unfold(op: Op, slim: Slim) -> Piece | None:
    source = op.inputs[0]
    piece = slim.compact(source, 1)
    if piece is None or piece.axis is None:
        return None if piece is None else same_op(op, slim)
    before, after = source.meta["value"].shape[1], op.out.shape[1]
    if after >= before:
        times = after // before
        positions = (piece.along(1, before)[:, None] * times + np.arange(times)).reshape(-1)
        return Piece(slim.same(op, {source: piece.node}), 1, positions)
    flow = slim.flow(op.node)
    assert flow is not None
    positions, times = slim.wanted(flow.ids.reshape(-1)), before // after
    rows = (positions[:, None] * times + np.arange(times)).reshape(-1)
    return Piece(slim.same(op, {source: slim.fetch(source, 1, rows)}), 1, positions)


@pad.emitter
def _pad(op: Op, slim: Slim) -> Piece | None:
    """Zeros along the channels are channels that do not exist, so only the positions of the others change."""
    source = op.inputs[0]
    piece = slim.piece(source)
    if piece is None:
        return None
    widths = [int(width) for width in op.get("padding" if op.module is not None else "pad", 1)]
    flow = slim.flow(op.node)
    axis = flow.axis if piece.axis is None and flow is not None else piece.axis
    at = -1 if axis is None else op.out.ndim - 1 - axis
    if axis is None or 2 * at + 1 >= len(widths) or widths[2 * at] == widths[2 * at + 1] == 0:
        return same_op(op, slim)
    if op.module is not None:
        return whole_op(op, slim)
    existing = piece.along(axis, source.meta["value"].shape[axis]) + widths[2 * at]
    inside = (existing >= 0) & (existing < op.out.shape[axis])
    node = slim.select(piece, axis, (existing - widths[2 * at])[inside], source.meta["value"])
    given = op.raw(1, "pad")
    rest = [slim.argument(width) for width in (widths if isinstance(given, fx.Node) else given)]
    rest[2 * at] = rest[2 * at + 1] = 0
    if any(isinstance(width, fx.Node) or width for width in rest):
        node = slim.graph.call_function(F.pad, (node, rest))
    return Piece(node, axis, existing[inside])
