"""The layer graph in networkx: layers and joins, residual streams, pooling blocks; and which channels are the same
position of a stream."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
import torch
from torch import fx

from fxprune.analysis.gates import Unit
from fxprune.channels import Channels, Mixer
from fxprune.channels.ids import OPEN, ZERO, Ids, IdTable, Join, immortal
from fxprune.rules.joins import add, multiply
from fxprune.rules.registry import RULES, Flow


@dataclass(frozen=True)
class Stream:
    """Adds that share channels without a layer between them: a residual stream."""

    name: str
    joins: tuple[str, ...]


def layer_graph(channels: Channels) -> nx.DiGraph:
    """Nodes: ``input``, ``conv``, ``linear``, ``add``, ``mul``, ``cat``, ``output`` (attribute ``kind``).

    Everything in between is contracted into edges.
    """
    graph = nx.DiGraph()
    mixers = {mixer.node: mixer for mixer in channels.mixers}
    nearest: dict[fx.Node, tuple[str, ...]] = {}
    for node in channels.trace.graph.nodes:
        sources = tuple(dict.fromkeys(name for parent in node.all_input_nodes for name in nearest.get(parent, ())))
        kind = node_kind(node, channels, mixers)
        if kind is None or (kind in ("add", "mul", "cat") and len(sources) < 2):
            nearest[node] = sources
            continue
        label = mixers[node].name if node in mixers else node.name
        graph.add_node(
            node.name, kind=kind, label=label, module=node.meta.get("module") or "", source=node.meta.get("source")
        )
        graph.add_edges_from((source, node.name) for source in sources)
        nearest[node] = (node.name,)
    return graph


def node_kind(node: fx.Node, channels: Channels, mixers: dict[fx.Node, Mixer]) -> str | None:
    """Its kind in the layer graph; None if it is contracted."""
    if node.op in ("placeholder", "output"):
        return "input" if node.op == "placeholder" else "output"
    if node in mixers:
        return "conv" if mixers[node].is_conv else "linear"
    if node.op not in ("call_function", "call_method"):
        return None
    if node.target in (torch.cat, torch.concat, torch.concatenate):
        return "cat"
    flows = [channels.flows.get(parent) for parent in node.all_input_nodes]
    if sum(isinstance(flow, Flow) for flow in flows) < 2:
        return None
    rule = RULES.get(node.target) if node.target is not operator.getitem else None
    return "add" if rule is add else "mul" if rule is multiply else None


def streams(graph: nx.DiGraph) -> tuple[Stream, ...]:
    """Residual streams: adds connected to each other directly."""
    adds = [name for name, kind in graph.nodes(data="kind") if kind == "add"]
    parts = nx.connected_components(graph.subgraph(adds).to_undirected(as_view=True))
    order = {name: position for position, name in enumerate(graph)}
    ordered = sorted((tuple(sorted(part, key=order.__getitem__)) for part in parts), key=lambda part: order[part[0]])
    return tuple(Stream(f"S{number}", part) for number, part in enumerate(ordered, 1))


def pooling_blocks(graph: nx.DiGraph) -> tuple[str, ...]:
    """Adds and concats that cannot be bypassed, all of whose operands were computed by layers: no operand was computed
    from another one, and every way to an output passes the join.
    """
    joins = [name for name, kind in graph.nodes(data="kind") if kind in ("add", "cat")]
    broken = [name for name in joins if not _has_identity(graph, list(graph.predecessors(name)))]
    passed = dominators(graph) if broken else set()
    return tuple(name for name in broken if name in passed)


def _has_identity(graph: nx.DiGraph, operands: list[str]) -> bool:
    for operand in operands:
        others = set(operands) - {operand}
        if others & nx.ancestors(graph, operand):
            return True
    return False


def dominators(graph: nx.DiGraph) -> set[str]:
    """Layers through which every way from the inputs to an output goes."""
    rooted = graph.copy()
    rooted.add_node("(start)", kind="start")
    rooted.add_edges_from(("(start)", name) for name, kind in graph.nodes(data="kind") if kind == "input")
    outputs = [name for name, kind in graph.nodes(data="kind") if kind == "output"]
    immediate = nx.immediate_dominators(rooted, "(start)")
    passed: set[str] = set()
    for output in outputs:
        step = output
        while step in immediate and step != "(start)":
            passed.add(step)
            if immediate[step] == step:
                break
            step = immediate[step]
    return passed - set(outputs)


def labels_of(table: IdTable, units: Sequence[Unit]) -> Ids:
    """The same number for all ids that joins and gate variables tie together.

    A join that would tie two gate variables of one layer is left out: it sums over channels, multiplies the halves of
    a layer, or spreads a single channel over all. Heads and places in heads are not tied to anything.
    """
    label = np.arange(table.size)
    first, owner = _variables(units)
    own = np.concatenate([np.full(unit.variables, not unit.of_heads) for unit in units] or [np.zeros(0, dtype=bool)])
    for unit in units:  # a variable may gate several ids: of a group, of several calls
        rows = unit.rows
        for call in () if unit.of_heads else unit.calls:
            label = _tied(label, call.ids.reshape(-1)[rows != OPEN], first[rows[rows != OPEN] + unit.start])
    for join in table.blocks:
        if not isinstance(join, Join):
            continue
        trial = label
        for operand in join.operands:
            one, other = join.out.reshape(-1), operand.reshape(-1)
            plain = ~immortal(other) & (other != ZERO)
            trial = _tied(trial, one[plain], other[plain])
        if np.unique((owner * table.size + trial[first])[own]).size == own.sum():
            label = trial
    return label


def of_variables(unit: Unit, label: Ids) -> Ids:
    """The labels of the unit's gate variables."""
    if unit.of_heads:
        return label.size + unit.start + np.arange(unit.variables)
    labels = np.zeros(unit.variables, dtype=np.int64)
    gated = unit.rows != OPEN
    labels[unit.rows[gated]] = label[unit.calls[0].ids.reshape(-1)[gated]]
    return labels


def connected(units: Sequence[Unit], label: Ids) -> list[list[Unit]]:
    """Units that write at least one label in common, directly or through others."""
    parts: list[tuple[set[int], list[Unit]]] = []
    for unit in units:
        labels = set(of_variables(unit, label).tolist())
        touching = [part for part in parts if part[0] & labels]
        together = [one for part in touching for one in part[1]]
        parts = [part for part in parts if part not in touching]
        parts.append((labels.union(*(part[0] for part in touching)), [*together, unit]))
    return sorted((part[1] for part in parts), key=lambda part: part[0].start)


def _variables(units: Sequence[Unit]) -> tuple[Ids, Ids]:
    """Per gate variable the first id that it gates, and its unit."""
    first, owner = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for number, unit in enumerate(units):
        _, place = np.unique(np.where(unit.rows == OPEN, unit.variables, unit.rows), return_index=True)
        first.append(unit.calls[0].ids.reshape(-1)[place[: unit.variables]])
        owner.append(np.full(unit.variables, number))
    return np.concatenate(first), np.concatenate(owner)


def _tied(label: Ids, one: Ids, other: Ids) -> Ids:
    """The labels, with the lower one of each pair given to both."""
    while not np.array_equal(label[one], label[other]):
        lower = np.minimum(label[one], label[other])
        to = np.arange(label.size)
        np.minimum.at(to, label[one], lower)
        np.minimum.at(to, label[other], lower)
        label = to[label]
    return label
