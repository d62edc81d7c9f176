"""Compile a hardened network into a slim one: walk the graph once, each tensor with the channels that it still has."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn

from fxprune.core import Channels
from fxprune.errors import ExportError
from fxprune.passes.order import channel_order
from fxprune.rules import Flow, find_rule, same_op
from fxprune.rules.emit import whole_op
from fxprune.rules.slim import Gone, Piece, Slim


def compile_slim(
    channels: Channels, model: nn.Module, present: npt.NDArray[np.bool_], gate_values: dict[str, torch.Tensor]
) -> tuple[fx.GraphModule, dict[str, int]]:
    """The slim module and how its joins were written (kind -> count)."""
    slim = Slim(channels, model, present, gate_values, channel_order(channels, present))
    for node in channels.trace.graph.nodes:
        try:
            _write(node, slim)
        except Gone as error:
            raise ExportError(
                f"the slim net cannot be written: {error}",
                where=node.meta.get("source"),
                fix="keep a channel of it alive: wrap(..., ignore=(the layer that writes it,))",
            ) from error
    _drop_unread(slim.graph)
    slim.graph.lint()
    made = fx.GraphModule(slim.root, slim.graph, type(model).__name__)
    return made.train(model.training), slim.joins


def _write(node: fx.Node, slim: Slim) -> None:
    flow = slim.channels.flows.get(node)
    if node.op == "placeholder":
        made = slim.graph.create_node("placeholder", node.target, node.args, {}, name=node.name)
        if isinstance(flow, Flow):
            slim.pieces[node] = Piece(made)
            rank = node.meta["value"].ndim
            same = slim.graph.call_function(operator.eq, (slim.graph.call_method("dim", (made,)), rank))
            slim.graph.call_function(torch._assert, (same, f"{node.name} has another rank than the example"))
        else:
            slim.pieces[node] = Piece(made)
            slim.values[node] = made
    elif node.op == "output":
        slim.graph.output(slim.argument(node.args[0]))
    elif node not in slim.channels.flows:
        return  # a constant: written where it is read
    elif node.target is torch._assert:
        _write_check(node, slim)
    elif flow is None:
        return  # a size or a number: written where it is read
    else:
        _write_tensor(node, flow, slim)


def _write_check(node: fx.Node, slim: Slim) -> None:
    try:
        condition = slim.argument(node.args[0])
    except Gone:
        return  # about a tensor that nobody computes any more
    if condition is not True:
        slim.graph.call_function(torch._assert, (condition, node.args[1]))


def _write_tensor(node: fx.Node, flow: Any, slim: Slim) -> None:
    if isinstance(node.target, type):
        return  # written where it is read
    op = slim.op(node)
    rule = find_rule(node, op.module)
    if isinstance(flow, Flow) and not bool(slim.present[flow.ids].any()):
        slim.pieces[node] = None
    elif rule is None or node in slim.channels.opaque or not slim.reads_channels(node):
        slim.pieces[node] = Piece(slim.replay(node))
    elif node in slim.channels.filled:
        slim.pieces[node] = whole_op(op, slim)
    elif not rule.lazy or op.module is not None:
        slim.pieces[node] = (rule.emit or same_op)(op, slim)


def _drop_unread(graph: fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op not in ("placeholder", "output") and node.target is not torch._assert:
            graph.erase_node(node)
