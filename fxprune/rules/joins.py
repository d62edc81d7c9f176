"""Where tensors meet: adds (alive if any operand is), multiplies (alive if all are), and their relatives."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from fxprune.channels.ids import ZERO, Ids, immortal
from fxprune.rules.elementwise import also_reads, masked_fill, power
from fxprune.rules.operands import (
    ADD_TO,
    GridPiece,
    Piece,
    Slim,
    element_by_element,
    on_grid,
    same_op,
    whole_op,
)
from fxprune.rules.registry import Flow, NoChannels, Op, rule, unwritten


def _operands(op: Op, *names: str) -> list[tuple[Any, Flow | None]]:
    raw = [op.raw(position, name) for position, name in enumerate(names)]
    return [(argument, op.find(argument)) for argument in raw if argument is not None]


def _is_zero(argument: Any) -> bool:
    return isinstance(argument, (int, float)) and not isinstance(argument, fx.Node) and argument == 0


@rule(
    operator.add, torch.add, "add", "__add__", "__radd__", operator.sub, torch.sub, torch.subtract, "sub", "__sub__",
    torch.rsub, "rsub", "__rsub__", torch.maximum, torch.minimum, "maximum", "minimum", torch.fmax, torch.fmin,
)  # fmt: skip
def add(op: Op) -> Flow | None:
    operands = _operands(op, "input", "other")
    flows = [flow for _, flow in operands if flow is not None]
    if not flows:
        return None
    if len(flows) == 1:  # a number or a parameter per channel: no join, but a dead channel becomes that number
        constant = next((argument for argument, flow in operands if flow is None), 0)
        return replace(_at_rank(op, flows[0]), clean=_is_zero(constant), writer=None)
    return Flow(any_of(op, flows))


def any_of(op: Op, flows: list[Flow]) -> Ids:
    """*any*; but if one operand alone gives the result its size (the others broadcast), some of it has to live.

    Of a single sample nobody sees whether a table that is made for any input has samples, too.
    """
    ids = op.table.any(*(flow.ids for flow in flows))
    shapes = {
        node: (1,) * (op.out.ndim - node.meta["value"].ndim) + tuple(node.meta["value"].shape) for node in op.inputs
    }
    for node, shape in shapes.items():
        others = [other for n, other in shapes.items() if n is not node]
        alone = any(size > 1 and all(other[axis] == 1 for other in others) for axis, size in enumerate(shape))
        own = np.unique(op.flows[node].ids)
        alone = alone or (op.out.shape[:1] == (1,) and _has_samples_alone(op, node))
        if others and alone and not bool(immortal(own).any()):
            op.notes.sized.append((op.node, own))
            token = op.table.size_of(own, op.node.name)
            ids = op.table.all(ids, token.reshape((1,) * ids.ndim))
    return ids


def _has_samples_alone(op: Op, node: fx.Node) -> bool:
    """Whether it depends on the input, and no other operand does."""
    silent = {other: op.table.says_nothing(op.flows[other].ids) for other in op.inputs}
    return not silent.pop(node) and bool(silent) and all(silent.values())


@rule(operator.mul, torch.mul, torch.multiply, "mul", "multiply", "__mul__", "__rmul__")
def multiply(op: Op) -> Flow | None:
    flows = [flow for _, flow in _operands(op, "input", "other") if flow is not None]
    if not flows:
        return None
    if len(flows) == 1:
        return unwritten(_at_rank(op, flows[0]))
    return _scaled(op, flows)


def _at_rank(op: Op, flow: Flow) -> Flow:
    """A constant may have more axes: then the axis of channels moves back by as many."""
    lead = op.out.ndim - flow.ids.ndim
    return replace(flow, ids=flow.ids.reshape((1,) * lead + flow.ids.shape)) if lead else flow


def _scaled(op: Op, flows: list[Flow]) -> Flow:
    scalers = frozenset(i for i, flow in enumerate(flows) if flow.scaler)
    if len(scalers) == len(flows):
        scalers = frozenset()
    return Flow(op.table.all(*(flow.ids for flow in flows), scalers=scalers))


@rule(
    operator.truediv, torch.div, torch.divide, torch.true_divide, "div", "divide", "true_divide", "__truediv__",
    operator.floordiv, torch.floor_divide, "floor_divide", operator.mod, torch.remainder, torch.fmod, "remainder",
    "fmod",
)  # fmt: skip
def divide(op: Op) -> Flow | None:
    (_, numerator), (_, denominator) = _operands(op, "input", "other")
    if denominator is None:
        return unwritten(_at_rank(op, numerator)) if numerator is not None else None
    if numerator is None:
        return Flow(_at_rank(op, denominator).ids, clean=False)
    return Flow(op.table.all(numerator.ids, denominator.ids), clean=False)


@rule(
    operator.gt, operator.lt, operator.ge, operator.le, operator.eq, operator.ne, operator.and_, operator.or_,
    operator.xor, torch.gt, torch.lt, torch.ge, torch.le, torch.eq, torch.ne, torch.logical_and, torch.logical_or,
    "gt", "lt", "ge", "le", "eq", "ne", "logical_and", "logical_or",
)  # fmt: skip
def compare(op: Op) -> Flow | None:
    flows = [flow for _, flow in _operands(op, "input", "other") if flow is not None]
    return Flow(any_of(op, flows), clean=False) if flows else None


@rule(torch.where, "where")
def where(op: Op) -> Flow | None:
    is_method = op.node.op == "call_method"  # x.where(condition, other)
    operands = _operands(op, *(("input", "condition", "other") if is_method else ("condition", "input", "other")))
    if is_method and len(operands) == 3:
        operands = [operands[1], operands[0], operands[2]]
    if len(operands) != 3:
        return None
    flows = [flow for _, flow in operands[1:] if flow is not None]
    if not flows:
        return None
    clean = all(_is_zero(argument) for argument, flow in operands[1:] if flow is None)
    return Flow(also_reads(op.table, any_of(op, flows), operands[0][1]), clean)


@rule(torch.addcmul, "addcmul")
def addcmul(op: Op) -> Flow | None:
    (_, base), (_, one), (_, other) = _operands(op, "input", "tensor1", "tensor2")
    factors = [flow for flow in (one, other) if flow is not None]
    product = _scaled(op, factors) if len(factors) == 2 else factors[0] if factors else None
    added = [flow for flow in (base, product) if flow is not None]
    return Flow(any_of(op, added), clean=len(added) == 2) if added else None  # a parameter added breaks zeros


_ELSE = ("lerp", "hypot", "logaddexp", "logaddexp2")  # not atan2: a dead channel may be +0 or -0


@rule(*(getattr(torch, name) for name in _ELSE), *_ELSE, torch.complex, torch.polar)
def of_several(op: Op) -> Flow:
    """Several tensors, element by element: whatever zeros become, a mask makes dead channels zero again."""
    return Flow(any_of(op, [op.flows[node] for node in op.inputs]), clean=False)


@rule(F.glu, nn.GLU)
def glu(op: Op) -> Flow:
    """``a * sigmoid(b)`` of two halves: the second one only scales the first."""
    flow, dim = op.flow(), op.get("dim", 1, -1)
    axis = int(dim) % flow.ids.ndim
    if flow.ids.shape[axis] == 1:
        return unwritten(flow)
    half = flow.ids.shape[axis] // 2
    values, logits = (flow.ids.take(range(start, start + half), axis) for start in (0, half))
    return Flow(op.table.all(values, logits, scalers=frozenset({1})), clean=False)


MOST_PIECES = 2  # beyond that a scatter-add is faster

_ADDS = (operator.add, torch.add, "add", "__add__", "__radd__")


@add.emitter
def _add(op: Op, slim: Slim) -> Piece | GridPiece | None:
    """Two branches meet. Their sets of channels decide: a plain add, a slice add, a scatter-add or a concat."""
    if len(op.inputs) == 1:
        once = op.node.args.count(op.inputs[0]) == 1 and op.inputs[0].meta["value"].ndim == op.out.ndim
        return element_by_element(op, slim) if once else both(op, slim)
    flow = slim.flow(op.node)
    pieces = [slim.piece(node) for node in op.inputs]
    alive = [node for node, piece in zip(op.inputs, pieces, strict=True) if piece is not None]
    plain = op.node.target in _ADDS and "alpha" not in op.node.kwargs and len(op.node.args) == 2
    plain = plain and all(map(_of_channels, (op.flows[node] for node in op.inputs)))
    plain = plain and not (op.out.shape[:1] == (1,) and any(_has_samples_alone(op, node) for node in op.inputs))
    shapes = {tuple(node.meta["value"].shape) for node in op.inputs}
    kinds = {node.meta["value"].dtype for node in op.inputs}
    if plain and len(alive) == len(kinds) == 1 and shapes == {tuple(op.out.shape)}:
        slim.joined(op, "through")
        return slim.piece(alive[0])
    if not plain or flow is None or flow.axis is None or len(shapes) > 1 or len(kinds) > 1 or len(alive) < 2:
        return both(op, slim)
    alive.sort(key=lambda node: int(op.flows[node].ids.min()))  # the stream first, then what is added to it
    one, other = (slim.compact(node, flow.axis) for node in alive)
    assert one is not None and other is not None
    return mixed_add(op, slim, one, other, flow.axis, slim.wanted(flow.ids.reshape(-1)))


def _of_channels(flow: Flow) -> bool:
    """More than one id for the whole tensor. (One for all has a table resized to the input; it has no samples.)"""
    return flow.ids.size > 1 or bool(immortal(flow.ids).all())


def mixed_add(op: Op, slim: Slim, one: Piece, other: Piece, axis: int, wanted: Ids) -> Piece:
    """The sum has the channels of ``one``, then those that only ``other`` has: a stream grows at its end."""
    value = op.out
    size = value.shape[axis]
    if np.isin(one.along(axis, size), other.along(axis, size)).all():
        one, other = other, one
    wide, narrow = (part.along(axis, size) for part in (one, other))
    if not (np.isin(wide, wanted).all() and np.isin(narrow, wanted).all()):
        wide, narrow = wide[np.isin(wide, wanted)], narrow[np.isin(narrow, wanted)]
        one, other = (Piece(slim.select(p, axis, at, value), axis, at) for p, at in ((one, wide), (other, narrow)))
    graph = slim.graph
    new = narrow[~np.isin(narrow, wide)]
    both_ways = narrow[np.isin(narrow, wide)]
    if new.size == 0 and both_ways.size == wide.size:
        slim.joined(op, "plain")
        total = graph.call_function(operator.add, (one.node, slim.select(other, axis, wide, value)))
        total.meta["plain"] = True  # of two tensors of one shape
        return Piece(total, axis, wide)
    positions = np.concatenate([wide, new])
    if new.size:
        base = slim.concat([one.node, slim.select(other, axis, new, value)], axis, value.ndim)
    else:
        base = graph.call_method("clone", (one.node,))  # left out if nobody else reads it
    if both_ways.size == 0:
        slim.joined(op, "concat")
        return Piece(base, axis, positions)
    where = np.full(size, -1, dtype=np.int64)
    where[wide] = np.arange(wide.size)
    index = np.sort(where[both_ways])
    runs = np.split(index, np.flatnonzero(np.diff(index) != 1) + 1)
    if len(runs) <= MOST_PIECES:
        slim.joined(op, "slice")
        for run in runs:
            under = graph.call_method("narrow", (base, axis, int(run[0]), int(run.size)))
            graph.call_function(ADD_TO, (under, slim.select(other, axis, wide[run], value)))
    else:
        slim.joined(op, "scatter")
        base = slim.scatter_add(base, axis, index, slim.select(other, axis, wide[index], value), value.ndim)
    return Piece(base, axis, positions)


@rule(torch.index_add, "index_add")
def index_add(op: Op) -> Flow:
    """``other`` is added to some channels of ``input``: the scatter-add of a slim net that is pruned again."""
    base, part, axis, index = op.flow(), op.flow(3, "source"), *_places(op)
    if any(size > 1 for ids in (base.ids, part.ids) for k, size in enumerate(ids.shape) if k != axis):
        raise NoChannels(f"{op.node.name}: channels along several axes")
    if np.unique(index).size < index.size or op.get("alpha", 4, 1) != 1:
        raise NoChannels(f"{op.node.name}: more than one add to a channel, or a factor")
    shape = [1] * op.out.ndim
    shape[axis] = op.out.shape[axis]
    spread = np.full(op.out.shape[axis], ZERO, dtype=np.int64)
    spread[index] = part.ids.reshape(-1)
    return Flow(op.table.any(np.broadcast_to(base.ids, shape), spread.reshape(shape)))


def _places(op: Op) -> tuple[int, Ids]:
    index: torch.Tensor = op.known(op.raw(2, "index"))
    return int(op.get("dim", 1)) % op.out.ndim, np.atleast_1d(index.numpy(force=True)).astype(np.int64)


@index_add.emitter
def _index_add(op: Op, slim: Slim) -> Piece | None:
    flow = slim.flow(op.node)
    assert flow is not None
    (base, part), axis = (op.raw(0), op.raw(3, "source")), int(op.get("dim", 1)) % op.out.ndim
    index: Ids = np.atleast_1d(slim.known(op.raw(2, "index")).numpy(force=True)).astype(np.int64)
    added = slim.compact(part, axis)
    if added is not None:
        added = Piece(added.node, axis, index[added.along(axis, index.size)])
    under = slim.compact(base, axis)
    if added is None or under is None:
        slim.joined(op, "through")
        return under if added is None else added
    return mixed_add(op, slim, under, added, axis, slim.wanted(flow.ids.reshape(-1)))


@multiply.emitter
@divide.emitter
@compare.emitter
@where.emitter
@addcmul.emitter
@of_several.emitter
@power.emitter
@masked_fill.emitter
def both(op: Op, slim: Slim) -> Piece | GridPiece | None:
    """Every operand at exactly the channels that the result has; a dead one as zeros."""
    flow = slim.flow(op.node)
    assert flow is not None
    grid = slim.grid(flow.ids)
    on_heads = on_grid(op, slim, grid) if grid is not None else None
    if on_heads is not None:
        return on_heads
    if flow.axis is None:
        if any(slim.piece(node) is None for node in op.inputs):
            return _with_zeros(op, slim, None, np.zeros(0, dtype=np.int64))
        return whole_op(op, slim)
    return _with_zeros(op, slim, flow.axis, slim.wanted(flow.ids.reshape(-1)))


def _with_zeros(op: Op, slim: Slim, axis: int | None, positions: Ids) -> Piece | None:
    rank = op.out.ndim
    operands: dict[fx.Node, Any] = {}
    dead: list[fx.Node] = []
    for node in op.node.all_input_nodes:
        value = node.meta["value"]
        if not isinstance(value, torch.Tensor) or node in slim.values:
            continue
        own = None if axis is None else axis - (rank - value.ndim)
        spread = own is not None and own >= 0 and value.shape[own] > 1
        if slim.flow(node) is None:
            operands[node] = slim.constant(node, own if spread else None, positions if spread else None)
        elif slim.piece(node) is None:
            dead.append(node)
        elif spread:
            operands[node] = slim.fetch(node, own, positions)  # type: ignore[arg-type]
        else:
            operands[node] = slim.full(node)
    living = next((node for node in operands if slim.flow(node) is not None), None)
    if living is None:
        return None
    for node in dead:  # zeros in the shape of a living operand are enough, since operands broadcast
        same = [n for n in operands if slim.flow(n) is not None and n.meta["value"].dtype == node.meta["value"].dtype]
        kind = {} if same else {"dtype": node.meta["value"].dtype}
        operands[node] = slim.graph.call_function(torch.zeros_like, (operands[same[0] if same else living],), kind)
    return Piece(slim.same(op, operands), axis, positions if axis is not None else None)


@glu.emitter
def _glu(op: Op, slim: Slim) -> Piece | None:
    flow, source = slim.flow(op.node), op.inputs[0]
    assert flow is not None
    axis = int(op.get("dim", 1, -1)) % op.out.ndim
    if flow.axis != axis:
        return same_op(op, slim) if flow.ids.shape[axis] == 1 else whole_op(op, slim)
    wanted, half = slim.wanted(flow.ids.reshape(-1)), op.out.shape[axis]
    halves = slim.fetch(source, axis, np.concatenate([wanted, wanted + half]))
    return Piece(slim.same(op, {source: halves}), axis, wanted)
