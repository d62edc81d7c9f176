"""Ops that look at one element at a time: channels pass through, some of them no longer zero when dead."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fxprune.core import Affine
from fxprune.rules.registry import Flow, Op, rule


def _targets(names: Iterable[str], *modules: type[nn.Module]) -> list[Hashable]:
    """Everything that goes by these names: ``torch.relu``, ``F.relu``, ``x.relu()``, and the module classes."""
    found: dict[Hashable, None] = dict.fromkeys(modules)
    for name in names:
        found.update((getattr(owner, name), None) for owner in (torch, F) if hasattr(owner, name))
        if hasattr(torch.Tensor, name):
            found[name] = None
    return list(found)


KEEPS_ZERO = _targets(
    ["relu", "relu6", "leaky_relu", "rrelu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish", "tanh", "tanhshrink", "softsign", "hardshrink", "softshrink", "sin", "tan", "asin", "atan", "sinh", "asinh", "erf", "abs", "absolute", "neg", "negative", "positive", "sign", "sgn", "sqrt", "square", "floor", "ceil", "round", "trunc", "fix", "frac", "expm1", "log1p", "nan_to_num", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout", "contiguous", "clone", "detach", "to", "float", "double", "half", "bfloat16", "type", "type_as", "cpu", "cuda", "requires_grad_"],
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.RReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Tanh,
    nn.Tanhshrink, nn.Softsign, nn.Hardshrink, nn.Softshrink, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
    nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip
KEEPS_ZERO += [operator.neg, operator.pos, operator.abs, round]
BREAKS_ZERO = _targets(
    ["sigmoid", "hardsigmoid", "logsigmoid", "softplus", "exp", "exp2", "log", "log2", "log10", "cos", "acos", "cosh", "acosh", "atanh", "erfc", "rsqrt", "reciprocal", "threshold", "logit", "digamma", "lgamma", "logical_not", "isnan", "isinf", "isfinite", "bitwise_not", "bool", "int", "long"],
    nn.Sigmoid, nn.Hardsigmoid, nn.LogSigmoid, nn.Softplus, nn.Threshold,
)  # fmt: skip
BREAKS_ZERO += [operator.not_, operator.invert]


@rule(*KEEPS_ZERO, zero=True)
@rule(*BREAKS_ZERO, zero=False)
def pointwise(op: Op) -> Flow:
    return op.anchored(op.flow())


@rule(nn.Identity)
def identity(op: Op) -> Flow:
    return op.flow()


@rule(nn.PReLU, F.prelu, torch.prelu, "prelu")
def prelu(op: Op) -> Flow:
    flow = op.flow()
    if op.module is not None and op.module.weight.numel() > 1:
        ids = flow.along(1, op.table, op.out.shape[1])
        op.notes.affines.append(Affine(op.node, str(op.node.target), ids, 1))
    return op.anchored(flow)


@rule(torch.clamp, torch.clip, "clamp", "clip", "clamp_min", "clamp_max", F.hardtanh, nn.Hardtanh)
def clamp(op: Op) -> Flow:
    """Zero stays zero exactly when it lies within the bounds."""
    low, high = -1.0, 1.0
    if op.node.target in ("clamp_min", "clamp_max"):
        bound = op.args[1]
        low, high = (bound, float("inf")) if op.node.target == "clamp_min" else (float("-inf"), bound)
    elif isinstance(op.module, nn.Hardtanh):
        low, high = op.module.min_val, op.module.max_val
    elif op.node.target is F.hardtanh:
        low, high = op.get("min_val", 1, -1.0), op.get("max_val", 2, 1.0)
    else:
        low, high = op.get("min", 1), op.get("max", 2)
        low, high = float("-inf") if low is None else low, float("inf") if high is None else high
    flow = op.anchored(op.flow())
    inside = isinstance(low, (int, float)) and isinstance(high, (int, float)) and low <= 0 <= high
    return Flow(flow.ids, flow.zero and inside)


@rule(torch.pow, "pow", operator.pow, "__pow__")
def power(op: Op) -> Flow | None:
    exponent = op.args[1]
    if op.find(op.raw(0)) is None or not isinstance(exponent, (int, float)):
        return None
    flow = op.flow()
    return Flow(flow.ids, flow.zero and exponent > 0)


@rule(torch.masked_fill, "masked_fill")
def masked_fill(op: Op) -> Flow:
    flow, mask = op.flow(), op.find(op.raw(1, "mask"))
    ids = flow.ids if mask is None else op.table.any(flow.ids, mask.ids)
    return Flow(ids, zero=False)


@rule(torch.softmax, F.softmax, "softmax", nn.Softmax, torch.log_softmax, F.log_softmax, "log_softmax", nn.LogSoftmax, zero=False)
@rule(F.softmin, nn.Softmin, zero=False)
@rule(torch.cumsum, "cumsum", zero=False)
@rule(F.normalize, zero=True)
def along_axis(op: Op) -> Flow:
    """Reads a whole axis: elementwise for channels that lie on another one, else it needs every living channel."""
    flow = op.flow()
    dim = op.get("dim", 2 if op.node.target is F.normalize else 1, 1 if op.node.target is F.normalize else None)
    return share_statistics(op, flow, [int(dim) % flow.ids.ndim] if dim is not None else list(range(1, flow.ids.ndim)))


@rule(nn.Softmax2d, zero=False)
@rule(F.local_response_norm, nn.LocalResponseNorm, zero=True)
def over_channels(op: Op) -> Flow:
    flow = op.flow()
    return share_statistics(op, flow, [flow.ids.ndim - 3 if isinstance(op.module, nn.Softmax2d) else 1])


def share_statistics(op: Op, flow: Flow, axes: list[int]) -> Flow:
    """Every element depends on all others along ``axes``: alive as before, but computing one needs all living ones."""
    axes = [axis for axis in axes if flow.ids.shape[axis] > 1]
    if not axes:
        return op.anchored(flow)
    kept = [axis for axis in range(flow.ids.ndim) if axis not in axes]
    groups = flow.ids.transpose(*kept, *axes).reshape(-1, _size(flow.ids.shape[axis] for axis in axes))
    statistics = op.table.mix(groups, rows=1, owner=op.node.name)
    shape = [1 if axis in axes else flow.ids.shape[axis] for axis in range(flow.ids.ndim)]
    return Flow(op.table.all(flow.ids, statistics.reshape(shape)), flow.zero)


def _size(sizes: Iterable[Any]) -> int:
    product = 1
    for size in sizes:
        product *= int(size)
    return product
