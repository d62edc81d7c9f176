"""Random: who lives is drawn by lot. What every criterion should beat."""

from __future__ import annotations

import random
from typing import Any

import torch

from fxprune.errors import OptionError
from fxprune.methods.halving import Halving
from fxprune.methods.method import register
from fxprune.methods.streams import Stream
from fxprune.wrapped import Wrapped


@register("random")
class Random(Halving):
    """Lots of its own for every stream and round, from a seed that is drawn if none is given."""

    def __init__(self, net: Wrapped, seed: int | None = None) -> None:
        super().__init__(net)
        if isinstance(seed, bool) or not isinstance(seed, (int, type(None))):
            raise OptionError(f"seed={seed!r} is not a whole number", fix="write seed=0, or leave it out")
        self.seed = int(torch.randint(2**31, ())) if seed is None else seed

    def values(self, stream: Stream, alive: torch.Tensor, count: int) -> torch.Tensor:
        lots = random.Random(f"{self.seed} {stream.number} {self.done}")
        return torch.tensor([lots.random() for _ in range(len(stream))])

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.seed = state["seed"]
