"""Methods that scale all widths alike: cut the network in half, train, cut again, until it is on budget.

The cuts are spread evenly over the pruning phase, the first one at its very beginning.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch

from fxprune.methods.method import Method, check_progress
from fxprune.methods.streams import Stream, find_streams, scaled
from fxprune.wrapped import Wrapped


class Halving(Method):
    """Subclasses say how much each position of a stream is worth, and may change weights on the way."""

    def __init__(self, net: Wrapped) -> None:
        super().__init__(net)
        self.streams = find_streams(net)
        self.rounds = max(1, *(math.ceil(math.log2(1 / share) - 1e-9) for _, share in net.target.limits))
        self.done = 0

    @abstractmethod
    def values(self, stream: Stream, alive: torch.Tensor, count: int) -> torch.Tensor:
        """Per position of the stream, more for those that are to live: ``count`` of those that are ``alive`` now."""

    def advance(self, progress: float) -> None:
        while self.done < self.rounds and check_progress(progress) >= self.done / self.rounds:
            self.cut()

    def decide(self) -> None:
        while self.done < self.rounds:
            self.cut()

    @torch.no_grad()
    def cut(self) -> None:
        """To half of what is left; only those that live now can go on living."""
        self.done += 1
        before = self.net.bank.opened().clone()
        alive = [self._alive(stream) for stream in self.streams]
        self._harden([now.double() for now in alive])  # whoever it is: only to see how many fit
        counts = [int(self._alive(stream).sum()) for stream in self.streams]
        self.net.bank.harden(before)
        values = []
        for stream, now, count in zip(self.streams, alive, counts, strict=True):
            value = self.values(stream, now, count).double() if count else torch.zeros(len(stream)).double()
            first, last = value.min(), value.max()
            values.append((value - first) / (last - first).clamp(min=1e-300) + 2 * now.double())
        self._harden(values)

    def _harden(self, values: list[torch.Tensor]) -> None:
        self.net.harden(scaled(self.streams, values), fill=False, budget=self.shares())

    def _alive(self, stream: Stream) -> torch.Tensor:
        """Positions that every layer of theirs still writes; the budget may have left others half written."""
        gates = self.net.gates
        return stream.sums(lambda writer: (~gates[writer.layer.name].mask).cpu()) == 0

    def shares(self) -> dict[str, float]:
        return {name: max(share, 0.5**self.done) for name, share in self.net.target.limits}

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]
