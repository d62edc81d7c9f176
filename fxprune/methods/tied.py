"""Channels that are scaled together: all layers that write the same residual stream keep the same channels of it.

A *stream* is the channels of one layer, or of all layers that adds and multiplies join. Each *position* of it is
written by one gate variable of every such layer, and read by columns of the layers behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvTransposeNd

from fxprune.core import Mixer
from fxprune.ids import ONE, OPEN, ZERO, Ids, Join
from fxprune.passes.gates import Layer
from fxprune.wrapped import Wrapped


@dataclass(frozen=True, eq=False)
class Writer:
    """A gated layer, and where in its stream each of its gate variables writes."""

    layer: Layer
    positions: torch.Tensor
    weight: torch.Tensor  # of the convolution; empty if it is computed by nobody knows what
    bias: nn.Parameter | None
    transposed: bool
    norm: _BatchNorm | None  # the batch norm that solely follows

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
class Reader:
    """A layer behind the stream: its weight, and the columns (position x columns) that read each position."""

    weight: torch.Tensor
    axis: int
    columns: torch.Tensor


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
    channels = net.analysis.channels
    layers = [layer for layer in net.analysis.layers if layer.gated]
    variable = _variables(layers, channels.table.size)
    label = _labels(channels.table.blocks, channels.table.size, variable)
    of_variable = np.zeros(net.analysis.variables, dtype=np.int64)
    known = variable != OPEN
    of_variable[variable[known]] = label[known]
    closed = _unmovable(net, label, variable)
    found = []
    for number, part in enumerate(_connected(layers, of_variable)):
        labels = np.unique(np.concatenate([of_variable[_range(layer)] for layer in part]))
        writers = tuple(_writer(net, layer, np.searchsorted(labels, of_variable[_range(layer)])) for layer in part)
        movable = not closed[labels].any() and all(_is_plain(writer) for writer in writers)
        readers = _readers(net, label, labels) if movable else None
        found.append(Stream(number, writers, labels.size, readers))
    return found


def _range(layer: Layer) -> slice:
    return slice(layer.start, layer.start + layer.variables)


def _variables(layers: list[Layer], size: int) -> Ids:
    """Per id the gate variable that it hangs on."""
    found = np.full(size, OPEN, dtype=np.int64)
    for layer in layers:
        rows = layer.rows.reshape(-1)
        for call in layer.calls:
            found[call.ids.reshape(-1)] = np.where(rows == OPEN, OPEN, rows + layer.start)
    return found


def _labels(blocks: Iterable[object], size: int, variable: Ids) -> Ids:
    """The same number for all ids that joins and gate variables tie together."""
    label = np.arange(size)
    joins = [block for block in blocks if isinstance(block, Join)]
    while True:
        before = label.copy()
        for join in joins:
            ids = np.stack([join.out.reshape(-1), *(operand.reshape(-1) for operand in join.operands)])
            fixed = (ids == ONE) | (ids == ZERO)
            lowest = np.where(fixed, size, label[ids]).min(0)
            for row, skip in zip(ids, fixed, strict=True):
                np.minimum.at(label, row[~skip], lowest[~skip])
        lowest = np.full(int(variable.max(initial=0)) + 1, size)
        gated = variable != OPEN
        np.minimum.at(lowest, variable[gated], label[gated])
        label[gated] = lowest[variable[gated]]
        if np.array_equal(label, before):
            return label


def _connected(layers: list[Layer], of_variable: Ids) -> list[list[Layer]]:
    """Layers that write at least one label in common, directly or through others."""
    parts: list[tuple[set[int], list[Layer]]] = []
    for layer in layers:
        labels = set(of_variable[_range(layer)].tolist())
        touching = [part for part in parts if part[0] & labels]
        together = [one for part in touching for one in part[1]]
        parts = [part for part in parts if part not in touching]
        parts.append((labels.union(*(part[0] for part in touching)), [*together, layer]))
    return sorted((part[1] for part in parts), key=lambda part: part[0].start)


def _unmovable(net: Wrapped, label: Ids, variable: Ids) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Labels that something writes which has no gate, or that are read group by group."""
    channels = net.analysis.channels
    closed = np.zeros(label.size, dtype=bool)
    for block in channels.table.blocks:
        if isinstance(block, Join):
            for operand in block.operands:
                closed[label[block.out.reshape(-1)[operand.reshape(-1) == ONE]]] = True
    calls: dict[str, int] = {}
    for mixer in channels.mixers:
        calls[mixer.name] = calls.get(mixer.name, 0) + 1
    for mixer in channels.mixers:
        closed[label[mixer.ids[variable[mixer.ids] == OPEN]]] = True
        if mixer.groups > 1 or calls[mixer.name] > 1:
            closed[label[mixer.inputs]] = True
            closed[label[mixer.ids]] = True
    closed[:2] = False
    return closed


def _module(net: nn.Module, name: str) -> nn.Module | None:
    try:
        return net.get_submodule(name)
    except AttributeError:
        return None


def _writer(net: Wrapped, layer: Layer, positions: Ids) -> Writer:
    conv = _module(net, layer.name)
    weight, bias = getattr(conv, "weight", None), getattr(conv, "bias", None)
    anchor = net.analysis.channels.anchors.get(layer.calls[0].node)
    norm = _module(net, str(anchor.target)) if anchor is not None and anchor.op == "call_module" else None
    return Writer(
        layer, torch.from_numpy(positions), weight if isinstance(weight, torch.Tensor) else torch.zeros(0),
        bias if isinstance(bias, nn.Parameter) else None, isinstance(conv, _ConvTransposeNd),
        norm if isinstance(norm, _BatchNorm) else None,
    )  # fmt: skip


def _is_plain(writer: Writer) -> bool:
    return isinstance(writer.weight, nn.Parameter) and not writer.transposed and writer.layer.grain == "channel"


def _readers(net: Wrapped, label: Ids, labels: Ids) -> tuple[Reader, ...] | None:
    found = []
    for mixer in net.analysis.channels.mixers:
        reader = _reader(net, mixer, label[mixer.inputs[0]], labels)
        if reader is None:
            return None
        found += reader
    return tuple(found)


def _reader(net: Wrapped, mixer: Mixer, read: Ids, labels: Ids) -> list[Reader] | None:
    """The layer as a reader of these labels, none if it reads no one of them; None if its weight is out of reach."""
    columns = np.flatnonzero(np.isin(read, labels))
    if not columns.size:
        return []
    conv = _module(net, mixer.name)
    weight = getattr(conv, "weight", None)
    per_position, rest = divmod(columns.size, labels.size)
    if not isinstance(weight, nn.Parameter) or rest:
        return None
    order = columns[np.argsort(np.searchsorted(labels, read[columns]), kind="stable")].reshape(labels.size, -1)
    if not (read[order] == labels[:, None]).all() or per_position != order.shape[1]:
        return None
    return [Reader(weight, 0 if isinstance(conv, _ConvTransposeNd) else 1, torch.from_numpy(order))]
