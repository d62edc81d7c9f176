"""Pure data movement needs no rule of its own: run the op on a tensor of ids and read the result."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from fxprune.ids import FIXED, Ids
from fxprune.rules.registry import Flow, Op, name_of, rule

_METHODS = (
    "view", "reshape", "flatten", "unflatten", "ravel", "permute", "transpose", "swapaxes", "swapdims", "movedim",
    "moveaxis", "t", "squeeze", "unsqueeze", "expand", "repeat", "tile", "repeat_interleave", "narrow", "select",
    "unfold",
    "chunk", "split", "tensor_split", "split_with_sizes", "unbind", "hsplit", "vsplit", "roll", "flip", "rot90",
    "diagonal", "index_select",
)  # fmt: skip
_FUNCTIONS = (
    "reshape", "flatten", "unflatten", "ravel", "permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis",
    "t", "squeeze", "unsqueeze", "broadcast_to", "tile", "repeat_interleave", "narrow", "select", "chunk", "split",
    "tensor_split", "unbind", "hsplit", "vsplit", "roll", "flip", "rot90", "diagonal",
    "index_select",
)  # fmt: skip


MODULES = (nn.ChannelShuffle, nn.Flatten, nn.Unflatten)


@rule(*_METHODS, *(getattr(torch, name) for name in _FUNCTIONS), F.channel_shuffle, *MODULES, lazy=True)
def move(op: Op) -> Any:
    scaler = _scales(op)
    moved = run_on_ids(op)
    if isinstance(moved, torch.Tensor):
        return Flow(_beside_batch(op, compress(moved)), scaler=scaler)
    return tuple(Flow(compress(part), scaler=scaler) for part in moved)


def _beside_batch(op: Op, ids: Ids) -> Ids:
    """Channels that a view puts among the samples, ``x.view(b * 2, c // 2, h, w)``: alive in one of them, alive in all.

    The positions along such an axis are those of this example's batch size, and no other.
    """
    name = name_of(op.node)
    if ids.ndim < 2 or ids.shape[0] == 1:
        return ids
    if name == "flatten":
        among = op.value().ndim > 1 and op.get("start_dim", 1, 0) == 0
    elif name in ("view", "reshape"):
        given: Any = op.node.args[1:]
        first = given[0][0] if given and isinstance(given[0], (tuple, list)) else given[0] if given else None
        among = first == -1 or (isinstance(first, fx.Node) and _counts_samples(first))
    else:
        among = False
    return op.table.any(*(ids[k : k + 1] for k in range(ids.shape[0]))) if among else ids


def _counts_samples(number: fx.Node) -> bool:
    """Is it computed from the size of an axis 0?"""
    owner, *index = number.args
    if number.target in ("size", operator.getitem) and index == [0] and isinstance(owner, fx.Node):
        return True
    return any(
        _counts_samples(node) for node in number.all_input_nodes if not isinstance(node.meta["value"], torch.Tensor)
    )


@rule(torch.hstack, torch.vstack, torch.dstack, torch.select_scatter, torch.slice_scatter)
def put_together(op: Op) -> Flow | None:
    if isinstance(op.raw(0, "tensors"), fx.Node) and not isinstance(op.value(0, "tensors"), torch.Tensor):
        return None  # one node that stands for several tensors
    return Flow(compress(run_on_ids(op)), scaler=_scales(op))


@rule(torch.stack)
def stack(op: Op) -> Flow | None:
    if isinstance(op.raw(0, "tensors"), fx.Node):
        return None
    return Flow(compress(run_on_ids(op)), scaler=_scales(op))


@rule(torch.cat, torch.concat, torch.concatenate)
def cat(op: Op) -> Flow | None:
    """Along the channels; along another axis ids simply come to vary there."""
    tensors = op.raw(0, "tensors")
    if isinstance(tensors, fx.Node):
        return None
    dim = op.get("dim", 1, 0)
    values = [node.meta["value"] for node in tensors]
    axis = int(dim) % op.out.ndim
    parts = []
    for node, value in zip(tensors, values, strict=True):
        flow = op.find(node)
        ids = flow.ids if flow is not None else np.full((1,) * value.ndim, FIXED, dtype=np.int64)
        if value.ndim == op.out.ndim:  # torch.cat skips empty one-dimensional tensors
            parts.append(np.repeat(ids, value.shape[axis], axis) if ids.shape[axis] == 1 else ids)
    shape = [max(part.shape[k] for part in parts) for k in range(op.out.ndim)]
    if any(size > 1 for k, size in enumerate(shape) if k != axis):  # a dead part still has its size along this axis
        op.notes.sized += [(op.node, op.flows[node].ids.reshape(-1)) for node in tensors if op.find(node) is not None]
    wide = [np.broadcast_to(part, [*shape[:axis], part.shape[axis], *shape[axis + 1 :]]) for part in parts]
    return Flow(compress(torch.from_numpy(np.concatenate(wide, axis))), scaler=_scales(op))


@rule(operator.getitem, lazy=True)
def getitem(op: Op) -> Any:
    source, index = op.node.args[0], op.known(op.node.args[1])
    owner = op.flows.get(source)  # type: ignore[arg-type]
    if isinstance(owner, (tuple, dict)):
        return owner[index] if not isinstance(index, slice) else tuple(owner[index])
    if not isinstance(owner, Flow):
        return None
    return Flow(compress(expanded(op, source)[index]), scaler=owner.scaler)  # type: ignore[arg-type]


def run_on_ids(op: Op) -> Any:
    """The op itself, executed on the ids of its operands at the example's full size."""

    def ids_of(node: fx.Node) -> Any:
        value = node.meta["value"]
        if node is op.raw(2, "index") and isinstance(value, torch.Tensor):  # of index_select
            return op.known(node)
        return expanded(op, node) if isinstance(value, torch.Tensor) else value

    args, kwargs = fx.node.map_arg(op.node.args, ids_of), fx.node.map_arg(op.node.kwargs, ids_of)
    if op.module is not None:
        return op.module(*args, **kwargs)
    if op.node.op == "call_method":
        method = "reshape" if op.node.target == "view" else str(op.node.target)
        return getattr(args[0], method)(*args[1:], **kwargs)
    assert callable(op.node.target)
    return op.node.target(*args, **kwargs)


def expanded(op: Op, node: fx.Node) -> torch.Tensor:
    """The ids of a tensor, one per element; axes on which they do not depend have stride 0 and cost nothing."""
    shape = node.meta["value"].shape
    flow = op.find(node)
    ids = np.full((1,) * len(shape), FIXED, dtype=np.int64) if flow is None else flow.ids
    return torch.from_numpy(ids).expand(shape)


def compress(ids: torch.Tensor) -> Ids:
    """Back to size 1 along every axis on which the ids do not depend."""
    for axis in range(ids.ndim):
        if ids.shape[axis] > 1 and (ids.stride(axis) == 0 or bool((ids == ids.narrow(axis, 0, 1)).all())):
            ids = ids.narrow(axis, 0, 1)
    return np.ascontiguousarray(ids.numpy())


def _scales(op: Op) -> bool:
    flows = [op.find(node) for node in op.node.all_input_nodes]
    return all(flow.scaler for flow in flows if flow is not None)
