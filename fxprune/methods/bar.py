"""BAR, budget-aware regularization: gates learn under a budget that slides to its target (the paper's method).

With ``metric="volume"`` it is the paper's V-trained, with ``metric="flops"`` its F-trained one.
"""

from __future__ import annotations

import torch

from fxprune.methods.method import Method, register


@register("bar")
class Bar(Method):
    """The budget's side is ``Wrapped.progress`` and ``Wrapped.budget_loss``: see budget/pressure.py."""

    def advance(self, progress: float) -> None:
        self.net.progress = progress

    def penalty(self) -> torch.Tensor:
        return self.net.budget_loss()

    def allowed(self) -> dict[str, float]:
        return self.net.sliding_budget()
