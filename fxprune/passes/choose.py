"""Who lives, on budget: a search over the gates' scores with the exact cost of the whole network."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt

from fxprune.budget.target import Target
from fxprune.errors import OptionError
from fxprune.passes.analysis import Analysis
from fxprune.passes.gates import Layer

ENOUGH = 0.999  # of the budget

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


def choose(
    analysis: Analysis,
    target: Target,
    scores: Floats,
    opened: Bools | None,
    *,
    fill: bool,
    multiple_of: int,
    minimum: dict[str, int],
) -> Bools:
    """The gates to keep open: as many of the best scores as the budget allows.

    ``opened`` is the network as it stands; without ``fill`` nothing beyond it is opened.
    """
    search = _Search(analysis, target, scores, multiple_of, _minima(analysis, minimum))
    least = search.finish(np.zeros(scores.size, dtype=bool))
    if search.used(least) > 1:
        raise OptionError(
            _unreachable(analysis, target, least), fix="ask for a larger budget, or free what inspect lists as frozen"
        )
    order = np.argsort(-scores, kind="stable")
    if opened is not None and not fill:
        order = order[opened[order]]
    return search.fill(search.best_prefix(order), order)


class _Search:
    def __init__(
        self, analysis: Analysis, target: Target, scores: Floats, multiple_of: int, minima: dict[str, int]
    ) -> None:
        self.analysis, self.target, self.scores = analysis, target, scores
        self.multiple_of, self.minima = multiple_of, minima

    def used(self, opened: Bools) -> float:
        return self.target.used(self.analysis.costs.exact(opened), self.analysis.full_cost)

    def finish(self, opened: Bools) -> Bools:
        """Round widths, keep minimum widths, keep the network alive."""
        opened = opened.copy()
        for layer in self.analysis.layers:
            if not layer.gated:
                continue
            part = slice(layer.start, layer.start + layer.variables)
            count = int(opened[part].sum())
            if self.multiple_of > 1 and count < layer.variables:
                count -= count % self.multiple_of
            count = max(count, self.minima.get(layer.name, 0))
            best = _best_first(self.scores[part], opened[part])
            opened[part] = False
            opened[layer.start + best[:count]] = True
        alive = self.analysis.keep_alive(opened, self.scores)
        return self._round_up(alive) if self.multiple_of > 1 else alive

    def _round_up(self, opened: Bools) -> Bools:
        """Layers that guards opened again get a whole multiple too."""
        for layer in self.analysis.layers:
            part = slice(layer.start, layer.start + layer.variables)
            count = int(opened[part].sum())
            short = -count % self.multiple_of
            if layer.gated and short and count < layer.variables:
                best = _best_first(self.scores[part], opened[part])
                opened[layer.start + best[: min(count + short, layer.variables)]] = True
        return opened

    def best_prefix(self, order: npt.NDArray[np.int64]) -> Bools:
        low, high = 0, order.size  # the network of the `low` best fits
        best = self.finish(np.zeros(self.scores.size, dtype=bool))
        while low < high:
            middle = (low + high + 1) // 2
            trial = np.zeros(self.scores.size, dtype=bool)
            trial[order[:middle]] = True
            trial = self.finish(trial)
            if self.used(trial) <= 1:
                low, best = middle, trial
            else:
                high = middle - 1
        return best

    def fill(self, opened: Bools, order: npt.NDArray[np.int64]) -> Bools:
        """Spend what is left: the best closed gate of any layer, as long as one fits."""
        allowed = np.zeros(self.scores.size, dtype=bool)
        allowed[order] = True
        blocked: set[str] = set()
        while self.used(opened) < ENOUGH:
            candidates = self._candidates(opened, allowed, blocked)
            if not candidates:
                return opened
            name, variables = candidates[0]
            trial = opened.copy()
            trial[variables] = True
            if self.used(trial) <= 1:
                opened = trial
            else:
                blocked.add(name)  # costs only grow: what does not fit now never will
        return opened

    def _candidates(self, opened: Bools, allowed: Bools, blocked: set[str]) -> list[tuple[str, npt.NDArray[np.int64]]]:
        found: list[tuple[float, str, npt.NDArray[np.int64]]] = []
        for layer in self.analysis.layers:
            if not layer.gated or layer.name in blocked:
                continue
            part = np.arange(layer.start, layer.start + layer.variables)
            closed = part[~opened[part] & allowed[part]]
            if closed.size:
                best = closed[np.argsort(-self.scores[closed], kind="stable")][: self.multiple_of]
                found.append((float(self.scores[best[0]]), layer.name, best))
        found.sort(key=lambda item: -item[0])
        return [(name, variables) for _, name, variables in found]


def _best_first(scores: Floats, opened: Bools) -> npt.NDArray[np.int64]:
    """Open ones before closed ones, better scores first."""
    return np.lexsort((-scores, ~opened))


def _minima(analysis: Analysis, minimum: dict[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for pattern, width in minimum.items():
        names = [layer.name for layer in analysis.layers if layer.gated and fnmatchcase(layer.name, pattern)]
        if not names:
            raise OptionError(f"minimum={pattern!r} matches no gated layer", fix="use a name of wrapped.gates")
        found.update({name: min(width, _layer(analysis, name).variables) for name in names})
    return found


def _layer(analysis: Analysis, name: str) -> Layer:
    return next(layer for layer in analysis.layers if layer.name == name)


def _unreachable(analysis: Analysis, target: Target, least: Bools) -> str:
    cost, full = analysis.costs.exact(least), analysis.full_cost
    parts = [
        f"{name} {fraction:.4g} of the full cost; the smallest that can be reached is {cost[name] / full[name]:.4g}"
        for name, fraction in target.limits
        if cost[name] > fraction * full[name]
    ]
    return "the budget cannot be met: " + "; ".join(parts)
