"""The analysis as plain data: what ``fxprune.inspect`` returns and every printer prints."""

from __future__ import annotations

import math
import types
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

import networkx as nx
import numpy as np
import torch

from fxprune.analysis import Analysis
from fxprune.analysis.gates import Layer
from fxprune.analysis.streams import dominators, pooling_blocks, streams
from fxprune.channels import Frozen
from fxprune.torch_private import tree_flatten
from fxprune.trace.tracer import Leaf, Specialisation


@dataclass(frozen=True)
class UnitInfo:
    """Gates of one kind, by their name in ``wrapped.gates`` and ``set_masks``."""

    name: str
    closes: str  # what one of them closes: "channel", "group", "group norm", "head", or "width": a place in every head
    gates: int


@dataclass(frozen=True)
class LayerInfo:
    """One layer, all its calls together."""

    name: str
    channels: int
    gates: int  # gate variables; 0 without a gate
    grain: str  # what one gate closes, see UnitInfo; of several kinds of gates the first; "" without a gate
    calls: int
    area: int
    volume: int
    volume_share: float
    flops: int
    flops_share: float
    params: int
    prunable: float  # share of its channels that can be removed
    writes: tuple[str, ...]  # the adds, multiplies and concats that read it before any other layer does
    streams: tuple[str, ...]  # the residual streams among them
    guarded: str | None  # why a channel of it must live
    ungated: str | None  # why it has no gate
    source: str | None
    units: tuple[UnitInfo, ...] = ()

    @property
    def heads(self) -> tuple[UnitInfo, ...]:
        """Of a layer that computes attention: its gates, kind by kind."""
        return self.units if any(unit.closes in ("head", "width") for unit in self.units) else ()


@dataclass(frozen=True)
class FreezeInfo:
    """An op that keeps every channel that reaches it, and what that costs."""

    node: str
    op: str
    why: str
    source: str | None
    layers: tuple[str, ...]
    volume_share: float  # of the layers that it keeps, alone or with other ops
    alone_share: float  # of those that nothing else keeps: what freeing this op would free
    remedy: str


@dataclass(frozen=True)
class Inspection:
    """What can be pruned, what cannot, and why.

    >>> from torch import nn
    >>> import fxprune
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.Flatten())
    >>> net.append(nn.Linear(576, 10))  # doctest: +ELLIPSIS
    Sequential...
    >>> seen = fxprune.inspect(net, torch.zeros(1, 3, 8, 8))
    >>> seen.cost["volume"], [layer.name for layer in seen.layers], seen.prunable
    (1088, ['0', '2', '4'], 1.0)
    """

    model: str
    inputs: tuple[str, ...]
    cost: dict[str, int]
    smallest: dict[str, int]  # the cost of the smallest network that still works
    smallest_budget: dict[str, float]  # the same as a fraction of the full cost
    prunable: float  # share of the volume
    layers: tuple[LayerInfo, ...]
    streams: dict[str, tuple[str, ...]]
    pooling_blocks: tuple[str, ...]
    freezes: tuple[FreezeInfo, ...]
    leaves: tuple[Leaf, ...]
    specialisations: tuple[Specialisation, ...]
    edges: tuple[tuple[str, str], ...]  # the layer graph
    nodes: dict[str, dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """Ready for ``json.dumps``."""
        return asdict(self)

    @classmethod
    def restored(cls, data: Any) -> Inspection:
        """The inspection that ``as_dict`` wrote, read from JSON; a ValueError if it is something else."""
        seen = _restored(cls, data, "")
        assert isinstance(seen, Inspection)
        for name, node in seen.nodes.items():
            if not all(isinstance(node.get(key), str) for key in ("kind", "label")):
                raise ValueError(f"nodes.{name} has no kind or no label")
        if not all(end in seen.nodes for edge in seen.edges for end in edge):
            raise ValueError("an edge leads to a node that is not there")
        if not nx.is_directed_acyclic_graph(nx.DiGraph(seen.edges)):
            raise ValueError("the graph goes in a circle")
        return seen


def plain(value: Any) -> Any:
    """What JSON cannot express (infinity, a dtype that a branch looked at) becomes text.

    >>> plain({"a": (1, float("inf"), complex(1, 2))})
    {'a': [1, 'inf', '(1+2j)']}
    """
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return repr(value)


def _restored(hint: Any, value: Any, where: str) -> Any:
    """``value`` in the type of the annotation ``hint``; the error says ``where`` it is not of that type."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return None if value is None else _restored(inner[0], value, where)
    if is_dataclass(hint) and isinstance(hint, type) and isinstance(value, dict):
        hints = get_type_hints(hint)
        given = {f.name: value[f.name] for f in fields(hint) if f.name in value}
        try:
            return hint(**{name: _restored(hints[name], entry, f"{where}.{name}") for name, entry in given.items()})
        except TypeError as error:
            raise ValueError(f"{where.lstrip('.') or 'it'} is not complete") from error
    if origin is tuple and isinstance(value, (list, tuple)):
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        if len(kinds) == len(value):
            pairs = enumerate(zip(kinds, value, strict=True))
            return tuple(_restored(kind, entry, f"{where}[{n}]") for n, (kind, entry) in pairs)
    if origin is dict and isinstance(value, dict):
        return {str(key): _restored(inner[1], entry, f"{where}.{key}") for key, entry in value.items()}
    if hint in (int, str) and type(value) is hint:
        return value
    if hint is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    raise ValueError(f"{where.lstrip('.') or 'it'} is not what it should be")


def describe(analysis: Analysis, name: str, example: Any) -> Inspection:
    """Put an analysis into words and numbers."""
    full, smallest = analysis.full_cost.as_dict(), analysis.costs.exact(analysis.smallest).as_dict()
    graph = analysis.graph
    layers = _layers(analysis, graph)
    parts = streams(graph)
    return Inspection(
        model=name,
        inputs=tuple(
            "x".join(map(str, t.shape)) or "scalar" for t in tree_flatten(example)[0] if isinstance(t, torch.Tensor)
        ),
        cost=full,
        smallest=smallest,
        smallest_budget={metric: smallest[metric] / full[metric] if full[metric] else 1.0 for metric in full},
        prunable=sum(layer.volume * layer.prunable for layer in layers) / max(full["volume"], 1),
        layers=layers,
        streams={stream.name: stream.joins for stream in parts},
        pooling_blocks=pooling_blocks(graph),
        freezes=_freezes(analysis, layers),
        leaves=analysis.channels.trace.leaves,
        specialisations=analysis.channels.trace.specialisations,
        edges=tuple((str(a), str(b)) for a, b in graph.edges),
        nodes={str(node): dict(data) for node, data in graph.nodes(data=True)},
    )


def _layers(analysis: Analysis, graph: nx.DiGraph) -> tuple[LayerInfo, ...]:
    full = analysis.full_cost
    masks = np.stack([analysis.smallest, np.ones(analysis.variables, dtype=bool)], axis=1)
    least, most = analysis.costs.logic.present(masks).T
    costs = analysis.costs.counter.by_layer(most)
    guards = {guard.layer: guard.keeps for guard in analysis.guards.layers if guard.read}
    passed = dominators(graph)
    pooling = set(pooling_blocks(graph))
    of_stream = {join: stream.name for stream in streams(graph) for join in stream.joins}
    told = []
    for layer in analysis.layers:
        call = layer.calls[0]
        writes = tuple(dict.fromkeys(str(join) for c in layer.calls for join in _joins(graph, c.node.name)))
        volume, flops, params = costs[layer.name]
        told.append(
            LayerInfo(
                name=layer.name,
                channels=layer.channels,
                gates=layer.variables,
                grain=layer.grain,
                calls=len(layer.calls),
                area=call.area,
                volume=volume,
                volume_share=volume / max(full.volume, 1),
                flops=flops,
                flops_share=flops / max(full.flops, 1),
                params=params,
                prunable=1.0 if layer.gated else float((~least[call.ids]).mean()),
                writes=writes,
                streams=tuple(dict.fromkeys(of_stream[join] for join in writes if join in of_stream)),
                guarded=_why_guarded(layer, guards, passed, pooling & set(writes)),
                ungated=layer.why,
                source=call.node.meta.get("source"),
                units=tuple(UnitInfo(unit.name, unit.grain, unit.variables) for unit in layer.units),
            )
        )
    return tuple(told)


def _joins(graph: nx.DiGraph, node: str) -> list[str]:
    """The joins that a layer's output reaches before another layer reads it."""
    joins: list[str] = []
    stack = [node]
    while stack:
        for successor in graph.successors(stack.pop()):
            if graph.nodes[successor]["kind"] in ("add", "mul", "cat") and successor not in joins:
                joins.append(successor)
                stack.append(successor)
    order = {name: position for position, name in enumerate(graph)}
    return sorted(joins, key=order.__getitem__)


def _why_guarded(layer: Layer, guards: dict[str, str], passed: set[str], pooling: set[str]) -> str | None:
    if layer.name not in guards:
        return None
    if any(call.node.name in passed for call in layer.calls):
        return "every way to the output passes it"
    if pooling:
        return f"cheapest way through the pooling block {sorted(pooling)[0]}"
    return f"cheapest way to {guards[layer.name]}"


_REGISTER = "register a rule for it with @fxprune.rules.rule, or keep its input apart from what should be pruned"
_REMEDIES = {
    Frozen.NO_RULE: _REGISTER,
    Frozen.NEEDS_ALL: _REGISTER,
    Frozen.LEAF: "rewrite what its reason names so that it can be traced",
    Frozen.RECURRENT: "put a linear layer before it: that one's rows stay, and what it reads can be pruned",
}


def _freezes(analysis: Analysis, layers: tuple[LayerInfo, ...]) -> tuple[FreezeInfo, ...]:
    shares = {layer.name: layer.volume_share for layer in layers}
    told = []
    for freeze in analysis.channels.freezes:
        kept = [layer for layer in analysis.layers if freeze in layer.freezes]
        alone = [layer for layer in kept if len(layer.freezes) == 1]
        told.append(
            FreezeInfo(
                node=freeze.node,
                op=freeze.op,
                why=freeze.why,
                source=freeze.source,
                layers=tuple(layer.name for layer in kept),
                volume_share=float(sum(shares[layer.name] for layer in kept)),
                alone_share=float(sum(shares[layer.name] for layer in alone)),
                remedy=_REMEDIES[freeze.kind],
            )
        )
    return tuple(sorted(told, key=lambda freeze: -freeze.volume_share))
