"""WM, weight magnitude (Han et al.): the filters with the largest absolute sums of weights live."""

from __future__ import annotations

import torch

from fxprune.methods.halving import Halving
from fxprune.methods.method import register
from fxprune.methods.streams import Stream, Writer


@register("wm")
class WeightMagnitude(Halving):
    """Layers that write the same stream are added up, each measured by its own mean."""

    def values(self, stream: Stream, alive: torch.Tensor, count: int) -> torch.Tensor:
        return stream.sums(_relative)


def _relative(writer: Writer) -> torch.Tensor:
    sums = writer.filters.abs().sum(1)
    return sums / sums.mean().clamp(min=1e-12)
