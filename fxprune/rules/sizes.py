"""Reading a tensor's size: no channels flow, but the tensor must stay alive for its size to be read."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import fx

from fxprune.channels.ids import FIXED, ONE, immortal
from fxprune.rules.operands import Gone, GridPiece, Piece, Slim
from fxprune.rules.registry import Flow, Op, constant_flow, rule, unwritten

_SIZES = ("size", "numel", "nelement", "stride", "element_size", "get_device", "data_ptr")


@rule(*_SIZES, torch.numel)
def size(op: Op) -> None:
    _note(op)


@rule(getattr)
def attribute(op: Op) -> Any:
    owner = op.flows.get(op.node.args[0])  # type: ignore[arg-type]
    name = str(op.node.args[1])
    if isinstance(owner, tuple) and name in ("values", "indices"):  # the named tuple of max() and its kind
        return owner[("values", "indices").index(name)]
    if isinstance(op.out, torch.Tensor):
        return None if name not in ("data", "real", "imag") or not isinstance(owner, Flow) else unwritten(owner)
    if name == "shape":
        _note(op)
    return None


@rule(
    torch.zeros_like, torch.ones_like, torch.rand_like, torch.randn_like, torch.empty_like, torch.full_like,
    "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor",
)  # fmt: skip
def like(op: Op) -> Any:
    _note(op)
    flow = op.find(op.node.args[0])
    if flow is None or bool(immortal(flow.ids).any()):
        return constant_flow(op.out, FIXED)
    return Flow(op.table.size_of(flow.ids, op.node.name).reshape((1,) * op.out.ndim))


@rule("expand_as")
def shaped_as(op: Op) -> Flow | None:
    if not op.node.users:  # an index that scatter_add had, see trace/canonical_calls.py
        return Flow(np.full((1,) * op.out.ndim, ONE, dtype=np.int64))
    flow, other = op.flow(), op.flow(1, "other")
    op.notes.sized.append((op.node, other.ids.reshape(-1)))
    read = np.unique(other.ids)
    if bool(immortal(read).any()) or np.array_equal(read, np.unique(flow.ids)):
        return flow
    token = op.table.size_of(read, op.node.name)  # some of the tensor whose size it reads must exist
    return replace(flow, ids=op.table.all(flow.ids, token.reshape((1,) * flow.ids.ndim)))


def _note(op: Op) -> None:
    flow = op.find(op.node.args[0])
    if flow is not None:
        op.notes.sized.append((op.node, flow.ids.reshape(-1)))


@size.emitter
def _size(op: Op, slim: Slim) -> Any:
    node = op.node.args[0]
    if op.node.target == "size" and isinstance(node, fx.Node) and slim.flow(node) is not None:
        dim = op.get("dim", 1)
        return sizes_of(node, slim) if dim is None else sizes_of(node, slim)[int(dim)]
    return slim.replay(op.node)


@attribute.emitter
def _attribute(op: Op, slim: Slim) -> Any:
    node, name = op.node.args[0], op.node.args[1]
    if name == "shape" and isinstance(node, fx.Node) and slim.flow(node) is not None:
        return sizes_of(node, slim)
    if isinstance(op.out, torch.Tensor) and isinstance(node, fx.Node):
        piece = slim.piece(node)
        return None if piece is None else replace(piece, node=slim.graph.call_function(getattr, (piece.node, name)))
    piece = slim.piece(node) if isinstance(node, fx.Node) and slim.flow(node) is not None else None
    if piece is None and isinstance(node, fx.Node) and slim.flow(node) is not None and name in ("dtype", "device"):
        if name == "dtype":  # of a tensor that was removed
            return op.out
        inputs = (other for other in slim.channels.trace.graph.nodes if other.op == "placeholder")
        piece = slim.piece(next(other for other in inputs if slim.flow(other) is not None))
    return slim.graph.call_function(getattr, (piece.node if piece is not None else slim.argument(node), name))


def sizes_of(node: fx.Node, slim: Slim) -> tuple[Any, ...]:
    """The original sizes of a tensor: read off what is left of it, or known if its channels are gone."""
    piece, value = slim.laid_out(node), node.meta["value"]
    if piece is None:
        raise Gone(f"the size of {node.name} is read but nothing of it lives")
    if isinstance(piece, GridPiece):
        own = (piece.grid.outer, piece.grid.axis)
        return tuple(int(full) if axis in own else slim.graph.call_method("size", (piece.node, axis))
                     for axis, full in enumerate(value.shape))  # fmt: skip
    flow = slim.flow(node)
    assert flow is not None
    sizes: list[Any] = []
    for axis, full in enumerate(value.shape):
        if axis != piece.axis:
            sizes.append(slim.graph.call_method("size", (piece.node, axis)))
        elif np.unique(flow.ids).size == full or flow.ids.shape[axis] == 1:
            sizes.append(int(full))
        else:  # channels x positions in one axis: scaled by the share of channels that is left
            existing = piece.along(axis, full).size
            now = slim.graph.call_method("size", (piece.node, axis))
            scaled = slim.graph.call_function(operator.mul, (now, int(full)))
            sizes.append(slim.graph.call_function(operator.floordiv, (scaled, existing)))
    return tuple(sizes)


@like.emitter
def _like(op: Op, slim: Slim) -> Piece | None:
    return Piece(slim.replay(op.node))


@shaped_as.emitter
def _shaped_as(op: Op, slim: Slim) -> Piece | None:
    """``a.expand_as(b)``: to the original size of ``b``, without the channels that ``a`` has lost."""
    if not op.node.users:
        return None
    source, other = op.node.args[0], op.node.args[1]
    assert isinstance(source, fx.Node) and isinstance(other, fx.Node)
    piece = slim.piece(source)
    if piece is None:
        return None
    sizes = list(sizes_of(other, slim))
    lead = op.out.ndim - source.meta["value"].ndim
    if piece.axis is None or source.meta["value"].shape[piece.axis] == 1:  # its only channel lives: it is complete
        return Piece(slim.graph.call_method("expand", (piece.node, *sizes)))
    sizes[piece.axis + lead] = -1
    return Piece(slim.graph.call_method("expand", (piece.node, *sizes)), piece.axis + lead, piece.positions)
