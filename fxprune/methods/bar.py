"""BAR, budget-aware regularization: gates learn under a budget that slides to its target.

With ``metric="volume"`` it is the paper's V-trained, with ``metric="flops"`` its F-trained one; what is done in another
way than in the paper is in docs/explanation/paper.md, and ``bar-paper`` is the paper's own algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fxprune.errors import OptionError
from fxprune.gated.pressure import Steering, gate_rate
from fxprune.gated.wrapped import Wrapped
from fxprune.methods.method import Method, register

REMOVED = ("closes", "slack", "most", "opens", "least")  # of gates that were closed and opened at once


@register("bar")
class Bar(Method):
    """The budget's side is ``Wrapped.progress`` and ``Wrapped.budget_loss``: see gated/pressure.py. Options are those
    of ``Steering``."""

    def __init__(self, net: Wrapped, **options: Any) -> None:
        super().__init__(net)
        self.steering = Steering(**options)
        net.pressure.steer(self.steering)

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        removed = [name for name in REMOVED if name in options]
        if removed:
            raise OptionError(
                f"method 'bar' has no {', '.join(removed)} any more: only the loss closes and opens gates",
                fix="leave it out of method_options; what was begun with it is begun anew, in another folder",
            )
        Steering(**options)

    def parameter_groups(self, steps: int) -> list[dict[str, Any]]:
        if self.steering.own_steps:
            return super().parameter_groups(steps)
        weights, gates = self.net.parameter_groups()
        return [weights, {**gates, "lr": self.steering.rate or gate_rate(steps)}]

    def advance(self, progress: float) -> None:
        self.net.progress = progress

    def penalty(self) -> torch.Tensor:
        return self.net.budget_loss()

    def allowed(self) -> dict[str, float]:
        return self.net.sliding_budget()
