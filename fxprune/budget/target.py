"""What the user asks for: fractions of the full cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fxprune.budget.cost import METRICS, Cost
from fxprune.errors import OptionError


@dataclass(frozen=True)
class Target:
    """Upper bounds, as fractions of the full cost.

    >>> Target.of(1/8, "volume").limits
    (('volume', 0.125),)
    >>> Target.of({"volume": 1/8, "flops": 1/20}, "volume").limits
    (('volume', 0.125), ('flops', 0.05))
    """

    limits: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, budget: float | Mapping[str, float], metric: str) -> Target:
        limits = dict(budget) if isinstance(budget, Mapping) else {metric: budget}
        for name, fraction in limits.items():
            if name not in METRICS:
                raise OptionError(f"metric {name!r} is unknown", fix=f"use one of {', '.join(METRICS)}")
            if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 < fraction <= 1:
                raise OptionError(
                    f"budget {fraction!r} is not a fraction of the full cost",
                    fix="write a number in (0, 1], for example budget=1/8",
                )
        if not limits:
            raise OptionError("the budget is empty", fix="write budget=1/8 or budget={'volume': 1/8}")
        return cls(tuple((name, float(fraction)) for name, fraction in limits.items()))

    def used(self, cost: Cost, full: Cost) -> float:
        """The share of the budget that is used: the largest over all limits; at most 1 means on budget."""
        return float(max(cost[name] / (fraction * full[name]) for name, fraction in self.limits if full[name]))
