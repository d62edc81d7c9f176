"""Insert gates and liveness masks into the traced graph."""

from __future__ import annotations

import copy
import itertools
import operator
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import fx, nn

from fxprune.analysis import Analysis
from fxprune.channels import Channels
from fxprune.channels.ids import OPEN, Ids, Mix
from fxprune.cost.exact import Bools
from fxprune.count import batch_size
from fxprune.gated.bank import GATED, GateBank, Site, apply_gate, apply_mask
from fxprune.gated.names import BANK
from fxprune.rules import Flow
from fxprune.trace import real_root


def find_sites(analysis: Analysis) -> list[tuple[fx.Node, Site]]:
    """Every node whose output is gated or masked: layers (behind their batch norm), and ops that break zeros."""
    channels = analysis.channels
    mortal = _mortal(analysis)
    gate_of, batch = _gate_of(channels), batch_size(*channels.trace.example)
    sites: dict[fx.Node, Site] = {}
    for mixer in channels.mixers:
        node = channels.anchors.get(mixer.node, mixer.node)
        flow = channels.flows[node]
        gate = gate_of[:, mixer.ids.reshape(flow.ids.shape)]  # what flows on may hang on more than its gate
        if (gate != OPEN).any():
            samples = node.meta["value"].shape[0] == batch and flow.ids.shape[0] == 1
            sites[node] = Site(flow.ids, gate, samples=samples)
        elif mortal[flow.ids].any():
            sites[node] = Site(flow.ids, None)
    for node in channels.masks:
        flow = channels.flows[node]
        if isinstance(flow, Flow) and mortal[flow.ids].any() and node not in sites:
            sites[node] = Site(flow.ids, None)
    return [(node, sites[node]) for node in channels.trace.graph.nodes if node in sites]


def _gate_of(channels: Channels) -> Ids:
    """Per id its gate variables; of most ids there is one, or none."""
    blocks = [block for block in channels.table.blocks if isinstance(block, Mix)]
    gate = np.full((max((len(block.gate) for block in blocks), default=1), channels.table.size), OPEN, dtype=np.int64)
    for block in blocks:
        gate[: len(block.gate), block.out] = block.gate
    return gate


def _mortal(analysis: Analysis) -> Bools:
    """Ids that some mask can kill, but none that the guards hold."""
    closed = np.zeros((analysis.variables, 1), dtype=bool)
    mortal: Bools = ~analysis.costs.logic.alive(closed)[:, 0] & ~analysis.sure.alive
    return mortal


@dataclass(frozen=True, eq=False)
class GatedGraph:
    """A model whose graph has gates."""

    root: nn.Module  # a copy of the model, with the gates as one more module
    graph: fx.Graph
    name: str  # of the model's class
    norms: list[str]  # batch norms that take their gate in
    in_place: list[str]  # modules that write in place in the model, and not in the graph


def insert_gates(model: nn.Module, analysis: Analysis) -> GatedGraph:
    """One call of the gate bank, then a factor or mask behind each site's node.

    A batch norm that is called once takes the factor in.
    """
    trace = analysis.channels.trace
    in_place = [name for name, module in model.named_modules() if getattr(module, "inplace", False) is True]
    root, graph = real_root(trace, model), copy.deepcopy(trace.graph)
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    sites = find_sites(analysis)
    for node, site in sites:
        once = node.op == "call_module" and calls[node.target] == 1
        site.in_norm = once and _takes(root.get_submodule(str(node.target)), site)
    made = _bank_for(model, analysis, [site for _, site in sites])
    root.add_module(BANK, made)
    nodes = {node.name: node for node in graph.nodes}
    norms = [str(sites[number][0].target) for number in made.in_norms]
    bank = _call_bank(graph, norms)
    for number, (original, site) in enumerate(sites):
        node = nodes[original.name]
        with graph.inserting_after(node):
            factor = graph.call_function(operator.getitem, (bank, number))
        if site.in_norm:
            node.prepend(factor)
            node.args = (node.args[0], factor)
            continue
        with graph.inserting_after(factor):
            gated = graph.call_function(apply_gate if site.gate is not None else apply_mask, (node, factor))
        node.replace_all_uses_with(gated, delete_user_cb=lambda user, keep=gated: user is not keep)
    graph.lint()
    return GatedGraph(root, graph, type(model).__name__, norms, in_place)


def _takes(norm: nn.Module, site: Site) -> bool:
    """Whether it is a batch norm over the channels of the site."""
    weight, channels = norm._parameters.get("weight"), site.ids.shape[1:2]
    return type(norm) in GATED and weight is not None and channels == weight.shape == (site.ids.size,)


def _bank_for(model: nn.Module, analysis: Analysis, sites: list[Site]) -> GateBank:
    tensors = itertools.chain(model.parameters(), model.buffers())
    like = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.zeros(()))
    bank = GateBank(analysis.variables, like.dtype, like.device)
    bank.connect(analysis, sites)
    places = [place for rows in analysis.places.values() for place in rows]
    bank.register_buffer("places", torch.tensor(places, device=like.device) if places else None)
    return bank.train(model.training)


def _call_bank(graph: fx.Graph, norms: list[str]) -> fx.Node:
    """Before everything else, with the first input, which knows how many samples there are, and the affine maps that
    take gates in; and check the inputs."""
    given = [node for node in graph.nodes if node.op == "placeholder"]
    inputs = [node for node in given if isinstance(node.meta.get("value"), torch.Tensor)]
    with graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder")):
        affine = [graph.get_attr(f"{name}.{part}") for part in ("weight", "bias") for name in norms]
        bank = graph.call_module(BANK, (inputs[0] if inputs else None, affine))
        for node in inputs:
            rank = graph.call_method("dim", (node,))
            same = graph.call_function(operator.eq, (rank, node.meta["value"].ndim))
            graph.call_function(torch._assert, (same, f"fxprune: {node.name} has another rank than the example"))
    return bank
