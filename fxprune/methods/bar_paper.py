"""BAR to the letter of the paper: gates are parameters of the user's optimizer, and lambda is a constant.

The loss is L_D + lambda f(V, a, b) L_S. V counts the open gates, each with the area of its maps; L_S is the same sum
over the chances of being open; a stays just below the target B while b slides down to it. ``bar`` has the same gates,
budget and barrier, but finds lambda while it trains, and moves the gates itself.
"""

from __future__ import annotations

from typing import Any

import torch

from fxprune.errors import check_choice, check_number, check_switch
from fxprune.gated.bank import CLOSED_AT, probability
from fxprune.gated.barrier import HARDNESS, barrier, fixed_end, sizes, sliding, smallest
from fxprune.gated.pressure import STARTS, UNIFORM, gate_rate
from fxprune.gated.wrapped import Wrapped
from fxprune.methods.method import Method, check_progress, positive, register

VOLUME = "volume"


@register("bar-paper")
class BarPaper(Method):
    """The penalty has a gradient for gates only; f is limited by ``ceiling``."""

    def __init__(
        self, net: Wrapped, strength: float = 1e-5, rate: float | None = None, start: str = "random",
        tolerance: float = 0.01, ceiling: float = 1e10, hardness: float = HARDNESS, fill: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(net)
        self.strength, self.ceiling = positive("strength", strength), positive("ceiling", ceiling)
        self.rate = None if rate is None else positive("rate", rate)
        self.tolerance = check_number("tolerance", tolerance, 0, 1)
        self.hardness = check_number("hardness", hardness, 0.1, 100)
        check_choice("start", start, STARTS)
        check_switch("fill", fill)
        self.fill, self.progress = fill, 0.0
        gates = net.bank.log_alpha
        if start == "random":
            with torch.no_grad():
                gates.uniform_(0, UNIFORM)
        names = [name for name, _ in net.target.limits]
        areas, *others = sizes(net.analysis.costs, net.analysis.variables, [VOLUME, *names])
        self.areas = areas.to(gates)
        self.channel = {name: smallest(size) for name, size in zip(names, others, strict=True)}

    def parameter_groups(self, steps: int) -> list[dict[str, Any]]:
        """The weights; and the gates, at a rate of their own and without weight decay."""
        weights, gates = self.net.parameter_groups()
        return [weights, {**gates, "lr": gate_rate(steps) if self.rate is None else self.rate}]

    def advance(self, progress: float) -> None:
        self.progress = check_progress(progress)

    def penalty(self) -> torch.Tensor | None:
        if self.net.hardened:
            return None
        chances, full = probability(self.net.bank.log_alpha), self.net.full_cost()
        total = chances.new_zeros(())
        for name, b in self._budgets().items():
            target, channel = dict(self.net.target.limits)[name] * full[name], self.channel[name]
            a = fixed_end(full[name], target, channel if self.tolerance else 0.0)
            f = barrier(self._cost(name), a, b, self.ceiling)
            if f > 0:  # in units of volume for every metric, so that lambda means the same
                total = total + f * self._expected(chances, name) * (full.volume / full[name])
        return self.strength * total

    def _budgets(self) -> dict[str, float]:
        """The sliding b of each limit. It starts a little above the full cost, where f would be at its ceiling."""
        full, schedule = self.net.full_cost(), self.net.pressure.schedule
        return {
            name: sliding((1 + self.tolerance) * full[name], share * full[name], self.progress, schedule, self.hardness)
            for name, share in self.net.target.limits
        }

    def _cost(self, name: str) -> float:
        """V. Every open gate counts, also where no layer reads its channel."""
        if name != VOLUME:
            return float(self.net.cost()[name])
        closed = self.net.bank.log_alpha.detach() <= CLOSED_AT
        return float(self.net.full_cost().volume - self.areas[closed].double().sum())

    def _expected(self, chances: torch.Tensor, name: str) -> torch.Tensor:
        """L_S, in units of the metric."""
        if name == VOLUME:
            return (chances * self.areas).sum()
        costs = self.net.analysis.costs
        return costs.pressing(costs.physical(chances))(name).to(chances)

    def decide(self) -> None:
        """Gates with values above 0 stay open; a net that is over its budget is cut further."""
        self.net.harden(fill=self.fill)

    def allowed(self) -> dict[str, float]:
        return self._budgets()
