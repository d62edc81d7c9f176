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
import torch.nn.functional as F
from torch import fx, nn

from fxprune.analysis.gates import Unit
from fxprune.analysis.heads import COLUMNS_FIRST, weight_of
from fxprune.analysis.streams import connected, labels_of, of_variables
from fxprune.channels import Mixer
from fxprune.channels.ids import OPEN, Ids
from fxprune.gated.wrapped import Wrapped
from fxprune.rules import Flow
from fxprune.torch_private import AnyBatchNorm
from fxprune.trace.values import Values


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


def _readers(net: Wrapped, label: Ids, labels: Ids, writers: list[Unit]) -> tuple[Reader, ...] | None:
    """All readers; None if some op treats positions differently, or if a weight cannot be changed."""
    channels = net.analysis.channels
    mixers = {mixer.node: mixer for mixer in channels.mixers}
    calls = Counter(mixer.name for mixer in channels.mixers)
    owned = _owners(net)
    if any(np.isin(label[ids], labels).any() for ids in channels.outputs):
        return None
    for unit in writers:
        weight = getattr(module_at(net, unit.name), "weight", None)
        plain = unit.grain == "channel" and unit.calls[0].groups == 1 and calls[unit.name] == 1
        if not plain or not _free(weight, owned) or isinstance(module_at(net, unit.name), COLUMNS_FIRST):
            return None
    written = {unit.calls[0].node for unit in writers}
    written |= {channels.anchors[node] for node in written if node in channels.anchors}
    carries = {node: _carries(channels.flows.get(node), label, labels) for node in channels.trace.graph.nodes}
    readers = []
    for node in channels.trace.graph.nodes:
        if node in written:
            if carries[node] != "all":
                return None
            continue
        if node in mixers and any(carries[source] != "none" for source in node.all_input_nodes):
            reader = _reader(net, mixers[node], label, labels, calls, owned)
            if reader is None or carries[node] != "none":
                return None
            readers.append(reader)
        elif not _is_blind(net, node, carries, channels.whole):
            return None
    return tuple(readers)


def _carries(flow: Any, label: Ids, labels: Ids) -> str:
    """How many of the stream's positions a tensor holds: "all", "some" or "none"."""
    flows = [flow] if isinstance(flow, Flow) else [one for one in flow or () if isinstance(one, Flow)]
    present = [np.isin(labels, label[one.ids]) for one in flows]
    if not any(one.any() for one in present):
        return "none"
    return "all" if isinstance(flow, Flow) and present[0].all() else "some"


def _is_blind(net: Wrapped, node: fx.Node, carries: dict[fx.Node, str], whole: frozenset[fx.Node]) -> bool:
    """Whether an op that neither writes nor reads the stream does the same to all of its positions."""
    sources = [source for source in node.all_input_nodes if isinstance(source.meta.get("value"), torch.Tensor)]
    if all(carries[source] == "none" for source in sources):
        return carries[node] == "none"  # otherwise an op without a gate writes the stream
    if not isinstance(node.meta.get("value"), torch.Tensor):
        return node.op != "output" and not isinstance(node.meta.get("value"), (tuple, list))  # for example a size
    module = module_at(net, str(node.target)) if node.op == "call_module" else None
    own = [] if module is None else [*module.parameters(), *module.buffers()]
    return carries[node] == "all" and all(carries[s] == "all" for s in sources) and not own and node not in whole


def _owners(net: Wrapped) -> Counter[int]:
    """How many modules and nodes of the graph use each parameter."""
    owned = Counter(id(p) for module in net.modules() for p in module._parameters.values() if p is not None)
    for node in net.analysis.channels.trace.graph.nodes:
        if node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            owned[id(getattr(module_at(net, owner), name, None))] += 1
    return owned


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
    return Reader(weight, 0 if isinstance(conv, COLUMNS_FIRST) else 1, torch.from_numpy(order))


@dataclass(frozen=True, eq=False)
class Writer:
    """Gates of a layer, and where in its stream each of their variables writes."""

    unit: Unit
    positions: torch.Tensor
    weight: torch.Tensor  # of the convolution; empty if it is not a tensor
    bias: nn.Parameter | None
    transposed: bool
    norm: AnyBatchNorm | None  # the batch norm behind it, if nothing else reads the layer

    @property
    def filters(self) -> torch.Tensor:
        """Gate variables x weights, in float64."""
        if not self.weight.numel():
            return self.per_variable(torch.ones(self.unit.channels, 1, dtype=torch.float64))
        return self.per_variable(self.rows(self.weight.detach().double().cpu()))

    def rows(self, weight: torch.Tensor) -> torch.Tensor:
        """Channels x weights."""
        if self.transposed:  # in x out / groups
            weight = weight.reshape(self.unit.calls[0].groups, -1, *weight.shape[1:]).transpose(1, 2)
        return weight.reshape(self.unit.channels, -1)

    def per_variable(self, channels: torch.Tensor) -> torch.Tensor:
        """Something per channel, as one row per gate variable."""
        rows = torch.from_numpy(self.unit.rows.reshape(-1))
        order = torch.argsort(rows, stable=True)[int((rows == OPEN).sum()) :]
        return channels[order].reshape(self.unit.variables, -1)

    @property
    def scale(self) -> torch.Tensor:
        """Per channel, what the batch norm multiplies by."""
        if self.norm is None or self.norm.running_var is None:
            return torch.ones(self.unit.channels, dtype=torch.float64)
        spread = (self.norm.running_var.double().cpu() + self.norm.eps).sqrt()
        return 1 / spread if self.norm.weight is None else self.norm.weight.detach().double().cpu() / spread

    @property
    def shift(self) -> torch.Tensor:
        """Per channel, what is added at last."""
        zero = torch.zeros(self.unit.channels, dtype=torch.float64)
        added = zero if self.bias is None else self.bias.detach().double().cpu()
        if self.norm is None or self.norm.running_mean is None:
            return added
        last = zero if self.norm.bias is None else self.norm.bias.detach().double().cpu()
        return last + self.scale * (added - self.norm.running_mean.double().cpu())

    @property
    def folded(self) -> torch.Tensor:
        """Gate variables x (weights, shift): the filters with their batch norm in them."""
        scale, shift = self.per_variable(self.scale), self.per_variable(self.shift)
        wide = self.filters.reshape(self.unit.variables, scale.shape[1], -1) * scale[:, :, None]
        return torch.cat([wide, shift[:, :, None]], 2).reshape(self.unit.variables, -1)


@dataclass(frozen=True, eq=False)
class Stream:
    number: int
    writers: tuple[Writer, ...]
    size: int
    readers: tuple[Reader, ...] | None  # None: columns cannot be merged

    def __len__(self) -> int:
        return self.size

    def sums(self, value: Callable[[Writer], torch.Tensor]) -> torch.Tensor:
        """Per position, the sum over its writers of a number per gate variable."""
        total = torch.zeros(self.size, dtype=torch.float64)
        for writer in self.writers:
            total.index_add_(0, writer.positions, value(writer).double())
        return total

    def features(self) -> torch.Tensor:
        """Positions x weights: the folded filters of all writers, side by side."""
        folded = [(writer.positions, writer.folded) for writer in self.writers]
        return torch.cat([part.new_zeros(self.size, part.shape[1]).index_add_(0, to, part) for to, part in folded], 1)


def find_streams(net: Wrapped) -> list[Stream]:
    """All streams of a network, in the order of their first layers."""
    label = labels_of(net.analysis.channels.table, net.analysis.units)
    streams = []
    for number, part in enumerate(connected(net.analysis.units, label)):
        labels = np.unique(np.concatenate([of_variables(unit, label) for unit in part]))
        writers = tuple(_writer(net, unit, np.searchsorted(labels, of_variables(unit, label))) for unit in part)
        streams.append(Stream(number, writers, labels.size, _readers(net, label, labels, part)))
    return streams


def _writer(net: Wrapped, unit: Unit, positions: Ids) -> Writer:
    conv = module_at(net, unit.calls[0].name)
    weight, bias = getattr(conv, "weight", None), getattr(conv, "bias", None)
    if weight is None:
        weight = _rows_of_a_function(net, unit)
    anchor = net.analysis.channels.anchors.get(unit.calls[0].node)
    norm = module_at(net, str(anchor.target)) if anchor is not None and anchor.op == "call_module" else None
    return Writer(
        unit, torch.from_numpy(positions), weight if isinstance(weight, torch.Tensor) else torch.zeros(0),
        bias if isinstance(bias, nn.Parameter) else None, isinstance(conv, COLUMNS_FIRST),
        norm if isinstance(norm, AnyBatchNorm) else None,
    )  # fmt: skip


def _rows_of_a_function(net: Wrapped, unit: Unit) -> torch.Tensor | None:
    """The weight of a linear layer that is no module: of attention often a part of a parameter that holds several."""
    call = unit.calls[0]
    weight = weight_of(call, Values(net, net, torch.device("cpu"))) if call.node.target is F.linear else None
    return weight if weight is not None and weight.shape[0] == unit.channels else None


def merge(stream: Stream, living: torch.Tensor, dying: torch.Tensor, factors: torch.Tensor) -> None:
    """Add the columns of dying positions to those of living ones; ``factors`` (living x dying) express the dying
    positions by the living ones."""
    for reader in stream.readers or ():
        weight = reader.weight.data.transpose(0, reader.axis)  # a view: columns first
        to, of = (reader.columns[part].to(weight.device) for part in (living, dying))
        taken = weight[of]  # dying x columns of one position x ...
        moved = torch.einsum("ij,j...->i...", factors.to(taken), taken)
        weight.index_add_(0, to.reshape(-1), moved.flatten(0, 1))
        weight[of.reshape(-1)] = 0  # already added to the living ones; some layers may still write this position


def scaled(
    streams: Sequence[Stream], values: Sequence[torch.Tensor], widths: Sequence[float] | None = None
) -> dict[str, torch.Tensor]:
    """Scores for ``harden``: with one w for all streams, it keeps the w x width positions with the largest values.

    ``widths`` are by default the full ones.
    """
    scores = {}
    for number, (stream, value) in enumerate(zip(streams, values, strict=True)):
        width = len(stream) if widths is None else widths[number]
        rank = torch.argsort(torch.argsort(value, descending=True, stable=True))
        score = -(rank.double() + 0.5) / max(width, 1e-9)
        scores.update({writer.unit.name: score[writer.positions] for writer in stream.writers})
    return scores
