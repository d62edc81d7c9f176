"""Methods that scale all widths alike: cut the network in half, train, cut again, until it is on budget.

The cuts are spread evenly over the pruning phase, the first one at its very beginning.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch

from fxprune.gated.wrapped import Wrapped
from fxprune.methods.method import Method, check_progress
from fxprune.methods.streams import Stream, find_streams, scaled


class Halving(Method):
    """Subclasses say how much each position of a stream is worth, and may change weights on the way."""

    in_checkpoint: tuple[str, ...] = ("done",)

    def __init__(self, net: Wrapped) -> None:
        super().__init__(net)
        self.streams = find_streams(net)
        self.rounds = max(1, *(math.ceil(math.log2(1 / share) - 1e-9) for _, share in net.target.limits))
        self.done = 0

    @abstractmethod
    def values(self, stream: Stream, alive: torch.Tensor, count: int) -> torch.Tensor:
        """Per position of the stream a value, larger for the ``count`` of those ``alive`` now that are to live on."""

    def advance(self, progress: float) -> None:
        while self.done < self.rounds and check_progress(progress) >= self.done / self.rounds:
            self.cut()

    def decide(self) -> None:
        while self.done < self.rounds:
            self.cut()

    @torch.no_grad()
    def cut(self) -> None:
        """Cut to half of what is left. Positions that are gone do not come back."""
        self.done += 1
        before = self.net.bank.opened().clone()
        alive = [self._alive(stream) for stream in self.streams]
        self._harden([now.double() for now in alive])  # only to see how many fit, not which
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
        """Positions that all their layers still write. A cut to the budget may leave only some of the layers."""
        gates = self.net.gates
        return stream.sums(lambda writer: (~gates[writer.unit.name].mask).cpu()) == 0

    def shares(self) -> dict[str, float]:
        return {name: max(share, 0.5**self.done) for name, share in self.net.target.limits}
