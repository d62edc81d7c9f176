"""LZR: L0 regularization with hard-concrete gates (Louizos et al.): every open gate costs the same, no budget.

How many stay open hangs on the strength: ``strength="search"`` looks for the one that ends at the budget.
"""

from __future__ import annotations

from typing import Any

import torch

from fxprune.layers import HIGHEST, LOWEST, probability
from fxprune.methods.method import Method, positive, register
from fxprune.methods.own_steps import OwnSteps
from fxprune.wrapped import Wrapped

SPEED = 25.0


@register("lzr")
class Lzr(Method):
    """Adds strength x the expected share of open gates."""

    def __init__(self, net: Wrapped, strength: float = 10.0) -> None:
        super().__init__(net)
        self.strength = positive("strength", strength)
        self.gates = net.bank.log_alpha
        self.steps = OwnSteps({self.gates: SPEED})

    def advance(self, progress: float) -> None:
        self.steps.advance(progress)
        with torch.no_grad():
            self.gates.clamp_(LOWEST, HIGHEST)

    def penalty(self) -> torch.Tensor:
        return self.strength * probability(self.gates).mean()

    def state_dict(self) -> dict[str, Any]:
        return self.steps.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps.load_state_dict(state)
