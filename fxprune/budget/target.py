"""What the user asks for: fractions of the full cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np

from fxprune.budget.cost import METRICS, Cost
from fxprune.errors import OptionError

Share = float | Fraction | str


def as_share(value: Any) -> float:
    """A number, or one as text; ``ValueError`` if it is neither.

    >>> as_share("1/8"), as_share("0.125"), as_share("12.5%"), as_share(Fraction(1, 8))
    (0.125, 0.125, 0.125, 0.125)
    """
    if isinstance(value, str):
        try:
            return float(Fraction(value.removesuffix("%").strip()) / (100 if value.endswith("%") else 1))
        except (ZeroDivisionError, OverflowError) as error:
            raise ValueError(str(error)) from error
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise ValueError(f"{value!r} is no number")
    return float(value)


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
    def of(cls, budget: Share | Mapping[str, Share], metric: str) -> Target:
        asked = dict(budget) if isinstance(budget, Mapping) else {metric: budget}
        limits = []
        for name, fraction in asked.items():
            if name not in METRICS:
                raise OptionError(f"metric {name!r} is unknown", fix=f"use one of {', '.join(METRICS)}")
            try:
                limits.append((name, as_share(fraction)))
                if not 0 < limits[-1][1] <= 1:
                    raise ValueError("it is outside (0, 1]")
            except ValueError as error:
                raise OptionError(
                    f"budget {fraction!r} is not a fraction of the full cost",
                    fix="write a number in (0, 1], for example budget=1/8",
                ) from error
        if not limits:
            raise OptionError("the budget is empty", fix="write budget=1/8 or budget={'volume': 1/8}")
        return cls(tuple(limits))

    def used(self, cost: Cost, full: Cost) -> Any:
        """The share of the budget that is used, for one cost or an array of them: the largest over all limits.

        At most 1 means on budget.
        """
        shares = [cost[name] / (fraction * full[name]) for name, fraction in self.limits if full[name]]
        return np.maximum.reduce(shares) if shares else 0.0
