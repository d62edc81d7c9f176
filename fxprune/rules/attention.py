"""Attention in one call: what matmul, softmax and matmul would do, channels of queries and keys summed over."""

from __future__ import annotations

import math

import numpy as np
import torch.nn.functional as F
from torch import fx

from fxprune.channels.ids import FIXED
from fxprune.rules.operands import Piece, Slim, whole_op
from fxprune.rules.registry import Flow, Op, constant_flow, rule


@rule(F.scaled_dot_product_attention)
def attention(op: Op) -> Flow | None:
    """The values' channels, whatever lives of queries and keys: without them all scores are alike, and not nothing."""
    given = [(op.raw(i, name), op.value(i, name)) for i, name in enumerate(("query", "key", "value"))]
    query, key, value = (op.find(raw) or constant_flow(tensor, FIXED) for raw, tensor in given)
    tokens = [flow.ids.shape[-2] for flow in (query, key, value)]
    mask = op.raw(3, "attn_mask")
    grouped = len({tensor.shape[:-2] for _, tensor in given}) > 1  # heads that are repeated, or batches
    if max(tokens) > 1 or grouped or op.find(mask) is not None or op.get("enable_gqa", 7, False):
        return None
    pairs = op.table.all(query.ids, key.ids)  # .., 1, channels
    scores = op.table.mix(pairs.reshape(-1, pairs.shape[-1]), rows=1, owner=op.node.name)
    needed = op.table.any(value.ids, scores.reshape(*pairs.shape[:-1], 1))  # lives whenever the value does
    return Flow(op.table.all(value.ids, needed))


@attention.emitter
def _attention(op: Op, slim: Slim) -> Piece | None:
    """Fewer channels, the same scale; or fewer heads."""
    nodes = [op.raw(i, name) for i, name in enumerate(("query", "key", "value"))]
    assert all(isinstance(node, fx.Node) for node in nodes)
    if any(slim.flow(node) is None for node in nodes):
        return whole_op(op, slim)
    query, key, value = (slim.piece(node) for node in nodes)
    if query is None or key is None or value is None:
        return whole_op(op, slim)
    last, shape = op.out.ndim - 1, op.value(0, "query").shape
    if value.axis is not None and value.axis < last - 1:
        if op.raw(3, "attn_mask") is not None:  # it may have heads of its own
            return whole_op(op, slim)
        operands = {node: slim.fetch(node, value.axis, value.along(value.axis, 0)) for node in nodes}
    elif {query.axis, key.axis, value.axis} <= {None, last}:
        common = np.intersect1d(query.along(last, shape[-1]), key.along(last, shape[-1]))
        if common.size == 0:
            return whole_op(op, slim)
        operands = {node: slim.fetch(node, last, common) for node in nodes[:2]} | {nodes[2]: value.node}
    else:
        return whole_op(op, slim)
    made = slim.same(op, operands)
    scale = op.get("scale", 6)
    made.kwargs = {**made.kwargs, "scale": 1 / math.sqrt(shape[-1]) if scale is None else scale}
    return Piece(made, value.axis, value.positions)
