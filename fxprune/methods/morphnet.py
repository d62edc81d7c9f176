"""MorphNet (Gordon et al.): shrink batch-norm scales, each weighted by what its filter costs; then scale the widths.

After shrinking, the filters left per stream are the shape of the network; a width multiplier brings it on budget. A
layer without a batch norm of its own is measured by its filters' absolute sums instead. A stream that several layers
write has a position for as long as one of them has.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fxprune.gated.wrapped import Wrapped
from fxprune.methods.method import Method, check_progress, positive, register
from fxprune.methods.streams import Stream, Writer, find_streams, scaled

GONE = 0.1  # of the mean of its layer at the beginning: a smaller filter does not count
REFRESH = 0.05  # of progress, after which the costs of filters are computed again


@register("morphnet")
class MorphNet(Method):
    """The penalty is strength x the mean over filters of cost x scale."""

    in_checkpoint = ("looked", "weights", "first")

    def __init__(self, net: Wrapped, strength: float = 1.0) -> None:
        super().__init__(net)
        self.strength = positive("strength", strength)
        self.streams = find_streams(net)
        self.writers = [writer for stream in self.streams for writer in stream.writers]
        means = {writer.unit.name: float(_scales(writer).detach().mean()) for writer in self.writers}
        self.first = {name: mean if mean > 1e-6 else 1.0 for name, mean in means.items()}  # scales may start at zero
        self.looked = -1.0
        self.weights: dict[str, torch.Tensor] = {}

    def advance(self, progress: float) -> None:
        if check_progress(progress) - self.looked < REFRESH:
            return
        self.looked = progress
        self._weigh()

    def _weigh(self) -> None:
        """Compute what each filter costs at this moment."""
        gates = torch.ones(self.net.analysis.variables, dtype=torch.float64)
        for writer in self.writers:
            alive = self._sizes(writer).detach() > GONE
            gates[writer.unit.part] = alive.double().cpu().clamp(min=1e-3)
        limits, full = self.net.target.limits, self.net.full_cost()
        per_limit = self.net.analysis.costs.slopes(gates, [name for name, _ in limits])
        slopes = torch.stack([
            slope / (share * max(full[name], 1)) for (name, share), slope in zip(limits, per_limit, strict=True)
        ]).sum(0)  # fmt: skip
        for writer in self.writers:
            weights = slopes[writer.unit.part] / slopes.mean().clamp(min=1e-12)
            self.weights[writer.unit.name] = weights.to(_scales(writer).detach())

    def _sizes(self, writer: Writer) -> torch.Tensor:
        """Per gate variable, the scale relative to the mean of its layer at the beginning."""
        return _scales(writer) / self.first[writer.unit.name]

    def penalty(self) -> torch.Tensor | None:
        if self.net.hardened:
            return None
        if not self.weights:
            self._weigh()
        sizes = {writer.unit.name: self._sizes(writer) for writer in self.writers}
        parts = [(self.weights[name].to(size) * size).sum() for name, size in sizes.items()]
        return self.strength * torch.stack(parts).sum() / self.net.analysis.variables

    @torch.no_grad()
    def decide(self) -> None:
        values = [self._values(stream) for stream in self.streams]
        widths = [float((value > GONE).sum()) for value in values]
        self.net.harden(scaled(self.streams, values, widths))

    def _values(self, stream: Stream) -> torch.Tensor:
        """Per position, the largest size of its writers."""
        value = np.zeros(len(stream))
        for writer in stream.writers:
            np.maximum.at(value, writer.positions.numpy(), self._sizes(writer).double().cpu().numpy())
        return torch.from_numpy(value)


def _scales(writer: Writer) -> torch.Tensor:
    """Per gate variable the scale, differentiable."""
    norm = writer.norm
    if norm is not None and isinstance(norm.weight, nn.Parameter):
        return writer.per_variable(norm.weight.abs()).mean(1)
    if not isinstance(writer.weight, nn.Parameter):
        return torch.ones(writer.unit.variables, device=writer.weight.device)
    return writer.per_variable(writer.rows(writer.weight.abs()).sum(1)).mean(1)
