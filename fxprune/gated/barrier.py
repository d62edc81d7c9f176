"""How the budget slides from the full cost (progress 0) to the target (progress 1), and the paper's barrier before it:
nothing to pay below a, more and more on the way to b.

There it is infinite, and beyond b undefined; here it stops at a ceiling, so that a network that starts at its budget,
or ends up over it, still gets a finite push in the right direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from fxprune.cost.model import CostModel

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


CEILING = 50.0
SHARE = 1e-4  # of the full cost: how far below the target the paper's a is


def barrier(cost: float, a: float, b: float, ceiling: float = CEILING) -> float:
    """
    >>> [barrier(cost, 90, 110) for cost in (80, 90, 100, 110, 200)]
    [0.0, 0.0, 0.5, 50.0, 50.0]
    """
    if cost <= a:
        return 0.0
    if cost >= b:
        return ceiling
    return min((cost - a) ** 2 / ((b - cost) * (b - a)), ceiling)


def fixed_end(full: float, target: float, channel: float = 0.0) -> float:
    """The paper's a: just below the target, from the beginning on. Where one channel costs more than the paper's gap
    the barrier would be a step in the end, which no net can stand on; ``channel`` keeps the gap as wide as that.

    >>> fixed_end(1000, 125), fixed_end(1000, 125, channel=16)
    (124.9, 109)
    """
    return target - max(SHARE * full, channel)


def sizes(costs: CostModel, variables: int, metrics: Sequence[str]) -> list[torch.Tensor]:
    """Per metric, what each gate variable is worth where all others are open: for the volume the areas of its maps."""
    return costs.slopes(torch.ones(variables, dtype=torch.float64), metrics)


def smallest(size: torch.Tensor) -> float:
    """What the cheapest channel costs; one that costs nothing by itself is no step of the cost."""
    return float(size[size > 0].min()) if bool((size > 0).any()) else 0.0
