"""Layer and group norms of pruned channels: the statistics of all of them, computed from the living ones.

Dead channels are zeros. If a share r of the channels is looked at, and these have mean m and variance v, then all
channels together have the mean rm and the variance rv + r(1 - r)m².
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import fx

from fxprune.ids import Ids
from fxprune.rules.emit import Piece, Slim
from fxprune.rules.mixing import even_columns
from fxprune.rules.registry import Op


def layer_norm_of_living(op: Op, slim: Slim, piece: Piece, axes: list[int]) -> Piece:
    """``axes`` are normalised together; one of them is the pruned one."""
    assert piece.axis is not None and piece.positions is not None
    share = piece.positions.size / op.out.shape[piece.axis]
    cut = (piece.axis - axes[0], piece.positions)
    weight, bias = _vector(op, slim, "weight", 2, *cut), _vector(op, slim, "bias", 3, *cut)
    node = _normalised(slim, piece.node, axes, share, op.get("eps", 4, 1e-5), weight, bias)
    return Piece(node, piece.axis, piece.positions)


def group_norm_of_living(op: Op, slim: Slim, living: Ids) -> Piece:
    """Groups with holes: each has as many channels as the one with the most left, zeros among them."""
    count, groups = op.out.shape[1], op.get("num_groups", 1)
    kept = np.zeros(count, dtype=bool)
    kept[living] = True
    rows = kept.reshape(groups, -1)
    alive = np.flatnonzero(rows.any(1))
    columns = even_columns(rows[alive])
    positions = (alive[:, None] * rows.shape[1] + columns).reshape(-1)
    shape, rank = columns.shape, op.out.ndim + 1

    def spread(name: str, position: int) -> fx.Node | None:
        held = _vector(op, slim, name, position, 0, positions)
        return None if held is None else slim.graph.call_method("reshape", (held, (*shape, *(1,) * (rank - 3))))

    node = slim.fetch(op.inputs[0], 1, positions)
    node = slim.graph.call_method("unflatten", (node, 1, shape))
    share, eps = shape[1] / rows.shape[1], op.get("eps", 4, 1e-5)
    node = _normalised(slim, node, list(range(2, rank)), share, eps, spread("weight", 2), spread("bias", 3))
    made = Piece(slim.graph.call_method("flatten", (node, 1, 2)), 1, positions)
    return Piece(slim.select(made, 1, living, op.out), 1, living)


def _normalised(
    slim: Slim, x: fx.Node, axes: list[int], share: float, eps: float, weight: fx.Node | None, bias: fx.Node | None
) -> fx.Node:
    """x * scale + shift, where both are small as long as there are positions that share them."""
    call = slim.graph.call_function
    both = call(torch.var_mean, (x, axes), {"correction": 0, "keepdim": True})
    variance, mean = (call(operator.getitem, (both, k)) for k in (0, 1))
    spread = call(torch.mul, (call(torch.square, (mean,)), share * (1 - share)))
    variance = call(torch.add, (call(torch.mul, (variance, share)), spread))
    scale = call(torch.rsqrt, (call(torch.add, (variance, eps)),))
    scale = scale if weight is None else call(torch.mul, (scale, weight))
    shift = call(torch.mul, (call(torch.mul, (mean, -share)), scale))
    shift = shift if bias is None else call(torch.add, (shift, bias))
    return call(torch.addcmul, (shift, x, scale))


def _vector(op: Op, slim: Slim, name: str, position: int, axis: int, positions: Ids) -> fx.Node | None:
    """A norm's weight or bias, cut along ``axis``, under its own name."""
    if op.module is not None:
        held = getattr(op.module, name)
        if held is None:
            return None
        cut = held.detach().index_select(axis, torch.from_numpy(positions).to(held.device))
        return slim.attribute(f"{op.node.target}.{name}", cut, grad=held.requires_grad)
    raw: Any = op.raw(position, name)
    return slim.constant(raw, axis, positions) if isinstance(raw, fx.Node) else None
