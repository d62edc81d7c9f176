"""Channels that are scaled together: all layers that write the same residual stream keep the same channels of it.

A *stream* is the channels of one layer, or of all layers that adds and multiplies join. Each *position* of it is
written by one gate variable of every such layer, and read by columns of the layers behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvTransposeNd

from fxprune.ids import OPEN, Ids
from fxprune.methods.readers import Reader, module_at, readers_of
from fxprune.passes.gates import Layer
from fxprune.passes.labels import connected, labels_of, of_variables
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
        bias if isinstance(bias, nn.Parameter) else None, isinstance(conv, _ConvTransposeNd),
        norm if isinstance(norm, _BatchNorm) else None,
    )  # fmt: skip
