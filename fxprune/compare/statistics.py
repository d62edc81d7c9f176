"""Means over seeds, and differences of pairs that share their seed: the teacher's luck is taken out of these."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Two-sided 95 % quantiles of Student's t by degrees of freedom; in between, the next smaller is on the safe side.
_T = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201,
    12: 2.179, 13: 2.160, 14: 2.145, 15: 2.131, 16: 2.120, 17: 2.110, 18: 2.101, 19: 2.093, 20: 2.086, 25: 2.060,
    30: 2.042, 40: 2.021, 60: 2.000, 120: 1.980,
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences, and how far the 95 % interval reaches to both sides (None of a single pair)."""

    mean: float
    half: float | None
    pairs: int

    @property
    def verdict(self) -> str:
        """
        >>> Difference(2.0, 1.5, 3).verdict, Difference(-2.0, 1.5, 3).verdict, Difference(1.0, 1.5, 3).verdict
        ('ahead', 'behind', 'level')
        """
        if self.half is None:
            return "one seed"
        return "ahead" if self.mean > self.half else "behind" if self.mean < -self.half else "level"


def paired(ones: Sequence[float], others: Sequence[float]) -> Difference:
    """
    >>> made = paired([3.0, 5.0, 7.0], [1.0, 2.0, 3.0])  # 2, 3, 4: mean 3, deviation 1, t = 4.303
    >>> made.mean, round(made.half, 4), made.pairs
    (3.0, 2.4843, 3)
    """
    found = [one - other for one, other in zip(ones, others, strict=True)]
    many = len(found)
    if many < 2:
        return Difference(found[0], None, many)
    return Difference(statistics.fmean(found), quantile(many - 1) * statistics.stdev(found) / math.sqrt(many), many)


def quantile(freedom: int) -> float:
    """
    >>> quantile(2), quantile(27), quantile(10_000)
    (4.303, 2.06, 1.98)
    """
    return _T[max(known for known in _T if known <= freedom)]
