"""Insert gates and liveness masks into the traced graph. A wrapped net keeps the names of its original, in its
checkpoints too, and needs some for itself."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection
from keyword import iskeyword

import numpy as np
import torch
from torch import fx, nn

from fxprune.analysis import Analysis
from fxprune.channels.facts import Channels
from fxprune.channels.ids import OPEN, Ids
from fxprune.count import batch_size
from fxprune.errors import ModelError
from fxprune.gated.bank import GATED, Site, apply_gate, apply_mask
from fxprune.rules import Flow
from fxprune.torch_private import unsaved_buffers


def keep_unread(root: nn.Module, made: nn.Module) -> None:
    """Parameters that the graph does not read (auxiliary heads) stay, so that the original's checkpoints load."""
    present = set(made.state_dict(keep_vars=True))
    for name in root.state_dict(keep_vars=True):
        if name in present:
            continue
        source, target = root, made
        *owners, leaf = name.split(".")
        for atom in owners:
            if atom not in target._modules:
                target.add_module(atom, source.get_submodule(atom))
                break
            source, target = source.get_submodule(atom), target.get_submodule(atom)
        else:
            if leaf in source._parameters:
                target.register_parameter(leaf, source._parameters[leaf])
            elif leaf in source._buffers:
                target.register_buffer(leaf, source._buffers[leaf])
        present = set(made.state_dict(keep_vars=True))


def keep_passing(root: nn.Module, made: nn.Module) -> None:
    """What is in no checkpoint of the original (tensors that are no buffers, too) is in none of the wrapped net."""
    owners = dict(root.named_modules(remove_duplicate=False))
    for path, module in made.named_modules():
        owner = owners.get(path, module)
        for name, _ in module.named_buffers(recurse=False) if owner is not module else ():
            if name not in owner._buffers or name in unsaved_buffers(owner):
                unsaved_buffers(module).add(name)


def check_names(model: nn.Module, graph: fx.Graph, own: str, taken: Collection[str]) -> None:
    """Refuse names that start like our ``own``, or are ``taken`` by something else in a wrapped or exported net, and
    words of Python's, which no graph can be written with."""
    paths = [str(node.target).split(".") for node in graph.nodes if node.op in ("get_attr", "call_module")]
    for path in paths:
        for word in filter(iskeyword, path):
            raise ModelError(
                f"the name {'.'.join(path)!r} has a word of Python's in it, {word!r}: no code can be written with it",
                fix=f"rename it, for example to {word + '_'!r}",
            )
    for name in (*model._modules, *model._parameters, *model._buffers, *(path[0] for path in paths)):
        if name.startswith(own):
            raise ModelError(f"the model has gates already, in {name!r}", fix="wrap the original, or the slim net")
        if name in taken:
            raise ModelError(
                f"the model has a submodule, parameter or buffer {name!r}, which is the name of something else "
                "in a wrapped or exported net",
                fix=f"rename it, for example self.{name} to self.{name.strip('_')}_layer",
            )


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
