"""Run the rules over the graph: which channels exist, where they come from, what joins them, what freezes them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from fxprune.analysis.holdings import holdings
from fxprune.channels import Channels, Freeze, Frozen, Zeros
from fxprune.channels.ids import FIXED, ONE, Ids, IdTable, immortal
from fxprune.count import batch_size
from fxprune.rules import Flow, NoChannels, Notes, Op, constant_flow, find_rule
from fxprune.rules.elementwise import not_zero, padded
from fxprune.torch_private import tree_flatten, tree_map
from fxprune.trace import Trace
from fxprune.trace.canonical_calls import WRITTEN_AS
from fxprune.trace.values import Values


@dataclass
class _Answers:
    """What rules have answered for ops, beside the ids that come out."""

    zeros: dict[fx.Node, Zeros] = field(default_factory=dict)
    anchors: dict[fx.Node, fx.Node] = field(default_factory=dict)
    freezes: list[Freeze] = field(default_factory=list)


def relate(trace: Trace) -> Channels:
    """Follow the channels of a traced model through every op."""
    table, notes = IdTable(), Notes(Values(trace.root, trace.model, torch.device("cpu")), batch_size(*trace.example))
    flows: dict[fx.Node, Any] = {}
    constants: set[fx.Node] = set()
    answers = _Answers()
    outputs: list[Ids] = []
    sized: dict[fx.Node, set[fx.Node]] = {}  # number -> the tensors whose sizes it was computed from
    for node in trace.graph.nodes:
        if node.op == "placeholder":
            flows[node] = constant_flow(node.meta["value"])
        elif node.op == "output":
            outputs = [flow.ids.reshape(-1) for flow in _flows_of(node, flows)]
        elif node.op == "get_attr" or (_is_pure(node) and all(n in constants for n in node.all_input_nodes)):
            constants.add(node)
        else:
            flows[node] = _relate_node(node, trace, table, flows, notes, answers)
            sized[node] = {parent for n in node.all_input_nodes for parent in sized.get(n, ())}
            if notes.sized and notes.sized[-1][0] is node:
                sized[node] |= {n for n in node.all_input_nodes if isinstance(flows.get(n), Flow)}
            if isinstance(flows[node], Flow):
                flows[node] = _also_sized(node, flows, sized.pop(node), table)
    channels = Channels(
        trace=trace,
        table=table,
        flows=flows,
        mixers=tuple(notes.mixers),
        heads=tuple(notes.heads),
        anchors=answers.anchors,
        zeros=answers.zeros,
        freezes=tuple(answers.freezes),
        sized=tuple(notes.sized),
        tied=tuple(notes.tied),
        seen=tuple(notes.seen),
        outputs=tuple(outputs),
    )
    affines, products, uncut = holdings(channels, notes)
    return replace(channels, affines=affines, products=products, uncut=uncut)


_KNOWN = dict.fromkeys((nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell), Frozen.RECURRENT)


def _relate_node(
    node: fx.Node, trace: Trace, table: IdTable, flows: dict[fx.Node, Any], notes: Notes, answers: _Answers
) -> Any:
    inputs = _flows_of(node, flows)
    if isinstance(node.target, type):  # a dataclass or named tuple of results
        return tuple(inputs)
    module = trace.root.get_submodule(str(node.target)) if node.op == "call_module" else None
    rule = find_rule(node, module)
    if not inputs:  # sizes and factories: new tensors that no channel reaches
        return constant_flow(node.meta["value"], FIXED)
    op = Op(node, module, table, flows, notes)
    try:
        answer = rule.relate(op) if rule is not None else None
    except NoChannels:
        answer = None
    if answer is not None or not _has_tensor(node.meta["value"]):
        answer = tree_map(lambda flow: _masked(flow, op), answer)
        written = [flow for flow in tree_flatten(answer)[0] if isinstance(flow, Flow)]
        if not all(flow.clean for flow in written):
            answers.zeros[node] = Zeros.DATA if any(flow.filled for flow in written) else Zeros.MASKED
        answers.anchors.update({flow.gate_of: node for flow in written if flow.gate_of is not None})
        return tree_map(_handed_on, answer)
    answers.zeros[node] = Zeros.UNKNOWN
    if all(bool(immortal(flow.ids).all()) for flow in inputs):
        fixed = all(bool((flow.ids == FIXED).all()) for flow in inputs)
        return constant_flow(node.meta["value"], FIXED if fixed else ONE)
    reasons = {leaf.path: leaf.reason for leaf in reversed(trace.leaves)} if node.op == "call_module" else {}
    kind = _KNOWN.get(type(module), Frozen.NO_RULE) if rule is None else Frozen.NEEDS_ALL
    kind, reason = (Frozen.LEAF, reasons[node.target]) if node.target in reasons else (kind, "")
    ids = np.unique(np.concatenate([flow.ids.reshape(-1) for flow in inputs]))
    answers.freezes.append(Freeze(node.name, op_name(node, module), node.meta["source"], kind, reason, ids))
    return constant_flow(node.meta["value"])


def _also_sized(node: fx.Node, flows: dict[fx.Node, Any], sources: set[fx.Node], table: IdTable) -> Flow:
    """An op that is given the size of another tensor needs it: while the op lives, some of that tensor must live."""
    flow: Flow = flows[node]
    own = [flows[n].ids for n in node.all_input_nodes if isinstance(flows.get(n), Flow)]
    for source in sorted(sources, key=lambda n: n.name):
        ids = flows[source].ids
        if bool(immortal(ids).any()) or any(np.array_equal(np.unique(ids), np.unique(held)) for held in own):
            continue
        token = table.size_of(ids, node.name)
        flow = replace(flow, ids=table.all(flow.ids, token.reshape((1,) * flow.ids.ndim)))
    return flow


def _masked(flow: Any, op: Op) -> Any:
    """The flow behind a mask. It has one entry per channel: all positions of a channel live or die together."""
    if not isinstance(flow, Flow) or flow.clean:
        return flow
    ids, filled = not_zero(op, flow.ids), flow.filled or padded(flow.ids)
    if op.table.is_grid(ids):
        return replace(flow, ids=ids, filled=filled)
    several = sum(size > 1 for size in ids.shape) > 1  # the mask goes along one axis: zeros along others become numbers
    return replace(flow, ids=op.table.collapse(ids), filled=filled or several)


def _handed_on(flow: Any) -> Any:
    """Without what its op said of itself: behind the mask the flow is clean."""
    return replace(flow, clean=True, filled=False, gate_of=None) if isinstance(flow, Flow) else flow


def op_name(node: fx.Node, module: Any = None) -> str:
    """How a user would call this op."""
    if module is not None:
        return f"{type(module).__name__} ({node.target})"
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    target = next((written for op, written in WRITTEN_AS.items() if op is node.target), node.target)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}".lstrip(".")


def _flows_of(node: fx.Node, flows: dict[fx.Node, Any]) -> list[Flow]:
    read: list[Flow] = []
    for argument in node.all_input_nodes:
        read += [leaf for leaf in tree_flatten(flows.get(argument))[0] if isinstance(leaf, Flow)]
    return read


def _has_tensor(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in tree_flatten(value)[0])


def _is_pure(node: fx.Node) -> bool:
    """A constant tensor: made of parameters and buffers only (a factory without tensor arguments is one too)."""
    return bool(node.all_input_nodes) and not isinstance(node.meta["value"], type(None))
