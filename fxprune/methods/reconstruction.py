"""Reconstruction: channels go whose loss the others can make up for, and least squares fit what is left, at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fxprune.cutting.refit import refit_layers
from fxprune.cutting.samples import Samples, read_samples
from fxprune.cutting.score import reconstruction
from fxprune.errors import OptionError
from fxprune.gated.wrapped import Wrapped
from fxprune.methods.method import Method, check_progress, register
from fxprune.modules import evaluating


@register("reconstruction")
class Reconstruction(Method):
    """As ``fxprune.cut``, before the first step; all of the training is that of the net that is left."""

    in_checkpoint = ("done",)

    def __init__(self, net: Wrapped, samples: int = 512) -> None:
        super().__init__(net)
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 2:
            raise OptionError(f"samples={samples!r} is no number of samples", fix="write samples=512, or leave it out")
        self.looks_at, self.done = samples, False
        self.seen: Samples | None = None

    def look(self, batches: Sequence[Any]) -> None:
        self.seen = read_samples(batches, self.net.unwrap())

    def advance(self, progress: float) -> None:
        check_progress(progress)
        if self.done:
            return
        if self.seen is None:
            raise OptionError(
                "the method 'reconstruction' has seen no samples",
                fix="call method.look(batches of inputs) before the first step",
            )
        with evaluating(self.net):
            self.net.harden(reconstruction(self.net, self.seen, 0, lambda name: None))
            refit_layers(self.net, self.seen, 0)
        self.done, self.seen = True, None

    def decide(self) -> None:
        self.advance(1.0)
