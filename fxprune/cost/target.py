"""What the user asks for: fractions of the full cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np

from fxprune.cost.model import LATENCY, METRICS, Cost
from fxprune.errors import OptionError

Share = float | Fraction | str
DEFAULT = "volume"  # the metric that nobody asks for
_DIGITS = 400  # more than a float has


def as_share(value: Any) -> float:
    """A number, or one as text; ``ValueError`` if it is neither.

    >>> as_share("1/8"), as_share("0.125"), as_share("12.5%"), as_share(Fraction(1, 8))
    (0.125, 0.125, 0.125, 0.125)
    """
    try:
        if isinstance(value, str):
            text = value.removesuffix("%").strip()
            if "/" not in text and abs(Decimal(text).adjusted()) > _DIGITS:
                raise ValueError("it is out of range")  # a fraction would have all of these digits
            return float(Fraction(text) / (100 if value.endswith("%") else 1))
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
            raise ValueError(f"{value!r} is no number")
        return float(value)
    except ArithmeticError as error:  # too large, divided by zero, or no number at all
        raise ValueError(str(error)) from error


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
        if not isinstance(metric, str):
            raise OptionError(f"metric {metric!r} is unknown", fix='write metric="volume", or budget={"flops": 1/8}')
        asked = dict(budget) if isinstance(budget, Mapping) else {metric: budget}
        if metric not in asked and metric != DEFAULT:
            raise OptionError(f"budget={asked!r} says nothing of metric={metric!r}", fix="leave metric out")
        limits = []
        for name, fraction in asked.items():
            if name not in (*METRICS, LATENCY):
                raise OptionError(f"metric {name!r} is unknown", fix=f"use one of {', '.join((*METRICS, LATENCY))}")
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
