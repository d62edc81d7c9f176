"""IB: the information bottleneck (Dai et al.): every channel is multiplied by a Gaussian, mu + sigma x noise.

The KL divergence to the prior is log(1 + mu^2 / sigma^2), up to a constant: it pulls channels towards noise, and those
whose signal drowns in it go. (The paper's text has a minus sign there, with which nothing would ever be pruned.)
"""

from __future__ import annotations

import torch
from torch import nn

from fxprune.gated.bank import Gaussian
from fxprune.gated.wrapped import Wrapped
from fxprune.methods.method import register
from fxprune.methods.penalty import Penalty

SPEEDS = (5.0, 50.0)  # of mu and of log sigma, which starts at -9 and has to go farther
NOISIEST = 1.0  # of log sigma: more noise makes no difference to the choice, and breaks the network


@register("ib")
class Ib(Penalty):
    """The penalty is on the mean of the KL terms."""

    law = "gaussian"

    def __init__(self, net: Wrapped, strength: float = 1.0) -> None:
        super().__init__(net, strength)

    @property
    def gaussian(self) -> Gaussian:
        law = self.net.bank.law
        assert isinstance(law, Gaussian)
        return law

    def speeds(self) -> dict[nn.Parameter, float]:
        return {self.gaussian.mu: SPEEDS[0], self.gaussian.log_sigma: SPEEDS[1]}

    def amount(self) -> torch.Tensor:
        return nn.functional.softplus(self.gaussian.scores()).mean()

    def bound(self) -> None:
        self.gaussian.log_sigma.clamp_(max=NOISIEST)
