"""Ways of writing an op into the slim graph that several rules share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx, nn

from fxprune.ids import Ids
from fxprune.rules.registry import Op
from fxprune.rules.slim import Piece, Slim
from fxprune.tracing.copies import copy_module

__all__ = [
    "ADD_TO", "Piece", "Slim", "cut_module", "living_only", "per_channel_function", "per_channel_module", "same_op",
    "scaled_by_gate", "sliced_constants", "wanted_of", "whole_op",
]  # fmt: skip


# ``view.add_(part)``; in this form the passes of torch.fx know that it is no dead code though nobody reads its result.
ADD_TO = torch.ops.aten.add_.Tensor


def same_op(op: Op, slim: Slim) -> Piece | None:
    """The same op on the compact operand: right for everything that looks at one channel at a time."""
    if len(op.inputs) != 1:
        return whole_op(op, slim)
    piece = slim.piece(op.inputs[0])
    if piece is None:
        return None
    operands = {op.inputs[0]: piece.node, **sliced_constants(op, slim, piece)}
    return Piece(slim.same(op, operands), piece.axis, piece.positions)


def sliced_constants(op: Op, slim: Slim, piece: Piece) -> dict[fx.Node, Any]:
    """Per-channel parameters and buffers among the arguments, cut to the channels that exist."""
    found: dict[fx.Node, Any] = {}
    for node in op.node.all_input_nodes:
        value = node.meta["value"]
        if slim.flow(node) is None and node not in slim.values and isinstance(value, torch.Tensor):
            axis = None if piece.axis is None else piece.axis - (_ndim(op.out) - value.ndim)
            inside = axis is not None and axis >= 0
            found[node] = slim.constant(node, axis if inside else None, piece.positions if inside else None)
    return found


def living_only(op: Op, slim: Slim, piece: Piece, axis: int) -> Piece:
    """A module called several times computes in each call what any of them needs: drop what is dead in this one."""
    flow = slim.flow(op.node)
    assert flow is not None
    positions = piece.along(axis, op.out.shape[axis])
    living = positions[np.broadcast_to(slim.present[flow.ids].reshape(-1), (op.out.shape[axis],))[positions]]
    return Piece(slim.select(piece, axis, living, op.out), axis, living)


def per_channel_function(op: Op, slim: Slim) -> Piece | None:
    """A functional norm: its vectors (weight, bias, running statistics) cut to the channels of axis 1 that exist."""
    source = op.inputs[0]
    piece = slim.compact(source, 1)
    if piece is None:
        return None
    operands: dict[fx.Node, Any] = {source: piece.node}
    for node in op.node.all_input_nodes:
        value = node.meta["value"]
        if slim.flow(node) is None and isinstance(value, torch.Tensor):
            vector = value.ndim == 1 and value.numel() > 1
            operands[node] = slim.constant(node, 0 if vector else None, piece.positions)
    return Piece(slim.same(op, operands), piece.axis, piece.positions)


def whole_op(op: Op, slim: Slim) -> Piece | None:
    """The op on complete operands (exact for any op), then only the channels that are wanted."""
    dead = [node for node in op.inputs if slim.piece(node) is None]
    living = next((node for node in op.inputs if node not in dead), None)
    if living is None:
        return None
    operands = {node: zeros(slim, node, living) if node in dead else slim.full(node) for node in op.inputs}
    return wanted_of(op, slim, Piece(slim.same(op, operands)))


def zeros(slim: Slim, node: fx.Node, living: fx.Node) -> fx.Node:
    """A dead tensor in full: sizes that it shares with a living operand are read off that one, others are fixed."""
    model, shape = slim.full(living), node.meta["value"].shape
    same = living.meta["value"].shape if living.meta["value"].ndim == len(shape) else ()
    sizes = [
        slim.graph.call_method("size", (model, axis)) if same and same[axis] == size else int(size)
        for axis, size in enumerate(shape)
    ]
    return slim.graph.call_method("new_zeros", (model, sizes))


def wanted_of(op: Op, slim: Slim, piece: Piece) -> Piece:
    """Drop the channels of a complete result that nobody reads."""
    flow = slim.flow(op.node)
    if flow is None or flow.axis is None:
        return piece
    positions = slim.wanted(flow.ids.reshape(-1))
    if positions.size == flow.ids.size:
        return piece
    return Piece(slim.select(piece, flow.axis, positions, op.out), flow.axis, positions)


def per_channel_module(op: Op, slim: Slim) -> Piece | None:
    """A module with parameters per channel of axis 1: cut to the union of what its calls compute."""
    source = op.inputs[0]
    piece = slim.compact(source, 1)
    if piece is None:
        return None
    calls = slim.calls.get(str(op.node.target), [])
    if piece.axis is None and len(calls) < 2:
        return Piece(slim.same(op, {source: piece.node}))
    size = op.out.shape[1]
    positions = piece.along(1, size)
    if len(calls) > 1:
        positions = np.flatnonzero(np.logical_or.reduce([slim.present[call.ids] for call in calls]))
    path = slim.module(str(op.node.target), cut_module(op.module, positions, size))
    made = Piece(slim.graph.call_module(path, (slim.fetch(source, 1, positions),)), 1, positions)
    return living_only(op, slim, made, 1) if len(calls) > 1 else made


def cut_module(module: nn.Module | None, positions: Ids, size: int) -> nn.Module:
    """A copy whose vectors of length ``size`` keep ``positions`` only."""
    assert module is not None
    index = torch.from_numpy(positions)
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        if tensor.ndim == 1 and tensor.shape[0] == size:
            cut = tensor.detach().index_select(0, index.to(tensor.device))
            memo[id(tensor)] = nn.Parameter(cut, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else cut
    made = copy_module(module, memo)
    for attribute in ("num_features", "num_parameters", "num_channels"):
        if hasattr(made, attribute):
            setattr(made, attribute, int(positions.size))
    return made


def scaled_by_gate(slim: Slim, piece: Piece, axis: int, values: torch.Tensor, ndim: int) -> Piece:
    """A gate that no batch norm and no weight can take in: an explicit multiply."""
    if bool((values == 1).all()):
        return piece
    shape = [1] * ndim
    shape[axis] = -1
    positions = piece.along(axis, values.numel())
    constant = slim.attribute("gate_0", values[torch.from_numpy(positions)].reshape(shape))
    return Piece(slim.graph.call_function(torch.mul, (piece.node, constant)), piece.axis, piece.positions)


def _ndim(value: Any) -> int:
    return value.ndim if isinstance(value, torch.Tensor) else _ndim(value[0])
