"""Run the rules over the graph: which channels exist, where they come from, what joins them, what freezes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils._pytree import tree_flatten, tree_map

from fxprune.core import Channels, Freeze, Trace
from fxprune.ids import ONE, Ids, IdTable
from fxprune.rules import Flow, NoChannels, Notes, Op, constant_flow, find_rule
from fxprune.tracing.values import Values


def relate(trace: Trace) -> Channels:
    """Follow the channels of a traced model through every op."""
    table, notes = IdTable(), Notes(constants=Values(trace.root, trace.model, torch.device("cpu")))
    flows: dict[fx.Node, Any] = {}
    constants: set[fx.Node] = set()
    freezes: list[Freeze] = []
    outputs: list[Ids] = []
    for node in trace.graph.nodes:
        if node.op == "placeholder":
            flows[node] = constant_flow(node.meta["value"])
        elif node.op == "output":
            outputs = [flow.ids.reshape(-1) for flow in _flows_of(node, flows)]
        elif node.op == "get_attr" or (_is_pure(node) and all(n in constants for n in node.all_input_nodes)):
            constants.add(node)
        else:
            flows[node] = _relate_node(node, trace, table, flows, notes, freezes)
    return Channels(
        trace=trace,
        table=table,
        flows=flows,
        mixers=tuple(notes.mixers),
        affines=tuple(notes.affines),
        anchors=notes.anchors,
        masks=tuple(notes.masks),
        freezes=tuple(freezes),
        opaque=frozenset(notes.opaque),
        sized=tuple(notes.sized),
        tied=tuple(notes.tied),
        outputs=tuple(outputs),
    )


def _relate_node(
    node: fx.Node, trace: Trace, table: IdTable, flows: dict[fx.Node, Any], notes: Notes, freezes: list[Freeze]
) -> Any:
    inputs = _flows_of(node, flows)
    module = trace.root.get_submodule(str(node.target)) if node.op == "call_module" else None
    rule = find_rule(node, module)
    if not inputs:  # sizes and factories: new tensors that no channel reaches
        return constant_flow(node.meta["value"])
    try:
        answer = rule.relate(Op(node, module, table, flows, notes)) if rule is not None else None
    except NoChannels:
        answer = None
    if answer is not None or not _has_tensor(node.meta["value"]):
        if any(not flow.clean for flow in tree_flatten(answer)[0] if isinstance(flow, Flow)):
            notes.masks.append(node)
        return tree_map(_masked, answer)
    notes.opaque.add(node)
    if all(bool((flow.ids == ONE).all()) for flow in inputs):
        return constant_flow(node.meta["value"])
    why = "no rule for this op" if rule is None else "this use of the op needs every channel"
    leaf = next((leaf for leaf in trace.leaves if node.op == "call_module" and leaf.path == node.target), None)
    if leaf is not None:
        why = f"not looked into: {leaf.reason}"
    ids = np.unique(np.concatenate([flow.ids.reshape(-1) for flow in inputs]))
    freezes.append(Freeze(node.name, op_name(node, module), node.meta["source"], why, ids))
    return constant_flow(node.meta["value"])


def _masked(flow: Any) -> Any:
    return replace(flow, clean=True) if isinstance(flow, Flow) and not flow.clean else flow


def op_name(node: fx.Node, module: Any = None) -> str:
    """How a user would call this op."""
    if module is not None:
        return f"{type(module).__name__} ({node.target})"
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    target = node.target
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}".lstrip(".")


def _flows_of(node: fx.Node, flows: dict[fx.Node, Any]) -> list[Flow]:
    found: list[Flow] = []
    for argument in node.all_input_nodes:
        found += [leaf for leaf in tree_flatten(flows.get(argument))[0] if isinstance(leaf, Flow)]
    return found


def _has_tensor(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in tree_flatten(value)[0])


def _is_pure(node: fx.Node) -> bool:
    """A constant tensor: made of parameters and buffers only (a factory without tensor arguments is one too)."""
    return bool(node.all_input_nodes) and not isinstance(node.meta["value"], type(None))
