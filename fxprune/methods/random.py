"""Random: who lives is drawn by lot. What every criterion should beat."""

from __future__ import annotations

import torch

from fxprune.methods.halving import Halving
from fxprune.methods.method import register
from fxprune.methods.tied import Stream
from fxprune.wrapped import Wrapped


@register("random")
class Random(Halving):
    """Lots from a generator of its own."""

    def __init__(self, net: Wrapped, seed: int | None = None) -> None:
        super().__init__(net)
        self.seed = int(torch.randint(2**31, ())) if seed is None else seed

    def values(self, stream: Stream, alive: torch.Tensor, count: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed + 1000 * stream.number + self.done)
        return torch.rand(len(stream), generator=generator)
