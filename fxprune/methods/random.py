"""Random: the channels that stay are drawn at random. Every criterion should be better."""

from __future__ import annotations

import random

import torch

from fxprune.errors import OptionError
from fxprune.gated.wrapped import Wrapped
from fxprune.methods.halving import Halving
from fxprune.methods.method import register
from fxprune.methods.streams import Stream


@register("random")
class Random(Halving):
    """Every stream and round has random numbers of its own. Without a ``seed`` one is drawn."""

    in_checkpoint = ("done", "seed")

    def __init__(self, net: Wrapped, seed: int | None = None) -> None:
        super().__init__(net)
        if isinstance(seed, bool) or not isinstance(seed, (int, type(None))):
            raise OptionError(f"seed={seed!r} is not a whole number", fix="write seed=0, or leave it out")
        self.seed = int(torch.randint(2**31, ())) if seed is None else seed

    def values(self, stream: Stream, alive: torch.Tensor, count: int) -> torch.Tensor:
        lots = random.Random(f"{self.seed} {stream.number} {self.done}")
        return torch.tensor([lots.random() for _ in range(len(stream))])
