"""Variables of a method's own, moved in steps that are measured in progress and not in a learning rate of weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

LARGEST = 1.0  # step, however short training is


class OwnSteps:
    """Adam, where ``speed`` is how far a variable can travel from progress 0 to 1."""

    def __init__(self, speeds: dict[nn.Parameter, float]) -> None:
        self.speeds, self.last = list(speeds.values()), 0.0
        self.optimizer = torch.optim.Adam([{"params": [variable]} for variable in speeds], lr=0.0)

    def advance(self, progress: float) -> None:
        passed, self.last = progress - self.last, progress
        if passed <= 0:
            return
        for group, speed in zip(self.optimizer.param_groups, self.speeds, strict=True):
            group["lr"] = min(speed * passed, LARGEST)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return {"last": self.last, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.last = state["last"]
        self.optimizer.load_state_dict(state["optimizer"])
