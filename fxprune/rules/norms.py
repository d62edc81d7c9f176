"""Normalisation layers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fxprune.core import Affine
from fxprune.rules.elementwise import share_statistics
from fxprune.rules.registry import Flow, Op, rule


def _note_affine(op: Op, flow: Flow, axis: int, *parameters: Any) -> None:
    count = sum(parameter is not None for parameter in parameters)
    if count and op.module is not None:
        ids = flow.along(axis, op.table, op.out.shape[axis])
        op.notes.affines.append(Affine(op.node, str(op.node.target), ids, count))


@rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, F.batch_norm)
def batch_norm(op: Op) -> Flow:
    """An affine map per channel. Alone behind a convolution it takes that convolution's gate behind itself."""
    flow = op.flow()
    _note_affine(op, flow, 1, op.get("weight", 3), op.get("bias", 4))
    if flow.writer is not None and len(flow.writer.users) == 1:
        op.notes.anchors[flow.writer] = op.node
        return Flow(flow.ids, zero=True)
    return Flow(flow.ids, zero=False)


@rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, F.instance_norm)
def instance_norm(op: Op) -> Flow:
    flow = op.anchored(op.flow())
    _note_affine(op, flow, 1, op.get("weight", 3), op.get("bias", 4))
    return Flow(flow.ids, zero=False)


@rule(nn.LayerNorm, F.layer_norm, nn.RMSNorm)
def layer_norm(op: Op) -> Flow:
    flow, shape = op.flow(), op.get("normalized_shape", 1)
    axes = list(range(flow.ids.ndim - len(shape), flow.ids.ndim))
    if len(shape) == 1:
        _note_affine(op, flow, flow.ids.ndim - 1, op.get("weight", 2), op.get("bias", 3))
    return Flow(share_statistics(op, flow, axes).ids, zero=False)


@rule(nn.GroupNorm, F.group_norm, torch.group_norm)
def group_norm(op: Op) -> Flow:
    flow, groups = op.flow(), op.get("num_groups", 1)
    _note_affine(op, flow, 1, op.get("weight", 2), op.get("bias", 3))
    count = flow.ids.shape[1]
    if count == 1 or count == groups:
        return Flow(op.anchored(flow).ids, zero=False)
    if flow.axis == 1:
        op.notes.tied.append(flow.ids.reshape(groups, -1))
    inner = Flow(flow.ids.reshape(flow.ids.shape[0], groups, count // groups, *flow.ids.shape[2:]))
    shared = share_statistics(op, inner, [2]).ids
    return Flow(shared.reshape(flow.ids.shape), zero=False)
