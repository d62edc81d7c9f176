"""Embedding tables: linear layers on words that are written as ones among zeros, so that their columns can go."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fxprune.channels import Mixer
from fxprune.channels.ids import FIXED, ONE, Ids, immortal
from fxprune.rules.mixing import name_of_layer, weight_or_bias
from fxprune.rules.operands import Piece, Slim, living_only
from fxprune.rules.registry import Flow, Op, rule


@rule(nn.Embedding, F.embedding)
def embedding(op: Op) -> Flow | None:
    """Reading a row computes nothing: it costs parameters alone. ``max_norm`` looks at whole rows, and writes them."""
    words = op.find(op.raw(0, "input"))
    if words is None or op.get("max_norm", 3) is not None:
        return None
    inputs = np.unique(words.ids).reshape(1, -1)
    if bool(immortal(inputs).all()):
        inputs = np.array([[ONE if ONE in inputs else FIXED]])
    elif inputs.size > 1:  # they are made of channels
        return None
    if op.module is None and op.find(op.raw(1, "weight")) is not None:
        return None
    count, width = op.get("weight", 1).shape
    ids = op.table.mix(inputs, width, owner=op.node.name)
    name = name_of_layer(op, ids, inputs, count, bias=False)
    op.notes.mixers.append(Mixer(op.node, name, ids, inputs, count, area=0, sites=0, bias=False, is_conv=False))
    return Flow(ids.reshape((1,) * (op.out.ndim - 1) + (width,)))


@embedding.emitter
def _embedding(op: Op, slim: Slim) -> Piece:
    """The columns that are read, in the order of the stream; whatever calls them, they are a module."""
    calls: list[Mixer] = slim.calls[slim.owner[op.node]]
    name, axis = calls[0].name, op.out.ndim - 1
    columns: Ids = np.flatnonzero(np.logical_or.reduce([slim.present[call.ids[0]] for call in calls]))
    if name in slim.rank:
        columns = columns[np.argsort(slim.rank[name][columns])]
    weight, grad = weight_or_bias(op, slim, "weight", 1)
    assert weight is not None
    index = torch.from_numpy(columns)
    cut = weight.detach().index_select(1, index.to(weight.device))
    if name in slim.gate_values:
        cut = cut * slim.gate_values[name][index].to(cut)
    made = nn.Embedding(
        cut.shape[0],
        columns.size,
        padding_idx=op.get("padding_idx", 2),
        scale_grad_by_freq=op.get("scale_grad_by_freq", 5, False),
        sparse=op.get("sparse", 6, False),
        device="meta",
    )
    made.weight = nn.Parameter(cut, grad)
    piece = Piece(slim.graph.call_module(slim.module(name, made), (slim.full(op.inputs[0]),)), axis, columns)
    return living_only(op, slim, piece, axis) if len(calls) > 1 else piece
