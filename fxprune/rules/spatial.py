"""Ops on the positions of a feature map, channel by channel: pooling, resizing, padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fxprune.ids import ZERO
from fxprune.rules.registry import Flow, Op, rule


def _keeps_channels(flow: Flow, axes: int) -> bool:
    return all(size == 1 for size in flow.ids.shape[-axes:])


def _by_rank(*stems: str) -> list[Any]:
    """nn.MaxPool1d .. 3d, F.max_pool1d .. 3d, and where they exist the torch and method spellings."""
    found: list[Any] = []
    for stem in stems:
        name = {"max_pool": "MaxPool", "avg_pool": "AvgPool", "adaptive_avg_pool": "AdaptiveAvgPool",
                "adaptive_max_pool": "AdaptiveMaxPool", "lp_pool": "LPPool"}[stem]  # fmt: skip
        for rank in "123":
            candidates = [(nn, f"{name}{rank}d"), (F, f"{stem}{rank}d"), (torch, f"{stem}{rank}d")]
            for owner, attribute in candidates:
                target = getattr(owner, attribute, None)
                if target is not None and target not in found:
                    found.append(target)
    return found


@rule(*_by_rank("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", "lp_pool"))
def pool(op: Op) -> Flow | None:
    name = type(op.module).__name__ if op.module is not None else str(getattr(op.node.target, "__name__", ""))
    rank = next(int(letter) for letter in reversed(name) if letter.isdigit())
    if isinstance(op.out, (tuple, list)) or not _keeps_channels(op.flow(), rank):
        return None  # return_indices=True, or pooling along the channels
    return op.anchored(op.flow())


@rule(F.interpolate, F.upsample, nn.Upsample, nn.UpsamplingBilinear2d, nn.UpsamplingNearest2d)
def resize(op: Op) -> Flow | None:
    flow = op.flow()
    return op.anchored(flow) if all(size == 1 for size in flow.ids.shape[2:]) else None


@rule(F.grid_sample, torch.grid_sampler)
def grid_sample(op: Op) -> Flow | None:
    flow, grid = op.flow(), op.find(op.raw(1, "grid"))
    if not _keeps_channels(flow, op.out.ndim - 2):
        return None
    if grid is None:
        return op.anchored(flow)
    where = Flow(grid.ids).along(0, op.table, 1).reshape((1,) * flow.ids.ndim)
    return Flow(op.table.all(flow.ids, where), flow.zero and grid.zero)


@rule(F.unfold, nn.Unfold, F.fold, nn.Fold)
def unfold(op: Op) -> Flow | None:
    """Patches: each channel becomes kernel-size rows (unfold) or is put together from them (fold)."""
    flow = op.flow()
    count = op.out.shape[1]
    if flow.ids.ndim < 3 or not all(size == 1 for size in flow.ids.shape[2:]) or flow.ids.shape[1] == 1:
        return op.anchored(flow) if flow.ids.size == 1 and op.out.ndim == flow.ids.ndim else None
    ids = flow.ids.reshape(-1)
    if count >= ids.size:
        ids = np.repeat(ids, count // ids.size)
    else:
        ids = op.table.any(*ids.reshape(count, -1).T)
    return Flow(ids.reshape(1, count, *(1,) * (op.out.ndim - 2)), flow.zero)


_PADS = [getattr(nn, f"{kind}Pad{rank}d", None) for kind in ("Constant", "Zero", "Reflection", "Replication", "Circular") for rank in "123"]


@rule(F.pad, torch.constant_pad_nd, *(pad for pad in _PADS if pad is not None))
def pad(op: Op) -> Flow | None:
    flow = op.flow()
    widths = list(op.get("padding" if op.module is not None else "pad", 1))
    mode = op.get("mode", 2, "constant") if op.module is None else "constant"
    value = op.get("value", 3, 0) or 0
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
    return Flow(ids, flow.zero and value == 0) if ids is not flow.ids else Flow(ids, flow.zero and value == 0)


def _is_channel_axis(op: Op, flow: Flow, axis: int) -> bool:
    """A single-channel tensor padded along axis 1 (a 'pad the shortcut' trick) has a channel axis of size 1."""
    return axis == 1 and flow.ids.size == 1 and op.out.ndim > 2
