"""Compile a hardened network into a slim one: walk the graph once, each tensor with the channels that it still has."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from fxprune.analysis import Analysis
from fxprune.channels import Zeros
from fxprune.errors import ExportError
from fxprune.modules import copy_modes, evaluating
from fxprune.rules import Flow, find_rule
from fxprune.rules.operands import ADD_TO, Gone, GridPiece, Piece, Slim, element_by_element, whole_op
from fxprune.slim.connectivity import Bools, revived
from fxprune.slim.module_lookups import share_lookups
from fxprune.slim.order import channel_order
from fxprune.slim.reuse_memory import write_in_place


@dataclass(frozen=True, eq=False)
class Uncut:
    """The network at its full width: what slim nets are compiled from."""

    analysis: Analysis
    model: nn.Module  # the original, with the weights and modes (training or not) as they are
    opened: Bools  # per gate variable
    gate_values: dict[str, torch.Tensor]  # per gated layer, the factor of each of its channels
    in_place: Collection[str]  # modules that write in place in the original
    double: bool = False  # to be compared in double precision, as are the constants that it computes


def compile_slim(net: Uncut, present: Bools) -> tuple[fx.GraphModule, dict[str, str]]:
    """The slim module with the channels ``present``, and how its adds were written (name in the graph -> kind)."""
    with evaluating(net.model):
        slim = _written(net, present)
    _drop_unread(slim.graph)
    write_in_place(slim.graph, slim.root, net.in_place)
    slim.graph.lint()
    slim.graph.on_generate_code(lambda _: share_lookups)
    module = fx.GraphModule(slim.root, slim.graph, type(net.model).__name__)
    copy_modes(net.model, module)
    return module, slim.joins


def _written(net: Uncut, present: Bools) -> Slim:
    """Every op with the channels that are left of it, and with zeros where the gated net has zeros."""
    channels = net.analysis.channels
    order = channel_order(channels, present)
    slim = Slim(channels, net.model, present, net.gate_values, order, double=net.double)
    masked, coming_to_life = set(channels.masked), revived(net.analysis, present, net.opened, net.gate_values)
    for node in channels.trace.graph.nodes:
        before = len(slim.graph.nodes)
        try:
            _write(node, slim)
        except Gone as error:
            raise ExportError(
                f"the slim net cannot be written: {error}",
                where=node.meta.get("source"),
                fix="keep a channel of it alive: wrap(..., ignore=(the layer that writes it,))",
            ) from error
        flow, piece = slim.flow(node), slim.pieces.get(node)
        if flow is not None and piece is not None:
            alive = present[flow.ids] if node in masked else np.ones_like(flow.ids, dtype=bool)
            slim.pieces[node] = _zeroed(slim, node, piece, alive & ~coming_to_life.get(node, np.False_))
        for written in itertools.islice(reversed(slim.graph.nodes), len(slim.graph.nodes) - before):
            written.meta["origin"], written.meta["axes"] = node.name, getattr(node.meta.get("value"), "ndim", None)
    return slim


def _write(node: fx.Node, slim: Slim) -> None:
    """Constants, sizes, numbers and containers of results are not written here but where they are read."""
    flow = slim.channels.flows.get(node)
    if node.op == "placeholder":
        _write_input(node, flow, slim)
    elif node.op == "output":
        slim.graph.output(slim.argument(node.args[0]))
    elif node.target is torch._assert and node in slim.channels.flows:
        _write_check(node, slim)
    elif flow is not None and not isinstance(node.target, type):
        _write_tensor(node, flow, slim)


def _write_input(node: fx.Node, flow: Any, slim: Slim) -> None:
    given = slim.graph.create_node("placeholder", node.target, node.args, {}, name=node.name)
    slim.pieces[node] = Piece(given)
    if not isinstance(flow, Flow):
        slim.values[node] = given
        return
    rank = slim.graph.call_method("dim", (given,))
    same = slim.graph.call_function(operator.eq, (rank, node.meta["value"].ndim))
    slim.graph.call_function(torch._assert, (same, f"{node.name} has another rank than the example"))


def _write_check(node: fx.Node, slim: Slim) -> None:
    try:
        condition = slim.argument(node.args[0])
    except Gone:
        return  # about a tensor that nobody computes any more
    if condition is not True:
        slim.graph.call_function(torch._assert, (condition, node.args[1]))


def _write_tensor(node: fx.Node, flow: Any, slim: Slim) -> None:
    op, zeros = slim.op(node), slim.channels.zeros.get(node)
    rule = find_rule(node, op.module)
    if isinstance(flow, Flow) and not bool(slim.present[flow.ids].any()):
        slim.pieces[node] = None
    elif rule is None or zeros is Zeros.UNKNOWN or not (rule.lazy or slim.reads_channels(node)):
        slim.pieces[node] = Piece(slim.replay(node))
    elif _runs_whole(node, slim) or (zeros and isinstance(flow, Flow) and _lacks_channels(node, flow, slim)):
        slim.pieces[node] = whole_op(op, slim)
    elif not rule.lazy or op.module is not None:
        slim.pieces[node] = (rule.emit or element_by_element)(op, slim)


def _zeroed(slim: Slim, node: fx.Node, piece: Piece | GridPiece, alive: Bools) -> Piece | GridPiece:
    """With ``where``, not by a product: zero times infinity is not zero."""
    kept = torch.from_numpy(np.asarray(alive))
    if isinstance(piece, GridPiece):
        kept = piece.grid.take(kept).movedim((0, 1), (piece.grid.outer, piece.grid.axis))
    elif piece.axis is not None and piece.positions is not None and alive.shape[piece.axis] > 1:
        kept = kept.index_select(piece.axis, torch.from_numpy(piece.positions))
    if bool(kept.all()):
        return piece
    mask = slim.attribute("alive_0", kept.contiguous())
    zero = False if node.meta["value"].dtype == torch.bool else 0
    return replace(piece, node=slim.graph.call_function(torch.where, (mask, piece.node, zero)))


def _runs_whole(node: fx.Node, slim: Slim) -> bool:
    """Does the op, or another call of its module (they share weights), have to run on complete operands?"""
    calls = slim.calls.get(str(node.target), []) if node.op == "call_module" else []
    return any(each in slim.channels.whole for each in (node, *(call.node for call in calls)))


def _lacks_channels(node: fx.Node, flow: Flow, slim: Slim) -> bool:
    """Does the op, which turns zeros into numbers, read a tensor that lacks some of the channels alive behind the op?

    If ids vary along several axes (stacked calls of one layer), life is only known along one of them.
    """
    for source in node.all_input_nodes:
        channels, value = slim.flow(source), source.meta["value"]
        piece = slim.piece(source) if channels is not None and channels.ids.size > 1 else None
        if piece is None or piece.axis is None or value.ndim != flow.ids.ndim:
            continue
        living = np.moveaxis(slim.present[flow.ids], piece.axis, 0).reshape(flow.ids.shape[piece.axis], -1).any(1)
        living = np.broadcast_to(living, (node.meta["value"].shape[piece.axis],))
        same = living.size == value.shape[piece.axis]
        if same and not np.isin(np.flatnonzero(living), piece.along(piece.axis, living.size)).all():
            return True
    return False


def _drop_unread(graph: fx.Graph) -> None:
    """Ops that lead to no output go; a write into a tensor stays as long as the tensor is read."""
    read: set[Any] = set()
    for node in reversed(list(graph.nodes)):
        written = node.args[0].args[0] if node.target is ADD_TO else None
        if node in read or written in read or node.op in ("placeholder", "output") or node.target is torch._assert:
            read.update(node.all_input_nodes)
        else:
            graph.erase_node(node)
