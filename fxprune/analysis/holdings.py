"""What the slim net holds and runs beside its layers: how much of each parameter, and of each product of matrices.

Rules note products and what a module (a norm) holds, and say how a constant (a position table, a scale per channel) is
cut. Everything else is held in full, as long as the op that reads it is there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from fxprune.channels import Affine, Channels, Product, Uncut, Zeros
from fxprune.channels.ids import ONE, ZERO, Ids, IdTable, Join
from fxprune.count import flops_of
from fxprune.rules import Flow, Notes, Op, find_rule
from fxprune.torch_private import tree_leaves

Held = tuple[tuple[Affine, ...], tuple[Product, ...], tuple[Uncut, ...]]


def holdings(channels: Channels, notes: Notes) -> Held:
    """What rules have noted, and what they have not, each with its readers."""
    trace, flows = channels.trace, channels.flows

    def op_of(node: fx.Node) -> Op:
        module = trace.root.get_submodule(str(node.target)) if node.op == "call_module" else None
        return Op(node, module, channels.table, flows, notes)

    readers = _readers(trace.graph, flows)
    leaves, layers = {leaf.path for leaf in trace.leaves}, {mixer.node for mixer in notes.mixers}
    full = channels.whole | {node for node in channels.masked if _may_lack(op_of(node))}
    in_full = {node.target for node in full if node.op == "call_module"}  # other calls share their weights
    affines = [replace(part, count=0) if part.name in in_full else part for part in notes.affines]
    cut_by = {part.node for part in affines if part.count}
    products, uncut = _products(channels, notes)
    cuts: dict[str, list[Ids]] = {}
    for node, read in readers.items():
        op = op_of(node)
        ids = _ids([flows[node]]) if node in flows else read
        whole = node.op == "output" or node in full or node.target in in_full
        if channels.zeros.get(node) is Zeros.UNKNOWN and node.target not in leaves:
            uncut.append(Uncut(node, node.name, ids, ids, 0, _flops(op) // max(notes.batch, 1)))
        if op.module is not None and node not in layers and node not in cut_by:
            size = sum(parameter.numel() for parameter in op.module.parameters())
            uncut.append(Uncut(node, str(node.target), ids, ids, size, 0))
        for constant in node.all_input_nodes if node not in layers or whole else ():
            if constant in flows or not _is_parameter(constant, op):
                continue
            size = constant.meta["value"].numel()
            name = str(constant.target) if constant.op == "get_attr" else constant.name
            rule = find_rule(node, op.module)
            cut = None if whole or rule is None else rule.cuts(op, flows[node], constant, channels.of_heads)
            if cut is None:
                uncut.append(Uncut(node, name, ids, ids, size, 0))
                continue
            known = cuts.setdefault(name, [])  # what is cut in two ways is held twice
            number = next((n for n, other in enumerate(known) if np.array_equal(other, cut.ids)), len(known))
            known[number:] = known[number:] or [cut.ids]
            name = f"{name} ({number})"
            if cut.by_group:
                each = size // len(cut.ids)
                uncut += [Uncut(node, f"{name} {n}", group, group, each, 0) for n, group in enumerate(cut.ids)]
            else:
                affines.append(Affine(node, name, cut.ids, max(size // cut.ids.size, 1), ids))
    return (
        tuple(replace(part, read=readers.get(part.node, _NOBODY)) for part in affines),
        tuple(replace(part, read=readers.get(part.node, _NOBODY)) for part in products),
        tuple(replace(part, read=readers.get(part.node, _NOBODY)) for part in uncut),
    )


def _products(channels: Channels, notes: Notes) -> tuple[list[Product], list[Uncut]]:
    """Products whose ids vary along several axes run in full, unless they are heads of attention."""
    of_heads = channels.of_heads.copy()
    for block in channels.table.blocks:
        if isinstance(block, Join):  # queries that meet keys
            of_heads[block.out] |= np.logical_and.reduce([of_heads[operand] for operand in block.operands])
    cut = {part: min(part.ids.shape) == 1 or bool(of_heads[part.ids].all()) for part in notes.products}
    uncut = [Uncut(part.node, part.node.name, own, own, 0, part.factor * part.ids.size)
             for part in notes.products if not cut[part] for own in [np.unique(part.ids)]]  # fmt: skip
    return [part for part in notes.products if cut[part]], [*notes.uncut, *uncut]


def _may_lack(op: Op) -> bool:
    """An op that turns zeros into numbers runs in full if channels may live behind it that do not live before it."""
    flow = op.find(op.node)
    sources = [op.flows[node].ids for node in op.inputs if op.flows[node].ids.size > 1]
    return flow is not None and not all(_lives_within(op.table, flow.ids, ids) for ids in sources)


def _lives_within(table: IdTable, ids: Ids, others: Ids) -> bool:
    """Does each of ``ids`` only live if the other one at its place does?"""
    if ids.shape != others.shape:
        return False
    differ = ids != others
    return all(_needs(table, *pair) for pair in zip(ids[differ].tolist(), others[differ].tolist(), strict=True))


def _needs(table: IdTable, identity: int, other: int) -> bool:
    """Is it *all* of some ids, and the other among them?"""
    block, place = table.source(identity) or (None, 0)
    if not isinstance(block, Join) or block.kind != "all":
        return False
    operands = [int(operand[place]) for operand in block.operands]
    return other in operands or any(_needs(table, operand, other) for operand in operands)


_NOBODY = np.array([ZERO])


def _readers(graph: fx.Graph, flows: dict[fx.Node, Any]) -> dict[fx.Node, Ids]:
    """Op -> ids of which the slim net computes at least one if it runs the op. Ops that lead to no output have none.

    These are the ids that the op makes; if it passes on the ids of others, also those of its readers.
    """
    readers: dict[fx.Node, Ids] = {}
    for node in reversed(list(graph.nodes)):
        if node.op == "output":
            readers[node] = np.array([ONE])
        elif node in flows:
            own = np.setdiff1d(_ids([flows[node]]), [ZERO])
            new = np.setdiff1d(own, _ids([flows.get(parent) for parent in node.all_input_nodes]))
            read = [readers[user] for user in node.users if user in readers]
            if read:
                readers[node] = np.unique(np.concatenate([new] if 0 < new.size == own.size else [new, *read]))
    return readers


def _ids(answers: list[Any]) -> Ids:
    parts = [flow.ids.reshape(-1) for flow in tree_leaves(answers) if isinstance(flow, Flow)]
    return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *parts]))


def _is_parameter(node: fx.Node, op: Op) -> bool:
    """Is a constant tensor one, or computed from one? Then it is one in the slim net."""
    value = node.meta["value"]
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    return _has_parameter(node, op)


def _has_parameter(node: fx.Node, op: Op) -> bool:
    if node.op == "get_attr":
        return isinstance(op.notes.constants.constant(node), nn.Parameter)
    module = op.notes.constants.root.get_submodule(str(node.target)) if node.op == "call_module" else None
    own = module is not None and next(module.parameters(), None) is not None
    return own or any(_has_parameter(parent, op) for parent in node.all_input_nodes)


def _flops(op: Op) -> int:
    """Of the op, for the example's whole batch."""
    args: Any = fx.node.map_arg(op.node.args, lambda node: node.meta["value"])
    kwargs: Any = fx.node.map_arg(op.node.kwargs, lambda node: node.meta["value"])
    called: Any = op.module if op.node.op == "call_module" else op.node.target
    if op.node.op == "call_method":
        called, args = getattr(args[0], str(op.node.target)), args[1:]
    try:
        return flops_of(lambda: called(*args, **kwargs))
    except (NotImplementedError, RuntimeError, TypeError):  # torch has no kernel without data
        return 0
