"""Where tensors meet: adds (alive if any operand is), multiplies (alive if all are), and their relatives."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from fxprune.rules.registry import Flow, Op, rule


def _operands(op: Op, *names: str) -> list[tuple[Any, Flow | None]]:
    raw = [op.raw(position, name) for position, name in enumerate(names)]
    return [(argument, op.find(argument)) for argument in raw if argument is not None]


def _is_zero(argument: Any) -> bool:
    return isinstance(argument, (int, float)) and not isinstance(argument, fx.Node) and argument == 0


@rule(operator.add, torch.add, "add", "__add__", "__radd__", operator.sub, torch.sub, torch.subtract, "sub", "__sub__")
@rule(torch.rsub, "rsub", torch.maximum, torch.minimum, "maximum", "minimum", torch.fmax, torch.fmin, "__rsub__")
def add(op: Op) -> Flow | None:
    operands = _operands(op, "input", "other")
    flows = [flow for _, flow in operands if flow is not None]
    if not flows:
        return None
    if len(flows) == 1:  # a number or a per-channel parameter: nothing joins, but a dead channel becomes that number
        constant = next((argument for argument, flow in operands if flow is None), 0)
        return Flow(flows[0].ids, flows[0].zero and _is_zero(constant))
    return Flow(op.table.any(*(flow.ids for flow in flows)))


@rule(operator.mul, torch.mul, torch.multiply, "mul", "multiply", "__mul__", "__rmul__")
def multiply(op: Op) -> Flow | None:
    flows = [flow for _, flow in _operands(op, "input", "other") if flow is not None]
    if not flows:
        return None
    if len(flows) == 1:
        return op.anchored(flows[0])
    return _scaled(op, flows)


def _scaled(op: Op, flows: list[Flow]) -> Flow:
    scalers = frozenset(i for i, flow in enumerate(flows) if not flow.zero)
    if len(scalers) == len(flows):
        scalers = frozenset()
    return Flow(op.table.all(*(flow.ids for flow in flows), scalers=scalers), all(flow.zero for flow in flows))


@rule(operator.truediv, torch.div, torch.divide, torch.true_divide, "div", "divide", "true_divide", "__truediv__")
@rule(operator.floordiv, torch.floor_divide, "floor_divide", operator.mod, torch.remainder, torch.fmod, "remainder", "fmod")
def divide(op: Op) -> Flow | None:
    (_, numerator), (_, denominator) = _operands(op, "input", "other")
    if denominator is None:
        return op.anchored(numerator) if numerator is not None else None
    if numerator is None:
        return Flow(denominator.ids, zero=False)
    return Flow(op.table.all(numerator.ids, denominator.ids), zero=False)


@rule(operator.gt, operator.lt, operator.ge, operator.le, operator.eq, operator.ne, operator.and_, operator.or_, operator.xor)
@rule(torch.gt, torch.lt, torch.ge, torch.le, torch.eq, torch.ne, torch.logical_and, torch.logical_or)
@rule("gt", "lt", "ge", "le", "eq", "ne", "logical_and", "logical_or")
def compare(op: Op) -> Flow | None:
    flows = [flow for _, flow in _operands(op, "input", "other") if flow is not None]
    return Flow(op.table.any(*(flow.ids for flow in flows)), zero=False) if flows else None


@rule(torch.where, "where")
def where(op: Op) -> Flow | None:
    operands = _operands(op, "condition", "input", "other")
    if op.node.op == "call_method":  # x.where(condition, other)
        operands = [operands[1], operands[0], operands[2]]
    flows = [flow for _, flow in operands if flow is not None]
    if not flows or len(operands) != 3:
        return None
    zero = all(_is_zero(argument) for argument, flow in operands[1:] if flow is None)
    return Flow(op.table.any(*(flow.ids for flow in flows)), zero)


@rule(torch.addcmul, "addcmul")
def addcmul(op: Op) -> Flow | None:
    (_, base), (_, one), (_, other) = _operands(op, "input", "tensor1", "tensor2")
    factors = [flow for flow in (one, other) if flow is not None]
    if base is None or not factors:
        return None
    product = factors[0] if len(factors) == 1 else _scaled(op, factors)
    return Flow(op.table.any(base.ids, product.ids))


@rule(F.glu, nn.GLU)
def glu(op: Op) -> Flow:
    """``a * sigmoid(b)`` of two halves: the second one only scales the first."""
    flow, dim = op.flow(), op.get("dim", 1, -1)
    axis = int(dim) % flow.ids.ndim
    if flow.ids.shape[axis] == 1:
        return op.anchored(flow)
    half = flow.ids.shape[axis] // 2
    values, logits = (flow.ids.take(range(start, start + half), axis) for start in (0, half))
    return Flow(op.table.all(values, logits, scalers=frozenset({1})), flow.zero)
