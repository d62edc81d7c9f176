"""Products summed over some of their axes: ``torch.einsum``, ``torch.tensordot``, and what ``matmul`` has no short form
for.

Every axis has a letter. A product lives where all its operands do; a sum of products where any of them does.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from fxprune.channels.ids import Ids
from fxprune.rules.operands import Piece, Slim, whole_op
from fxprune.rules.registry import Flow, NoChannels, Op, rule

_MOST = 1 << 20  # ids of a product: beyond that following them takes longer than anything they would save


def contract(op: Op, operands: Sequence[Any], letters: Sequence[str], out: str) -> Flow:
    """The ids of a contraction, as einsum would write it."""
    summed = "".join(dict.fromkeys(letter for own in letters for letter in own if letter not in out))
    order = out + summed
    parts: list[Ids] = []
    for operand, own in zip(operands, letters, strict=True):
        flow = op.find(operand)
        if flow is not None:
            ids = flow.ids.transpose(sorted(range(len(own)), key=lambda axis: order.index(own[axis])))
            parts.append(ids.reshape([flow.ids.shape[own.index(c)] if c in own else 1 for c in order]))
    if math.prod(np.broadcast_shapes(*(part.shape for part in parts))) > _MOST:
        raise NoChannels(f"{op.node.name}: too many products to follow")
    products = op.table.all(*parts)
    shape = products.shape[: len(out)]
    if products.size == math.prod(shape):
        return Flow(products.reshape(shape))
    sums = op.table.mix(products.reshape(math.prod(shape), -1), rows=1, owner=op.node.name)
    return Flow(sums.reshape(shape))


@rule(torch.einsum, torch.tensordot)
def contraction(op: Op) -> Flow:
    operands, letters, out = _written(op)
    return contract(op, operands, letters, out)


def _written(op: Op) -> tuple[list[fx.Node], list[str], str]:
    """Operands, the letters of their axes and those of the result's."""
    if op.node.target is torch.tensordot:
        operands: Any = [op.raw(0, "a"), op.raw(1, "b")]
        dims = op.get("dims", 2, 2)
        letters = _tensordot_letters([node.meta["value"].ndim for node in operands], dims)
        return operands, letters, "".join(c for c in "".join(letters) if (c in letters[0]) != (c in letters[1]))
    equation, *operands = op.node.args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    if not isinstance(equation, str) or not all(isinstance(node, fx.Node) for node in operands):
        raise NoChannels(f"{op.node.name}: axes given as lists of numbers")
    left, arrow, out = equation.replace(" ", "").partition("->")
    letters = left.split(",")
    free = [c for c in string.ascii_letters if c not in equation]
    ranks = [node.meta["value"].ndim - len(own.replace("...", "")) for own, node in zip(letters, operands, strict=True)]
    longest = free[: max([rank for own, rank in zip(letters, ranks, strict=True) if "..." in own], default=0)]
    letters = [
        own.replace("...", "".join(longest[len(longest) - rank :])) for own, rank in zip(letters, ranks, strict=True)
    ]
    if not arrow:
        every = "".join(letters)
        out = "..." + "".join(sorted(c for c in set(every) if every.count(c) == 1 and c not in longest))
    if any(len(set(own)) < len(own) for own in letters):
        raise NoChannels(f"{op.node.name}: a diagonal")
    return operands, letters, out.replace("...", "".join(longest))


def _tensordot_letters(ranks: list[int], dims: Any) -> list[str]:
    if isinstance(dims, int):
        dims = list(range(ranks[0] - dims, ranks[0])), list(range(dims))
    one, other = ([dims[k]] if isinstance(dims[k], int) else list(dims[k]) for k in (0, 1))
    left = string.ascii_letters[: ranks[0]]
    right = list(string.ascii_letters[ranks[0] : ranks[0] + ranks[1]])
    for mine, yours in zip(one, other, strict=True):
        right[yours] = left[mine]
    return [left, "".join(right)]


@contraction.emitter
def _contract(op: Op, slim: Slim) -> Piece | None:
    """Every operand at the channels that the sums run over, or that the result has."""
    operands, letters, out = _written(op)
    flow = slim.flow(op.node)
    assert flow is not None
    kept = _kept(operands, letters, slim)
    if kept is None:
        return whole_op(op, slim)
    cut = [letter for letter in out if letter in kept]
    if cut:
        if flow.axis is None or cut != [out[flow.axis]]:
            return whole_op(op, slim)
        kept[cut[0]] = slim.wanted(flow.ids.reshape(-1))
    made = slim.same(op, {n: _taken(n, own, kept, slim) for n, own in zip(operands, letters, strict=True)})
    return Piece(made, flow.axis, kept[cut[0]]) if cut else Piece(made)


def _kept(operands: list[fx.Node], letters: list[str], slim: Slim) -> dict[str, Ids] | None:
    """Letter -> the positions that all operands have; None where the operands must be complete."""
    kept: dict[str, Ids] = {}
    if len(set(operands)) < len(operands):  # one tensor in two roles
        return None
    for node, own in zip(operands, letters, strict=True):
        piece = slim.piece(node) if slim.flow(node) is not None else None
        if slim.flow(node) is not None and piece is None:
            return None
        if piece is not None and piece.axis is not None:
            letter, positions = own[piece.axis], piece.along(piece.axis, 0)
            kept[letter] = np.intersect1d(kept[letter], positions) if letter in kept else positions
    return kept if all(positions.size for positions in kept.values()) else None


def _taken(node: fx.Node, own: str, kept: dict[str, Ids], slim: Slim) -> fx.Node:
    value = node.meta["value"]
    axes = [axis for axis, letter in enumerate(own) if letter in kept and value.shape[axis] > 1]
    if slim.flow(node) is None:
        first = axes.pop(0) if axes else None
        made: fx.Node = slim.constant(node, first, kept[own[first]] if first is not None else None)
    else:
        piece = slim.piece(node)
        assert piece is not None
        made = piece.node
        if piece.axis is not None:
            axes.remove(piece.axis)
            made = slim.select(piece, piece.axis, kept[own[piece.axis]], value)
    for axis in axes:
        made = slim.select(Piece(made), axis, kept[own[axis]], value)
    return made
