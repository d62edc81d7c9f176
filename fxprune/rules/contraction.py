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
import numpy.typing as npt
import torch
from torch import fx

from fxprune.channels.ids import Ids
from fxprune.count import flops_of
from fxprune.rules.heads import meeting, scores_of_heads, values_of_heads
from fxprune.rules.operands import Grid, GridPiece, Piece, Slim, whole_op
from fxprune.rules.registry import Cut, Flow, NoChannels, Op, note_in_full, note_product, rule

_MOST = 1 << 20  # ids of a product: beyond that following them takes longer than anything they would save


def contract(op: Op, operands: Sequence[Any], letters: Sequence[str], out: str) -> Flow:
    """The ids of a contraction, as einsum would write it."""
    return _contracted(op, operands, letters, out)[0]


def _contracted(op: Op, operands: Sequence[Any], letters: Sequence[str], out: str) -> tuple[Flow, Ids]:
    """And the ids of the products that are summed."""
    order = _order(letters, out)
    flows = [op.find(operand) for operand in operands]
    parts = [_along(flow, own, order) for flow, own in zip(flows, letters, strict=True) if flow is not None]
    if math.prod(np.broadcast_shapes(*(part.shape for part in parts))) > _MOST:
        raise NoChannels(f"{op.node.name}: too many products to follow")
    products = op.table.all(*parts)
    shape = products.shape[: len(out)]
    if products.size == math.prod(shape):
        if len(parts) == 2:
            _note_values(op, parts, products, len(out))
        op.notes.met.append(products)
        return Flow(products.reshape(shape)), products
    if len(parts) == 2 and parts[0].shape == parts[1].shape:  # else scores between channels would look like heads
        scores_of_heads(op, *parts)
    sums = op.table.mix(products.reshape(math.prod(shape), -1), rows=1, owner=op.node.name)
    op.notes.met.append(sums)
    return Flow(sums.reshape(shape)), products


def _order(letters: Sequence[str], out: str) -> str:
    """Axes of the result, then those that are summed over."""
    return out + "".join(dict.fromkeys(letter for own in letters for letter in own if letter not in out))


def _along(flow: Flow, own: str, order: str) -> Ids:
    """The ids of an operand, its axes in this order."""
    ids: Ids = flow.ids.transpose(sorted(range(len(own)), key=lambda axis: order.index(own[axis])))
    return ids.reshape([flow.ids.shape[own.index(c)] if c in own else 1 for c in order])


def _note_values(op: Op, parts: list[Ids], products: Ids, rank: int) -> None:
    """Where one operand has heads and channels and the other weighs whole heads of it."""
    axes = [axis for axis, size in enumerate(products.shape[:rank]) if size > 1]
    for values, weights in (parts, parts[::-1]):
        if axes and weights.shape[axes[-1]] == 1 and values.shape == products.shape:
            values_of_heads(op, np.moveaxis(values, axes[-1], -1), np.moveaxis(products, axes[-1], -1))


@rule(torch.einsum, torch.tensordot)
def contraction(op: Op) -> Flow:
    operands, letters, out = _written(op)
    flow, products = _contracted(op, operands, letters, out)
    values = [node.meta["value"] for node in operands]
    flops = flops_of(lambda: torch.einsum(f"{','.join(letters)}->{out}", *values))
    along = [size for size in products.shape if size > 1]  # heads and channels, or channels alone
    if len(set(operands)) == len(operands) and (len(along) == 1 or len(along) == len(operands) == 2):
        note_product(op, products.reshape(-1, along[-1]), flops)
    else:
        note_in_full(op, flow.ids, flops)
    return flow


@contraction.constants
def _cut(op: Op, flow: Flow, constant: fx.Node, of_heads: npt.NDArray[np.bool_]) -> Cut | None:
    """Along the only letter that has channels, wherever they come from."""
    operands, letters, _ = _written(op)
    ids = next((product.ids.reshape(-1) for product in op.notes.products if product.node is op.node), None)
    own, shape = letters[operands.index(constant)], constant.meta["value"].shape
    for node, other in zip(operands, letters, strict=True):
        flow_of = op.find(node)
        if ids is not None and flow_of is not None and flow_of.axis is not None and other[flow_of.axis] in own:
            axis = own.index(other[flow_of.axis])
            return Cut(ids[None]) if shape[axis] == ids.size else None
    return None


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


def _scores(op: Op, slim: Slim, operands: list[fx.Node], letters: list[str], out: str) -> Piece | None:
    """Queries times keys, head by head."""
    flows = [slim.flow(node) for node in operands]
    if len(set(operands)) != 2 or len(flows) != 2 or None in flows or None in map(slim.laid_out, operands):
        return None
    order = _order(letters, out)
    one, other = (_along(flow, own, order) for flow, own in zip(flows, letters, strict=True) if flow is not None)
    met = meeting(slim, one, other)
    if met is None or order[met.outer] not in out or order[met.axis] in out:
        return None
    heads, channels = order[met.outer], order[met.axis]
    if not all(heads in own and channels in own for own in letters):
        return None
    grids = [Grid(own.index(heads), met.heads, own.index(channels), met.positions) for own in letters]
    cut = {node: slim.fetch_grid(node, grid) for node, grid in zip(operands, grids, strict=True)}
    return Piece(slim.same(op, cut), out.index(heads), met.heads)


def _weighted(op: Op, slim: Slim, operands: list[fx.Node], letters: list[str], out: str) -> GridPiece | None:
    """Values weighted by scores."""
    flow = slim.flow(op.node)
    grid = slim.grid(flow.ids) if flow is not None else None
    if grid is None or len(set(operands)) != 2 or len(operands) != 2:
        return None
    heads, channels = out[grid.outer], out[grid.axis]
    cut: dict[fx.Node, Any] = {}
    for node, own in zip(operands, letters, strict=True):
        axis = own.find(heads)
        if slim.flow(node) is not None and slim.laid_out(node) is None:
            return None
        if channels in own:
            if axis < 0 or slim.flow(node) is None:
                return None
            cut[node] = slim.fetch_grid(node, Grid(axis, grid.heads, own.index(channels), grid.positions))
        elif slim.flow(node) is None:
            cut[node] = slim.constant(node, axis if axis >= 0 else None, grid.heads)
        else:
            cut[node] = slim.fetch(node, axis, grid.heads) if axis >= 0 else slim.full(node)
    return GridPiece(slim.same(op, cut), grid)


@contraction.emitter
def _contract(op: Op, slim: Slim) -> Piece | GridPiece | None:
    """Every operand at the channels that the sums run over, or that the result has."""
    operands, letters, out = _written(op)
    by_heads = _scores(op, slim, operands, letters, out) or _weighted(op, slim, operands, letters, out)
    if by_heads is not None:
        return by_heads
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
