"""Insert gates and liveness masks into the traced graph."""

from __future__ import annotations

import operator
from collections import Counter

import numpy as np
import torch
from torch import fx, nn

from fxprune.core import Channels
from fxprune.count import batch_size
from fxprune.ids import OPEN, Ids
from fxprune.layers import GATED, Site, apply_gate, apply_mask
from fxprune.passes.analysis import Analysis
from fxprune.rules import Flow

BANK = "fxprune_gates"


def find_sites(analysis: Analysis) -> list[tuple[fx.Node, Site]]:
    """Every node whose output is gated or masked: layers (behind their batch norm), and ops that break zeros."""
    channels = analysis.channels
    mortal = _mortal(analysis)
    gate_of, batch = _gate_of(channels), batch_size(*channels.trace.example)
    found: dict[fx.Node, Site] = {}
    for mixer in channels.mixers:
        node = channels.anchors.get(mixer.node, mixer.node)
        flow = channels.flows[node]
        gate = gate_of[mixer.ids.reshape(flow.ids.shape)]  # what flows on may hang on more than its gate
        if (gate != OPEN).any():
            samples = node.meta["value"].shape[0] == batch and flow.ids.shape[0] == 1
            found[node] = Site(torch.from_numpy(flow.ids), torch.from_numpy(gate), samples=samples)
        elif mortal[flow.ids].any():
            found[node] = Site(torch.from_numpy(flow.ids), None)
    for node in channels.masks:
        flow = channels.flows[node]
        if isinstance(flow, Flow) and mortal[flow.ids].any() and node not in found:
            found[node] = Site(torch.from_numpy(flow.ids), None)
    order = {node: position for position, node in enumerate(channels.trace.graph.nodes)}
    return sorted(found.items(), key=lambda item: order[item[0]])


def _gate_of(channels: Channels) -> Ids:
    gate = np.full(channels.table.size, OPEN, dtype=np.int64)
    for block in channels.table.blocks:
        if hasattr(block, "gate"):
            gate[block.out] = block.gate
    return gate


def _mortal(analysis: Analysis) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Ids that some mask can kill."""
    closed = torch.zeros(analysis.variables, dtype=torch.float64, device="cpu")
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = analysis.channels.table.alive(closed).numpy() == 0
    return found


def insert(graph: fx.Graph, root: nn.Module, sites: list[tuple[str, Site]]) -> list[str]:
    """Edit a copy of the traced graph: one call of the gate bank, then a factor or mask behind each site's node.

    A batch norm of its own takes the factor in; returns the names of these.
    """
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    taken_in: list[str] = []
    nodes = {node.name: node for node in graph.nodes}
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        given = [n for n in graph.nodes if n.op == "placeholder" and isinstance(n.meta.get("value"), torch.Tensor)]
        bank = graph.call_module(BANK, tuple(given[:1]))
        for node in list(graph.nodes):
            if node.op == "placeholder" and isinstance(node.meta.get("value"), torch.Tensor):
                rank = graph.call_method("dim", (node,))
                same = graph.call_function(operator.eq, (rank, node.meta["value"].ndim))
                graph.call_function(torch._assert, (same, f"fxprune: {node.name} has another rank than the example"))
    for number, (name, site) in enumerate(sites):
        node = nodes[name]
        with graph.inserting_after(node):
            factor = graph.call_function(operator.getitem, (bank, number))
        norm = root.get_submodule(str(node.target)) if node.op == "call_module" else None
        if site.gate is not None and type(norm) in GATED and norm.affine and calls[node.target] == 1:  # type: ignore[union-attr]
            node.prepend(factor)
            node.args = (node.args[0], factor)
            site.in_norm = True
            taken_in.append(str(node.target))
            continue
        with graph.inserting_after(factor):
            gated = graph.call_function(apply_gate if site.gate is not None else apply_mask, (node, factor))
        node.replace_all_uses_with(gated, delete_user_cb=lambda user, keep=gated: user is not keep)
    graph.lint()
    return taken_in
