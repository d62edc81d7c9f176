"""Methods with a penalty on variables that they move themselves, beside the optimizer of the weights."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import nn

from fxprune.gated.wrapped import Wrapped
from fxprune.methods.method import Method, check_progress, positive

LARGEST = 1.0  # the largest step, also in a short training


class Penalty(Method):
    """Adds strength x ``amount()`` to the loss, and moves its variables by Adam.

    Steps are measured in progress and not in a learning rate of weights: a variable's speed is how far it can travel
    from progress 0 to 1.
    """

    searchable = True

    def __init__(self, net: Wrapped, strength: float) -> None:
        super().__init__(net)
        self.strength = positive("strength", strength)
        speeds = self.speeds()
        self.optimizer = torch.optim.Adam([{"params": [variable], "speed": speeds[variable]} for variable in speeds])
        self.last = 0.0

    @abstractmethod
    def speeds(self) -> dict[nn.Parameter, float]:
        """The variables, and how far each can travel."""

    @abstractmethod
    def amount(self) -> torch.Tensor:
        """What the penalty makes small."""

    def bound(self) -> None:
        """Keep the variables in the range where they have a gradient."""

    def penalty(self) -> torch.Tensor | None:
        return None if self.net.hardened else self.strength * self.amount()

    def advance(self, progress: float) -> None:
        passed, self.last = check_progress(progress) - self.last, progress
        if passed <= 0 or self.net.hardened:
            return
        for group in self.optimizer.param_groups:
            group["lr"] = min(group["speed"] * passed, LARGEST)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            self.bound()

    def state_dict(self) -> dict[str, Any]:
        return {"last": self.last, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.last = state["last"]
        self.optimizer.load_state_dict(state["optimizer"])
