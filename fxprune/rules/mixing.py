"""Ops that mix channels: convolutions, linear layers, matrix products."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from fxprune.core import Mixer
from fxprune.ids import Ids
from fxprune.rules.registry import Flow, Op, rule


def _owner(op: Op, weight: Any) -> str:
    """What users call the layer: the path of its module, or of its weight where a function is called directly."""
    if op.module is not None:
        return str(op.node.target)
    while isinstance(weight, fx.Node) and weight.op != "get_attr":  # a weight computed from a parameter
        weight = next((node for node in weight.all_input_nodes if node.op in ("get_attr", "call_function", "call_method")), None)
    return str(weight.target).removesuffix(".weight") if isinstance(weight, fx.Node) else op.node.name


def _mix(op: Op, inputs: Ids, rows: int, weight: torch.Tensor, axis: int, *, bias: bool, sites: int, is_conv: bool, name: str) -> Flow:
    groups = inputs.shape[0]
    ids = op.table.mix(inputs, rows, owner=op.node.name)
    area = math.prod(op.out.shape[axis + 1 :])
    kernel = math.prod(weight.shape[2:])
    op.notes.mixers.append(Mixer(op.node, name, ids, inputs, kernel, area, sites, bias, is_conv))
    shape = [1] * op.out.ndim
    shape[axis] = groups * rows
    return Flow(ids.reshape(shape), writer=op.node)


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d, F.conv1d, F.conv2d, F.conv3d, torch.conv1d, torch.conv2d, torch.conv3d)
@rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
@rule(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
def convolution(op: Op) -> Flow | None:
    weight, bias = op.get("weight", 1), op.get("bias", 2)
    if op.module is None and op.find(op.raw(1, "weight")) is not None:
        return None  # the kernel is computed from the input: not a layer
    if isinstance(op.module, nn.modules.conv._ConvTransposeNd):
        transposed = True
    else:
        transposed = op.node.target in (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
    groups = op.get("groups", 6, 1)  # (input, weight, bias, stride, padding, dilation or output_padding, groups)
    axis = op.out.ndim - (weight.ndim - 2) - 1
    value = op.args[0] if op.node.args else op.kwargs["input"]
    inputs = op.flow().along(axis, op.table, value.shape[axis]).reshape(groups, -1)
    rows = op.out.shape[axis] // groups
    sites = math.prod((value if transposed else op.out).shape[axis + 1 :])
    name = _owner(op, op.raw(1, "weight"))
    return _mix(op, inputs, rows, weight, axis, bias=bias is not None, sites=sites, is_conv=True, name=name)


@rule(nn.Linear, F.linear)
def linear(op: Op) -> Flow | None:
    weight, bias = op.get("weight", 1), op.get("bias", 2)
    if op.module is None and op.find(op.raw(1, "weight")) is not None:
        return None
    value = op.args[0] if op.node.args else op.kwargs["input"]
    axis = op.out.ndim - 1
    inputs = op.flow().along(axis, op.table, value.shape[axis]).reshape(1, -1)
    name = _owner(op, op.raw(1, "weight"))
    return _mix(op, inputs, weight.shape[0], weight, axis, bias=bias is not None, sites=math.prod(op.out.shape[1:-1]), is_conv=False, name=name)


@rule(torch.matmul, torch.bmm, operator.matmul, "matmul", "bmm", "__matmul__", torch.mm, "mm")
def matmul(op: Op) -> Flow | None:
    """``sum_k a[.., n, k] b[.., k, m]``. Summed over space it keeps channels; over channels it mixes those alive in both."""
    left, right = op.find(op.raw(0)), op.find(op.raw(1))
    a, b = op.args[0], op.args[1]
    if min(a.ndim, b.ndim) < 2 or (left is None and right is None):
        return None
    one, other = _matrix_ids(left, a), _matrix_ids(right, b)
    if one.shape[-1] == 1 and other.shape[-2] == 1:
        return Flow(op.table.all(one, other))
    if one.shape[-2] > 1 or other.shape[-1] > 1:
        return None
    pairs = op.table.all(np.swapaxes(one, -1, -2), other)  # .., k, 1
    batch = pairs.shape[:-2]
    mixed = op.table.mix(pairs.reshape(-1, pairs.shape[-2]), rows=1, owner=op.node.name)
    return Flow(mixed.reshape(*batch, 1, 1))


def _matrix_ids(flow: Flow | None, value: torch.Tensor) -> Ids:
    return flow.ids if flow is not None else np.zeros((1,) * value.ndim, dtype=np.int64)
