"""IB: the information bottleneck (Dai et al.): every channel is multiplied by a Gaussian, mu + sigma x noise.

The KL divergence to the prior is log(1 + mu^2 / sigma^2), up to a constant: it pulls channels towards noise, and those
whose signal drowns in it go. (The paper's text has a minus sign there, with which nothing would ever be pruned.)
"""

from __future__ import annotations

from typing import Any

import torch

from fxprune.layers import Gaussian
from fxprune.methods.method import Method, positive, register
from fxprune.methods.own_steps import OwnSteps
from fxprune.wrapped import Wrapped

SPEEDS = (5.0, 50.0)  # of mu, and of log sigma, which has farther to go: it starts at -9

NOISIEST = 1.0  # of log sigma: more noise says nothing more, and breaks the network


@register("ib")
class Ib(Method):
    """Adds strength x the mean of the KL terms."""

    def __init__(self, net: Wrapped, strength: float = 1.0) -> None:
        super().__init__(net)
        self.strength = positive("strength", strength)
        net.set_law("gaussian")
        law = net.bank.law
        assert isinstance(law, Gaussian)
        self.law = law
        self.steps = OwnSteps({law.mu: SPEEDS[0], law.log_sigma: SPEEDS[1]})

    def advance(self, progress: float) -> None:
        self.steps.advance(progress)
        with torch.no_grad():
            self.law.log_sigma.clamp_(max=NOISIEST)

    def penalty(self) -> torch.Tensor:
        return self.strength * torch.nn.functional.softplus(self.law.scores()).mean()

    def state_dict(self) -> dict[str, Any]:
        return self.steps.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps.load_state_dict(state)
