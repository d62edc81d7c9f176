"""How ``bar`` moves gates: every piece of it as an option, to be turned or taken out."""

from __future__ import annotations

from dataclasses import dataclass

from fxprune.budget.barrier import CEILING
from fxprune.budget.schedule import HARDNESS
from fxprune.errors import check_choice, check_number, check_switch

STARTS = ("open", "random")
INTERVALS = ("sliding", "fixed")
UNIFORM = 0.01  # the paper's start: log_alpha is drawn between 0 and this
FASTEST, TRAVEL = 0.01, 25.0  # rate of gates that an optimizer moves, at most; and times steps: their range is 7 wide


@dataclass(frozen=True)
class Steering:
    """With the defaults, ``bar`` as it is. ``gain=0`` leaves the price where it starts; ``scaled=False`` measures it
    against the loss as it is (the paper's lambda is half of price x lambda / the full cost); ``own_steps=False`` leaves
    the gates to the optimizer of the weights.
    """

    scaled: bool = True  # the budget's gradient is measured by the data loss's own
    price: float = 0.3  # of the budget, at the beginning
    gain: float = 125.0  # how fast the price rises, per progress, where the cost is over the budget
    ahead: float = 0.04  # of progress: where the network is heading, which is compared with the budget of that moment
    interval: str = "sliding"  # of the barrier: around b; or "fixed": from just below the target, as in the paper, to b
    margin: float = 0.1  # of b: half the width of the sliding interval
    ceiling: float = CEILING  # of the barrier, and of price x barrier
    own_steps: bool = True  # gates take steps that are measured in progress, not in learning rates
    speed: float = 50.0  # how far a gate can travel by them from progress 0 to 1
    rate: float | None = None  # of gates that the optimizer moves; by default what suits Adam (gate_rate)
    closes: bool = True  # gates at once, where the cost is over the budget
    slack: float = 1.01  # times the budget: above it those go that are about to close anyway
    most: float = 1.03  # times the budget: above it the lowest go
    opens: bool = True  # gates again, the highest first, where the cost is far under the budget
    least: float = 0.8  # times the budget: that is far
    start: str = "open"  # of the gates; or "random": near 0, as in the paper, where they let half through
    hardness: float = HARDNESS  # of the sigmoid along which the budget slides

    def __post_init__(self) -> None:
        for name in ("scaled", "own_steps", "closes", "opens"):
            check_switch(name, getattr(self, name))
        check_choice("interval", self.interval, INTERVALS)
        check_choice("start", self.start, STARTS)
        for name, (least, most) in RANGES.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_number(name, getattr(self, name), least, most))


def gate_rate(steps: int) -> float:
    """For gates that Adam moves, by about as much in every step.

    In a long run a gate can cross its range several times. In a short one there is no time for that: steps must stay
    small beside the distance to the threshold (1.6), since all gates that the budget presses on arrive together if
    the data has had no time to part them, and Adam needs ten steps to stop.

    >>> gate_rate(60_000) * 60_000, gate_rate(100)
    (25.0, 0.01)
    """
    return min(FASTEST, TRAVEL / max(steps, 1))


RANGES = {
    "price": (1e-4, 1e3), "gain": (0, 1e6), "ahead": (0, 0.5), "margin": (1e-3, 0.5), "ceiling": (1e-3, 1e30),
    "speed": (1e-3, 1e6), "rate": (1e-12, 1e3), "slack": (1, 10), "most": (1, 10), "least": (0, 1),
    "hardness": (0.1, 100),
}  # fmt: skip
