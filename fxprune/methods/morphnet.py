"""MorphNet (Gordon et al.): shrink batch-norm scales, each weighted by what its filter costs; then scale the widths.

After shrinking, the filters left per stream are the shape of the network; a width multiplier brings it on budget. A
layer without a batch norm of its own is measured by its filters' absolute sums instead. A stream that several layers
write has a position for as long as one of them has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from fxprune.methods.method import Method, check_progress, positive, register
from fxprune.methods.streams import Stream, Writer, find_streams, scaled
from fxprune.wrapped import Wrapped

GONE = 0.1  # of the layer's mean at the beginning: a filter below that does not count
REFRESH = 0.05  # of progress, between two looks at what a filter costs


@register("morphnet")
class MorphNet(Method):
    """Adds strength x the mean of cost x scale."""

    def __init__(self, net: Wrapped, strength: float = 1.0) -> None:
        super().__init__(net)
        self.strength = positive("strength", strength)
        self.streams = find_streams(net)
        self.writers = [writer for stream in self.streams for writer in stream.writers]
        means = {writer.layer.name: float(_scales(writer).detach().mean()) for writer in self.writers}
        self.first = {name: mean if mean > 1e-6 else 1.0 for name, mean in means.items()}  # some start at zero
        self.looked = -1.0
        self.weights: dict[str, torch.Tensor] = {}

    def advance(self, progress: float) -> None:
        if check_progress(progress) - self.looked < REFRESH:
            return
        self.looked = progress
        self._weigh()

    def _weigh(self) -> None:
        """What a filter costs at this moment."""
        gates = torch.ones(self.net.analysis.variables, dtype=torch.float64)
        for writer in self.writers:
            layer = writer.layer
            alive = self._sizes(writer).detach() > GONE
            gates[layer.start : layer.start + layer.variables] = alive.double().cpu().clamp(min=1e-3)
        limits, full = self.net.target.limits, self.net.full_cost()
        found = self.net.analysis.costs.slopes(gates, [name for name, _ in limits])
        slopes = torch.stack([
            slope / (share * max(full[name], 1)) for (name, share), slope in zip(limits, found, strict=True)
        ]).sum(0)  # fmt: skip
        for writer in self.writers:
            layer = writer.layer
            own = slopes[layer.start : layer.start + layer.variables] / slopes.mean().clamp(min=1e-12)
            self.weights[layer.name] = own.to(_scales(writer).detach())

    def state_dict(self) -> dict[str, Any]:
        return {"looked": self.looked, "weights": self.weights, "first": self.first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.looked, self.first = state["looked"], state["first"]
        scales = {writer.layer.name: _scales(writer).detach() for writer in self.writers}
        self.weights = {name: weights.to(scales[name]) for name, weights in state["weights"].items()}

    def _sizes(self, writer: Writer) -> torch.Tensor:
        """Per gate variable, beside what was usual in its layer at the beginning."""
        return _scales(writer) / self.first[writer.layer.name]

    def penalty(self) -> torch.Tensor | None:
        if self.net.hardened:
            return None
        if not self.weights:
            self._weigh()
        parts = [(self.weights[writer.layer.name] * self._sizes(writer)).sum() for writer in self.writers]
        return self.strength * torch.stack(parts).sum() / self.net.analysis.variables

    @torch.no_grad()
    def decide(self) -> None:
        values = [self._values(stream) for stream in self.streams]
        widths = [float((value > GONE).sum()) for value in values]
        self.net.harden(scaled(self.streams, values, widths))

    def _values(self, stream: Stream) -> torch.Tensor:
        """Per position the largest of what its writers have."""
        value = np.zeros(len(stream))
        for writer in stream.writers:
            np.maximum.at(value, writer.positions.numpy(), self._sizes(writer).double().cpu().numpy())
        return torch.from_numpy(value)


def _scales(writer: Writer) -> torch.Tensor:
    """Per gate variable, differentiable."""
    norm = writer.norm
    if norm is not None and isinstance(norm.weight, nn.Parameter):
        return writer.per_variable(norm.weight.abs()).mean(1)
    if not isinstance(writer.weight, nn.Parameter):
        return torch.ones(writer.layer.variables, device=writer.weight.device)
    groups, axis = writer.layer.calls[0].groups, 1 if writer.transposed else 0
    weight = writer.weight.abs().reshape(groups, -1, *writer.weight.shape[1:]).transpose(1, 1 + axis)
    return writer.per_variable(weight.reshape(writer.layer.channels, -1).sum(1)).mean(1)
