"""The paper's barrier: nothing to pay below a, more and more on the way to b.

There it is infinite, and beyond b undefined; here it stops at ``CEILING``, so that a network that starts at its budget,
or ends up over it, still gets a finite push in the right direction.
"""

from __future__ import annotations

CEILING = 50.0


def barrier(cost: float, a: float, b: float) -> float:
    """
    >>> [barrier(cost, 90, 110) for cost in (80, 90, 100, 110, 200)]
    [0.0, 0.0, 0.5, 50.0, 50.0]
    """
    if cost <= a:
        return 0.0
    if cost >= b:
        return CEILING
    return min((cost - a) ** 2 / ((b - cost) * (b - a)), CEILING)
