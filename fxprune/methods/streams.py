"""Channels that are scaled together: all layers that write the same residual stream keep the same channels of it.

A *stream* is the channels of one layer, or of all layers that adds and multiplies join. Each *position* of it is
written by one gate variable of every such layer, and read by columns of the layers behind it. What one position becomes
may come out of another one instead, if nothing on the way tells them apart: then columns can be merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from fxprune.analysis.gates import Layer
from fxprune.analysis.streams import connected, labels_of, of_variables
from fxprune.channels.facts import Mixer
from fxprune.channels.ids import OPEN, Ids
from fxprune.rules import Flow
from fxprune.torch_private import AnyBatchNorm, AnyTransposedConv
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
        if not plain or not _free(weight, owned) or isinstance(module_at(net, layer.name), AnyTransposedConv):
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
    return Reader(weight, 0 if isinstance(conv, AnyTransposedConv) else 1, torch.from_numpy(order))


@dataclass(frozen=True, eq=False)
class Writer:
    """A gated layer, and where in its stream each of its gate variables writes."""

    layer: Layer
    positions: torch.Tensor
    weight: torch.Tensor  # of the convolution; empty if it is computed by nobody knows what
    bias: nn.Parameter | None
    transposed: bool
    norm: AnyBatchNorm | None  # the batch norm that solely follows

    @property
    def filters(self) -> torch.Tensor:
        """Gate variables x weights, in float64."""
        weight = self.weight.detach().double().cpu()
        if not weight.numel():
            return torch.ones(self.layer.variables, 1, dtype=torch.float64)
        groups = self.layer.calls[0].groups
        if self.transposed:  # in x out / groups
            weight = weight.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2)
        return self.per_variable(weight.reshape(self.layer.channels, -1))

    def per_variable(self, channels: torch.Tensor) -> torch.Tensor:
        """Something per channel, as one row per gate variable."""
        rows = torch.from_numpy(self.layer.rows.reshape(-1))
        order = torch.argsort(rows, stable=True)[int((rows == OPEN).sum()) :]
        return channels[order].reshape(self.layer.variables, -1)

    @property
    def scale(self) -> torch.Tensor:
        """Per channel, what the batch norm multiplies by."""
        if self.norm is None or self.norm.running_var is None:
            return torch.ones(self.layer.channels, dtype=torch.float64)
        spread = (self.norm.running_var.double().cpu() + self.norm.eps).sqrt()
        return 1 / spread if self.norm.weight is None else self.norm.weight.detach().double().cpu() / spread

    @property
    def shift(self) -> torch.Tensor:
        """Per channel, what is added at last."""
        zero = torch.zeros(self.layer.channels, dtype=torch.float64)
        added = zero if self.bias is None else self.bias.detach().double().cpu()
        if self.norm is None or self.norm.running_mean is None:
            return added
        last = zero if self.norm.bias is None else self.norm.bias.detach().double().cpu()
        return last + self.scale * (added - self.norm.running_mean.double().cpu())

    @property
    def folded(self) -> torch.Tensor:
        """Gate variables x (weights, shift): the filters with their batch norm in them."""
        scale, shift = self.per_variable(self.scale), self.per_variable(self.shift)
        wide = self.filters.reshape(self.layer.variables, scale.shape[1], -1) * scale[:, :, None]
        return torch.cat([wide, shift[:, :, None]], 2).reshape(self.layer.variables, -1)


@dataclass(frozen=True, eq=False)
class Stream:
    number: int
    writers: tuple[Writer, ...]
    size: int
    readers: tuple[Reader, ...] | None  # None: what a position becomes cannot be moved into another one

    def __len__(self) -> int:
        return self.size

    def sums(self, value: Callable[[Writer], torch.Tensor]) -> torch.Tensor:
        """Per position, the sum over its writers of a number per gate variable."""
        total = torch.zeros(self.size, dtype=torch.float64)
        for writer in self.writers:
            total.index_add_(0, writer.positions, value(writer).double())
        return total

    def features(self) -> torch.Tensor:
        """Positions x everything that is written to them: the folded filters side by side."""
        parts = []
        for writer in self.writers:
            folded = writer.folded
            parts.append(torch.zeros(self.size, folded.shape[1], dtype=torch.float64))
            parts[-1].index_add_(0, writer.positions, folded)
        return torch.cat(parts, 1)


def find_streams(net: Wrapped) -> list[Stream]:
    """All streams of a network, in the order of their first layers."""
    layers = [layer for layer in net.analysis.layers if layer.gated]
    label = labels_of(net.analysis.channels.table, layers)
    found = []
    for number, part in enumerate(connected(layers, label)):
        labels = np.unique(np.concatenate([of_variables(layer, label) for layer in part]))
        writers = tuple(_writer(net, layer, np.searchsorted(labels, of_variables(layer, label))) for layer in part)
        found.append(Stream(number, writers, labels.size, readers_of(net, label, labels, [w.layer for w in writers])))
    return found


def _writer(net: Wrapped, layer: Layer, positions: Ids) -> Writer:
    conv = module_at(net, layer.name)
    weight, bias = getattr(conv, "weight", None), getattr(conv, "bias", None)
    anchor = net.analysis.channels.anchors.get(layer.calls[0].node)
    norm = module_at(net, str(anchor.target)) if anchor is not None and anchor.op == "call_module" else None
    return Writer(
        layer, torch.from_numpy(positions), weight if isinstance(weight, torch.Tensor) else torch.zeros(0),
        bias if isinstance(bias, nn.Parameter) else None, isinstance(conv, AnyTransposedConv),
        norm if isinstance(norm, AnyBatchNorm) else None,
    )  # fmt: skip


def merge(stream: Stream, living: torch.Tensor, dying: torch.Tensor, factors: torch.Tensor) -> None:
    """``factors`` (living x dying): how much of each living position a dying one is."""
    for reader in stream.readers or ():
        weight = reader.weight.data.transpose(0, reader.axis)  # a view: columns first
        to, of = (reader.columns[part].to(weight.device) for part in (living, dying))
        taken = weight[of]  # dying x columns of one position x ...
        moved = torch.einsum("ij,j...->i...", factors.to(taken), taken)
        weight.index_add_(0, to.reshape(-1), moved.flatten(0, 1))
        weight[of.reshape(-1)] = 0  # handed over, also where a dying one is still half written


def scaled(
    streams: Sequence[Stream], values: Sequence[torch.Tensor], widths: Sequence[float] | None = None
) -> dict[str, torch.Tensor]:
    """Scores for ``harden``: of a stream's positions (the largest values first) the first w x width live, for one w.

    ``widths`` are what w multiplies, by default the full ones.
    """
    scores = {}
    for number, (stream, value) in enumerate(zip(streams, values, strict=True)):
        width = len(stream) if widths is None else widths[number]
        rank = torch.argsort(torch.argsort(value, descending=True, stable=True))
        score = -(rank.double() + 0.5) / max(width, 1e-9)
        scores.update({writer.layer.name: score[writer.positions] for writer in stream.writers})
    return scores
