"""How the budget slides from the full cost (progress 0) to the target (progress 1)."""

from __future__ import annotations

import math
from collections.abc import Callable

HARDNESS = 10.0  # of the sigmoid: how much of the way falls into its middle


def sigmoid(progress: float, hardness: float = HARDNESS) -> float:
    """Slow at first, while nobody knows which filters matter, and slow at the end, where compromises hurt.

    >>> [round(sigmoid(t), 3) for t in (0, 0.25, 0.5, 0.75, 1)]
    [0.0, 0.07, 0.5, 0.93, 1.0]
    >>> [round(sigmoid(t, hardness=5.0), 3) for t in (0, 0.25, 0.5, 0.75, 1)]
    [0.0, 0.173, 0.5, 0.827, 1.0]
    """
    shift = 1 / (1 + math.exp(hardness / 2))
    return (1 / (1 + math.exp(-hardness * (progress - 0.5))) - shift) / (1 - 2 * shift)


def linear(progress: float, hardness: float = HARDNESS) -> float:
    """The same at every moment, however hard."""
    return progress


def exponential(progress: float, hardness: float = HARDNESS) -> float:
    """Fast at first.

    >>> [round(exponential(t), 3) for t in (0, 0.25, 0.5, 1)]
    [0.0, 0.718, 0.924, 1.0]
    """
    return (1 - math.exp(-hardness / 2 * progress)) / (1 - math.exp(-hardness / 2))


Schedule = Callable[[float, float], float]
SCHEDULES: dict[str, Schedule] = {"sigmoid": sigmoid, "linear": linear, "exponential": exponential}


def sliding(
    full: float, target: float, progress: float, schedule: str = "sigmoid", hardness: float = HARDNESS
) -> float:
    """The budget b at this moment.

    >>> sliding(100, 10, 0.5)
    55.0
    """
    done = SCHEDULES[schedule](min(max(progress, 0.0), 1.0), hardness)
    return (1 - done) * full + done * target
