"""LZR: L0 regularization with hard-concrete gates (Louizos et al.): every open gate costs the same, no budget.

How many stay open depends on the strength: ``strength="search"`` looks for the one that ends at the budget.
"""

from __future__ import annotations

import torch
from torch import nn

from fxprune.gated.bank import HIGHEST, LOWEST, probability
from fxprune.gated.wrapped import Wrapped
from fxprune.methods.method import register
from fxprune.methods.penalty import Penalty

SPEED = 25.0


@register("lzr")
class Lzr(Penalty):
    """The penalty is on the expected share of open gates."""

    def __init__(self, net: Wrapped, strength: float = 10.0) -> None:
        super().__init__(net, strength)

    def speeds(self) -> dict[nn.Parameter, float]:
        return {self.net.bank.log_alpha: SPEED}

    def amount(self) -> torch.Tensor:
        return probability(self.net.bank.log_alpha).mean()

    def bound(self) -> None:
        self.net.bank.log_alpha.clamp_(LOWEST, HIGHEST)
