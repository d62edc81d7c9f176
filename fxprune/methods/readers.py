"""Who reads a stream, and whether what one of its positions becomes could as well come out of another one.

It could if nothing between the layers that write it and those that read it tells positions apart: no parameter per
channel (a batch norm on the stream, a PReLU, a scale), no other tensor beside it, no op that sees only some of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.nn.modules.conv import _ConvTransposeNd

from fxprune.core import Mixer
from fxprune.ids import Ids
from fxprune.passes.gates import Layer
from fxprune.rules import Flow
from fxprune.wrapped import Wrapped


@dataclass(frozen=True, eq=False)
class Reader:
    """A layer behind the stream: its weight, and the columns (position x columns) that read each position."""

    weight: torch.Tensor
    axis: int
    columns: torch.Tensor


def module_at(net: nn.Module, name: str) -> nn.Module | None:
    try:
        return net.get_submodule(name)
    except AttributeError:
        return None


def readers_of(net: Wrapped, label: Ids, labels: Ids, writers: list[Layer]) -> tuple[Reader, ...] | None:
    """All readers; None if positions are told apart, or if a weight is out of reach."""
    channels = net.analysis.channels
    mixers = {mixer.node: mixer for mixer in channels.mixers}
    calls = Counter(mixer.name for mixer in channels.mixers)
    owned = _owners(net)
    if any(np.isin(label[ids], labels).any() for ids in channels.outputs):
        return None
    for layer in writers:
        weight = getattr(module_at(net, layer.name), "weight", None)
        plain = layer.grain == "channel" and layer.calls[0].groups == 1 and calls[layer.name] == 1
        if not plain or not _free(weight, owned) or isinstance(module_at(net, layer.name), _ConvTransposeNd):
            return None
    made = {layer.calls[0].node for layer in writers}
    made |= {channels.anchors[node] for node in made if node in channels.anchors}
    carries = {node: _carries(channels.flows.get(node), label, labels) for node in channels.trace.graph.nodes}
    found = []
    for node in channels.trace.graph.nodes:
        if node in made:
            if carries[node] != "all":
                return None
            continue
        if node in mixers and any(carries[source] != "none" for source in node.all_input_nodes):
            reader = _reader(net, mixers[node], label, labels, calls, owned)
            if reader is None or carries[node] != "none":
                return None
            found.append(reader)
        elif not _is_blind(net, node, carries, channels.opaque | channels.filled):
            return None
    return tuple(found)


def _carries(flow: Any, label: Ids, labels: Ids) -> str:
    """Whether a tensor holds the stream: "all" of its positions, "some" or "none"."""
    flows = [flow] if isinstance(flow, Flow) else [one for one in flow or () if isinstance(one, Flow)]
    present = [np.isin(labels, label[one.ids]) for one in flows]
    if not any(one.any() for one in present):
        return "none"
    return "all" if isinstance(flow, Flow) and present[0].all() else "some"


def _is_blind(net: Wrapped, node: fx.Node, carries: dict[fx.Node, str], opaque: frozenset[fx.Node]) -> bool:
    """Whether an op that is no layer of the stream does the same to all of its positions."""
    sources = [source for source in node.all_input_nodes if isinstance(source.meta.get("value"), torch.Tensor)]
    if all(carries[source] == "none" for source in sources):
        return carries[node] == "none"  # written by something without a gate, otherwise
    if not isinstance(node.meta.get("value"), torch.Tensor):
        return node.op != "output" and not isinstance(node.meta.get("value"), (tuple, list))  # a size, say
    module = module_at(net, str(node.target)) if node.op == "call_module" else None
    own = [] if module is None else [*module.parameters(), *module.buffers()]
    return carries[node] == "all" and all(carries[s] == "all" for s in sources) and not own and node not in opaque


def _owners(net: Wrapped) -> Counter[int]:
    """How often the model owns or reads each parameter."""
    found = Counter(id(p) for module in net.modules() for p in module._parameters.values() if p is not None)
    for node in net.analysis.channels.trace.graph.nodes:
        if node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            found[id(getattr(module_at(net, owner), name, None))] += 1
    return found


def _free(weight: Any, owned: Counter[int]) -> bool:
    return isinstance(weight, nn.Parameter) and owned[id(weight)] == 1


def _reader(
    net: Wrapped, mixer: Mixer, label: Ids, labels: Ids, calls: Counter[str], owned: Counter[int]
) -> Reader | None:
    conv = module_at(net, mixer.name)
    weight = getattr(conv, "weight", None)
    if mixer.groups > 1 or calls[mixer.name] > 1 or not _free(weight, owned):
        return None
    read = label[mixer.inputs[0]]
    columns = np.flatnonzero(np.isin(read, labels))
    order = columns[np.argsort(np.searchsorted(labels, read[columns]), kind="stable")]
    if not order.size or order.size % labels.size:
        return None
    order = order.reshape(labels.size, -1)
    if not (read[order] == labels[:, None]).all():
        return None
    assert isinstance(weight, nn.Parameter)
    return Reader(weight, 0 if isinstance(conv, _ConvTransposeNd) else 1, torch.from_numpy(order))
