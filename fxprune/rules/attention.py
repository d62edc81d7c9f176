"""Attention in one call: what matmul, softmax and matmul would do, channels of queries and keys summed over."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F
from torch import fx

from fxprune.channels.ids import FIXED, Ids, immortal
from fxprune.rules.heads import meeting, scores_of_heads, values_of_heads
from fxprune.rules.operands import Grid, GridPiece, Piece, Slim, whole_op
from fxprune.rules.registry import Cut, Flow, Op, constant_flow, note_product, rule

_NAMES = ("query", "key", "value")


@rule(F.scaled_dot_product_attention)
def attention(op: Op) -> Flow | None:
    """The values' channels, whatever lives of queries and keys: without them all scores are alike, and not nothing."""
    given = [(op.raw(i, name), op.value(i, name)) for i, name in enumerate(_NAMES)]
    flows = [op.find(raw) or constant_flow(tensor, FIXED) for raw, tensor in given]
    mask = op.find(op.raw(3, "attn_mask"))
    if max(flow.ids.shape[-2] for flow in flows) > 1 or (mask is not None and mask.ids.size > 1):
        return None
    heads = [tensor.shape[-3] if tensor.ndim > 2 else 1 for _, tensor in given]
    lead = {tensor.shape[:-3] for _, tensor in given}
    if len(lead) > 1 or (len(set(heads)) > 1 and not op.get("enable_gqa", 7, False)):
        return None
    query, key, value = (_repeated(flow.ids, heads[0] // count) for flow, count in zip(flows, heads, strict=True))
    queries, keys = np.broadcast_arrays(query, key)
    pairs = op.table.all(queries, keys)  # .., 1, channels
    scores_of_heads(op, queries[..., 0, :], keys[..., 0, :])
    scores_size, same = op.value(0, "query").shape[:-1].numel() * op.value(1, "key").shape[-2], _same_width(op)
    width = op.value(0, "query").shape[-1]
    note_product(op, _as_wide(pairs, width), 2 * scores_size * width, pairs, same_width=same)
    scores = op.table.mix(pairs.reshape(-1, pairs.shape[-1]), rows=1, owner=op.node.name)
    needed = op.table.any(value, scores.reshape(*pairs.shape[:-1], 1))  # lives whenever the value does
    result = op.table.all(value, needed)
    if mask is not None and not bool(immortal(mask.ids).all()):  # made of the size of a tensor that may be gone
        result = op.table.all(result, mask.ids.reshape((1,) * result.ndim))
    op.notes.met.append(result)
    values_of_heads(op, np.broadcast_to(value, result.shape), result)
    note_product(op, _as_wide(result, op.out.shape[-1]), 2 * scores_size * op.out.shape[-1], pairs, same_width=same)
    return Flow(result)


def _as_wide(ids: Ids, width: int) -> Ids:
    """One id per channel, also where all channels have the same: two products are compared by their widths."""
    return np.broadcast_to(ids, (*ids.shape[:-1], width))


def _same_width(op: Op) -> bool:
    """Torch's fast kernels take queries and values of one width only. So in the slim net they have one where they had
    one: the narrower gets zeros."""
    return bool(op.value(0, "query").shape[-1] == op.value(2, "value").shape[-1])


def _repeated(ids: Ids, times: int) -> Ids:
    """Queries that share keys and values: each of these heads several times, side by side."""
    return ids if times == 1 or ids.ndim < 3 or ids.shape[-3] == 1 else np.repeat(ids, times, axis=-3)


@attention.constants
def _cut_mask(op: Op, flow: Flow, constant: fx.Node, of_heads: npt.NDArray[np.bool_]) -> Cut | None:
    """A mask per head."""
    value, rank = constant.meta["value"], flow.ids.ndim
    if value.ndim < 3 or value.shape[-3] == 1 or flow.ids.shape[-3] == 1 or not bool(of_heads[flow.ids].all()):
        return None
    return Cut(np.moveaxis(flow.ids, rank - 3, 0).reshape(value.shape[-3], -1), by_group=True)


@attention.emitter
def _attention(op: Op, slim: Slim) -> Piece | GridPiece | None:
    """Fewer channels, the same scale; or fewer heads."""
    nodes = [op.raw(i, name) for i, name in enumerate(_NAMES)]
    assert all(isinstance(node, fx.Node) for node in nodes)
    if any(slim.flow(node) is None or slim.laid_out(node) is None for node in nodes):
        return whole_op(op, slim)
    by_heads = _by_heads(op, slim, nodes)
    if by_heads is not None:
        return by_heads
    query, key, value = (slim.piece(node) for node in nodes)
    last = op.out.ndim - 1
    same_heads = len({node.meta["value"].shape[:-2] for node in nodes}) == 1
    if query is None or key is None or value is None or not same_heads:
        return whole_op(op, slim)
    if value.axis is not None and value.axis < last - 1:
        if op.raw(3, "attn_mask") is not None:  # it may have heads of its own
            return whole_op(op, slim)
        operands = {node: slim.fetch(node, value.axis, value.along(value.axis, 0)) for node in nodes}
    elif {query.axis, key.axis, value.axis} <= {None, last}:
        width = op.value(0, "query").shape[-1]
        common = np.intersect1d(query.along(last, width), key.along(last, width))
        if common.size == 0:
            return whole_op(op, slim)
        operands = {node: slim.fetch(node, last, common) for node in nodes[:2]} | {nodes[2]: value.node}
        widths = common.size, value.along(last, op.out.shape[last]).size
        return Piece(_of_widths(op, slim, nodes, operands, *widths), value.axis, value.positions)
    else:
        return whole_op(op, slim)
    return Piece(_scaled(op, slim, operands), value.axis, value.positions)


def _by_heads(op: Op, slim: Slim, nodes: list[Any]) -> GridPiece | None:
    """Fewer heads, and fewer channels of each. Keys and values of several queries stay shared where these all stay."""
    flow = slim.flow(op.node)
    grid = slim.grid(flow.ids) if flow is not None else None
    query, key, value = (slim.flow(node) for node in nodes)
    if flow is None or grid is None or query is None or key is None or value is None or grid.outer != op.out.ndim - 3:
        return None
    counts = [node.meta["value"].shape[grid.outer] for node in nodes]
    met = meeting(slim, query.ids, _repeated(key.ids, counts[0] // counts[1]))
    values = np.broadcast_to(_repeated(value.ids, counts[0] // counts[2]), flow.ids.shape)  # one head may be for all
    mask: Any = op.raw(3, "attn_mask")
    if met is None or not np.array_equal(met.heads, grid.heads) or slim.grid(values) is None:
        return None
    if mask is not None and op.value(3, "attn_mask").ndim > 2 and op.value(3, "attn_mask").shape[-3] > 1:
        axis, of_each = op.value(3, "attn_mask").ndim - 3, slim.flow(mask) is not None
        mask = slim.fetch(mask, axis, grid.heads) if of_each else slim.constant(mask, axis, grid.heads)
    operands: dict[Any, fx.Node] = {nodes[0]: slim.fetch_grid(nodes[0], met)}
    for node, wanted, count in zip(nodes[1:], (met, grid), counts[1:], strict=True):
        shared = _shared(wanted, counts[0] // count)
        if shared is None:
            return None
        operands[node] = slim.fetch_grid(node, shared)
    if isinstance(mask, fx.Node) and op.raw(3, "attn_mask") is not mask:
        operands[op.raw(3, "attn_mask")] = mask
    return GridPiece(_of_widths(op, slim, nodes, operands, met.positions.shape[1], grid.positions.shape[1]), grid)


def _shared(grid: Grid, times: int) -> Grid | None:
    """What ``times`` heads of queries share; None if some of them are gone, or have other channels than the rest."""
    if times == 1:
        return grid
    heads = np.unique(grid.heads // times)
    whole = (heads[:, None] * times + np.arange(times)).reshape(-1)
    positions = grid.positions.reshape(heads.size, times, -1) if np.array_equal(whole, grid.heads) else None
    if positions is None or not bool((positions == positions[:, :1]).all()):
        return None
    return Grid(grid.outer, heads, grid.axis, positions[:, 0])


def _of_widths(op: Op, slim: Slim, nodes: list[Any], operands: dict[Any, fx.Node], scores: int, values: int) -> fx.Node:
    """The call, where queries and keys are as wide as ``scores`` says."""
    if scores == values or not _same_width(op):
        return _scaled(op, slim, operands)
    last, missing = op.out.ndim - 1, abs(scores - values)
    narrow = nodes[:2] if scores < values else nodes[2:]
    operands = operands | {node: slim.pad(operands[node], last, op.out.ndim, missing) for node in narrow}
    made = _scaled(op, slim, operands)
    return made if scores < values else slim.graph.call_method("narrow", (made, last, 0, values))


def _scaled(op: Op, slim: Slim, operands: dict[Any, fx.Node]) -> fx.Node:
    """The call, with the scale of the original width."""
    node = slim.same(op, operands)
    scale = op.get("scale", 6)
    node.kwargs = {**node.kwargs, "scale": 1 / math.sqrt(op.value(0, "query").shape[-1]) if scale is None else scale}
    return node
