"""Where a layer can be refitted: its weights, the norm behind it, what its output is added to, and what cuts that off;
or why it stays as it is."""

from __future__ import annotations

import math
import operator
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from fxprune.analysis import Analysis
from fxprune.analysis.heads import COLUMNS_FIRST
from fxprune.channels import Mixer
from fxprune.channels.ids import OPEN, Ids
from fxprune.cutting.least_squares import Activation
from fxprune.rules import Flow
from fxprune.torch_private import AnyBatchNorm, AnyConv, AnyTransposedConv, forward_hooks

_ADDS = (operator.add, torch.add, "add", "__add__")
_PASSING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # in eval mode nothing happens in them
_RELU = Activation(0.0, math.inf)
_CUTS = {
    torch.relu: _RELU, F.relu: _RELU, "relu": _RELU, nn.ReLU: _RELU,
    F.relu6: Activation(0.0, 6.0), nn.ReLU6: Activation(0.0, 6.0),
}  # fmt: skip


@dataclass(frozen=True)
class Join:
    """The add that a layer's output goes into, and alone into it."""

    name: str
    other: int  # which operand is the other one
    ids: Ids  # of its channels


@dataclass(frozen=True, eq=False)
class Site:
    """A layer whose weights can be replaced. Names are those of nodes, which the wrapped net has, too."""

    name: str
    calls: tuple[Mixer, ...]
    ends: tuple[str, ...]  # per call, the node behind its norm, or the call itself
    norm: str | None  # the module's name
    join: Join | None
    activation: Activation | None  # behind the join, if there is one
    gates: Ids  # which variables each row hangs on: slots x rows

    @property
    def groups(self) -> int:
        return self.calls[0].groups

    @property
    def target(self) -> tuple[str, ...]:
        """The nodes whose values it is fitted to."""
        return self.ends if self.join is None else (self.join.name,)


def grouped(weight: torch.Tensor, layer: nn.Module | None, groups: int) -> torch.Tensor:
    """A layer's weight as groups x rows x columns x taps; a view."""
    weight = weight.detach()
    if isinstance(layer, COLUMNS_FIRST):
        return weight.reshape(groups, -1, weight.shape[1], math.prod(weight.shape[2:])).transpose(1, 2)
    return weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)


def find_sites(analysis: Analysis, net: nn.Module) -> tuple[list[Site], dict[str, str]]:
    """In the order of their first calls; and why which layers are left as they are."""
    graph = analysis.channels.trace.graph
    place = {node: number for number, node in enumerate(graph.nodes)}
    owners = Counter(id(parameter) for _, parameter in net.named_parameters(remove_duplicate=False))
    read = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    sites, left = [], {}
    for layer in analysis.layers:
        calls = tuple(sorted(layer.calls, key=lambda call: place[call.node]))
        why = _why_not(layer.name, calls, net, owners, read)
        if why is None:
            sites.append(_site(layer.name, calls, analysis, net))
        else:
            left[layer.name] = why
    return sorted(sites, key=lambda site: place[site.calls[0].node]), left


def _why_not(
    name: str, calls: tuple[Mixer, ...], net: nn.Module, owners: Counter[int], read: set[str]
) -> str | None:
    if any(call.node.op != "call_module" or str(call.node.target) != name for call in calls):
        return "it is called as a function"
    layer = net.get_submodule(name)
    if isinstance(layer, nn.Embedding):
        return "it is a table"
    if type(layer) is not nn.Linear and not isinstance(layer, AnyConv):
        return f"{type(layer).__name__} is a class of its own"
    if "weight" not in layer._parameters or forward_hooks(layer):
        return "its weights are computed"
    if isinstance(layer, AnyTransposedConv) and any(len(call.node.args) > 1 or call.node.kwargs for call in calls):
        return "it is told the size of its output"
    if f"{name}.weight" in read or any(owners[id(parameter)] > 1 for parameter in layer.parameters()):
        return "its weights are used elsewhere, too"
    return None


def _site(name: str, calls: tuple[Mixer, ...], analysis: Analysis, net: nn.Module) -> Site:
    channels = analysis.channels
    gates = np.full((1, calls[0].ids.size), OPEN, dtype=np.int64)
    source = channels.table.source(int(calls[0].ids.flat[0]))
    if source is not None and hasattr(source[0], "gate"):
        gates = source[0].gate.reshape(len(source[0].gate), -1)
    anchors = [channels.anchors.get(call.node) for call in calls]
    norm = _norm_of(anchors, calls, net)
    ends = [anchor if norm and anchor is not None else call.node for anchor, call in zip(anchors, calls, strict=True)]
    join, activation = None, None
    if norm or not any(anchors):
        root = channels.trace.root
        last = [_passed(end, root) for end in ends]
        join = _join_of(last[0], analysis) if len(calls) == 1 else None
        cuts = {_cut_behind(node if join is None else _node(node.graph, join.name), root) for node in last}
        activation = cuts.pop() if len(cuts) == 1 else None
    return Site(name, calls, tuple(end.name for end in ends), norm, join, activation, gates)


def _norm_of(anchors: list[fx.Node | None], calls: tuple[Mixer, ...], net: nn.Module) -> str | None:
    """One batch norm with statistics, behind every call of the layer and behind nothing else."""
    names = {str(anchor.target) if anchor is not None and anchor.op == "call_module" else None for anchor in anchors}
    name = names.pop()
    if names or name is None:
        return None
    norm = net.get_submodule(name)
    graph = calls[0].node.graph
    times = sum(node.op == "call_module" and node.target == name for node in graph.nodes)
    usable = isinstance(norm, AnyBatchNorm) and norm.running_mean is not None and not forward_hooks(norm)
    return name if usable and norm.affine and times == len(calls) else None


def _node(graph: fx.Graph, name: str) -> fx.Node:
    named: dict[str, fx.Node] = {node.name: node for node in graph.nodes}
    return named[name]


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _kind(node: fx.Node, root: nn.Module) -> Any:
    return type(root.get_submodule(str(node.target))) if node.op == "call_module" else node.target


def _passed(node: fx.Node, root: nn.Module) -> fx.Node:
    """Behind what changes nothing in eval mode."""
    user = _only_user(node)
    while user is not None and _kind(user, root) in _PASSING:
        node, user = user, _only_user(user)
    return node


def _join_of(node: fx.Node, analysis: Analysis) -> Join | None:
    add = _only_user(node)
    if add is None or add.target not in _ADDS or len(add.args) != 2 or add.kwargs:
        return None
    position = 1 if add.args[0] is node else 0
    other, flows = add.args[position], analysis.channels.flows
    if other is node or not isinstance(other, fx.Node) or not isinstance(flows.get(other), Flow):
        return None
    if not isinstance(flows.get(node), Flow):
        return None
    own, beside = node.meta["value"], other.meta["value"]
    axis = flows[node].axis
    if own.shape != beside.shape or axis is None or flows[other].ids.size not in (1, own.shape[axis]):
        return None
    ids = np.broadcast_to(flows[other].ids.reshape(-1), (own.shape[axis],))
    return Join(add.name, position, ids)


def _cut_behind(node: fx.Node, root: nn.Module) -> Activation | None:
    user = _only_user(node)
    return None if user is None else _CUTS.get(_kind(user, root))
