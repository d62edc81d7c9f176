"""WM, weight magnitude (Han et al.): the filters with the largest sums of absolute weights stay."""

from __future__ import annotations

import torch

from fxprune.methods.halving import Halving
from fxprune.methods.method import register
from fxprune.methods.streams import Stream, Writer


@register("wm")
class WeightMagnitude(Halving):
    """A position's value is the sum over its layers, each divided by the mean of that layer."""

    def values(self, stream: Stream, alive: torch.Tensor, count: int) -> torch.Tensor:
        return stream.sums(_relative)


def _relative(writer: Writer) -> torch.Tensor:
    sums = writer.filters.abs().sum(1)
    return sums / sums.mean().clamp(min=1e-12)
