"""Compile a hardened network into a slim one: walk the graph once, each tensor with the channels that it still has."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn

from fxprune.channels.facts import Channels
from fxprune.errors import ExportError
from fxprune.rules import Flow, find_rule, same_op
from fxprune.rules.operands import ADD_TO, Gone, Piece, Slim, whole_op
from fxprune.slim.lookups import share_lookups
from fxprune.slim.order import channel_order
from fxprune.slim.reuse_memory import write_in_place


def compile_slim(
    channels: Channels,
    model: nn.Module,
    present: npt.NDArray[np.bool_],
    gate_values: dict[str, torch.Tensor],
    *,
    in_place: Collection[str] = (),
    dead: Mapping[fx.Node, npt.NDArray[np.bool_]] | None = None,
) -> tuple[fx.GraphModule, dict[str, str]]:
    """The slim module and how its adds were written (name in the original graph -> kind).

    ``in_place`` are modules that write in place in the original. ``dead`` tells, for a network that computes dead
    channels too, where they would come to life (one entry per id of the tensor): they are made zero there.
    """
    slim = Slim(channels, model, present, gate_values, channel_order(channels, present))
    for node in channels.trace.graph.nodes:
        before = len(slim.graph.nodes)
        try:
            _write(node, slim)
            if dead and node in dead and slim.piece(node) is not None:
                slim.pieces[node] = _zeroed(slim, node, slim.pieces[node], ~dead[node])
        except Gone as error:
            raise ExportError(
                f"the slim net cannot be written: {error}",
                where=node.meta.get("source"),
                fix="keep a channel of it alive: wrap(..., ignore=(the layer that writes it,))",
            ) from error
        for made in itertools.islice(reversed(slim.graph.nodes), len(slim.graph.nodes) - before):
            made.meta["origin"], made.meta["axes"] = node.name, getattr(node.meta.get("value"), "ndim", None)
    _drop_unread(slim.graph)
    write_in_place(slim.graph, slim.root, in_place)
    slim.graph.lint()
    slim.graph.on_generate_code(lambda _: share_lookups)
    module = fx.GraphModule(slim.root, slim.graph, type(model).__name__)
    return module, slim.joins


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


def _zeroed(slim: Slim, node: fx.Node, piece: Piece, alive: npt.NDArray[np.bool_]) -> Piece:
    """``where`` and not a product: zero times infinity is no zero."""
    if piece.axis is not None and piece.positions is not None and alive.shape[piece.axis] > 1:
        alive = alive.take(piece.positions, piece.axis)
    if alive.all():
        return piece
    mask = slim.attribute("alive_0", torch.from_numpy(alive))
    zero = False if node.meta["value"].dtype == torch.bool else 0
    return Piece(slim.graph.call_function(torch.where, (mask, piece.node, zero)), piece.axis, piece.positions)


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
    elif _runs_whole(node, slim) or _lacks_channels(node, flow, slim):
        slim.pieces[node] = whole_op(op, slim)
    elif not rule.lazy or op.module is not None:
        slim.pieces[node] = (rule.emit or same_op)(op, slim)
    made = slim.pieces.get(node)
    if isinstance(flow, Flow) and node in slim.masked and made is not None:  # as in the wrapped net: dead means zero
        slim.pieces[node] = _zeroed(slim, node, made, slim.present[flow.ids])


def _runs_whole(node: fx.Node, slim: Slim) -> bool:
    """It makes something of zeros which no mask takes back, or another call of its module does: they share weights."""
    calls = slim.calls.get(str(node.target), []) if node.op == "call_module" else []
    return node in slim.channels.filled or any(call.node in slim.channels.filled for call in calls)


def _lacks_channels(node: fx.Node, flow: Any, slim: Slim) -> bool:
    """An op that makes something of zeros, on a tensor that lacks some of the channels which live behind it.

    Where ids vary along several axes (the calls of one layer, stacked), what lives is only known along one of them.
    """
    if not isinstance(flow, Flow) or node not in slim.masked:
        return False
    for source in node.all_input_nodes:
        piece = slim.piece(source) if slim.flow(source) is not None else None
        value = source.meta["value"]
        if piece is None or piece.axis is None or value.ndim != flow.ids.ndim:
            continue
        living = np.moveaxis(slim.present[flow.ids], piece.axis, 0).reshape(flow.ids.shape[piece.axis], -1).any(1)
        living = np.broadcast_to(living, (node.meta["value"].shape[piece.axis],))
        same = living.size == value.shape[piece.axis]
        if same and not np.isin(np.flatnonzero(living), piece.along(piece.axis, value.shape[piece.axis])).all():
            return True
    return False


def _drop_unread(graph: fx.Graph) -> None:
    """What leads to no output goes; a write into a tensor stays as long as somebody reads that tensor."""
    read: set[Any] = set()
    for node in reversed(list(graph.nodes)):
        written = node.args[0].args[0] if node.target is ADD_TO else None
        if node in read or written in read or node.op in ("placeholder", "output") or node.target is torch._assert:
            read.update(node.all_input_nodes)
        else:
            graph.erase_node(node)
