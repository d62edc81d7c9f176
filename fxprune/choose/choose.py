"""Who lives, on budget: a search over the gates' scores with the exact cost of the whole network.

Costs only grow with the open gates. A gate that does not fit now never will, so one walk over the closed gates, best
scores first, ends with a network in which nothing more fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from math import ceil, floor, gcd, log10
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fxprune.analysis import Analysis
from fxprune.analysis.gates import Ungated, Unit, names_like
from fxprune.choose.widths import trade
from fxprune.cost.model import LATENCY
from fxprune.cost.target import Target
from fxprune.errors import OptionError

ArrayLike = torch.Tensor | np.ndarray[Any, Any] | Sequence[Any]


def per_gate(
    call: str, given: Mapping[str, ArrayLike], units: Sequence[Unit]
) -> Iterator[tuple[str, slice, npt.NDArray[np.float64]]]:
    """For each gate its name, its variables, and the number given for each of these; ``call`` is named in errors."""
    if not isinstance(given, Mapping):
        raise OptionError(f"{call}: a {type(given).__name__} names no layers", fix="give {layer name: numbers}")
    gated = {unit.name: unit for unit in units}
    for name, entries in given.items():
        if name not in gated:
            like = names_like(str(name), list(gated))
            raise OptionError(f"{call}: {name!r} has no gate", fix=f"use names of .gates, such as {like}")
        try:
            flat = torch.as_tensor(entries).detach().double().cpu().reshape(-1).numpy()
        except (TypeError, ValueError, RuntimeError) as error:
            raise OptionError(
                f"{call}: {name!r} is given a {type(entries).__name__} that is no array of numbers",
                fix="give a tensor, an array or a list with one number per gate variable",
            ) from error
        if flat.size != gated[name].variables:
            raise OptionError(
                f"{call}: {name!r} is given {flat.size} numbers, its gate has {gated[name].variables} variables",
                fix="give one per gate variable: len(wrapped.gates[name])"
                + _counts([unit for unit in units if unit.calls[0].name == gated[name].calls[0].name]),
            )
        yield name, gated[name].part, flat


def _counts(of_layer: Sequence[Unit]) -> str:
    """How many variables the gates of a layer have, where it has gates of several kinds."""
    counts = (f"{unit.variables} of {unit.name!r}" for unit in of_layer)
    return f" ({', '.join(counts)})" if any(unit.of_heads for unit in of_layer) else ""


ENOUGH = 0.999  # of the budget
AT_ONCE = 32  # masks whose costs are counted together

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Group = npt.NDArray[np.int64]  # gate variables of one layer that open together


def choose(
    analysis: Analysis,
    target: Target,
    scores: Floats,
    opened: Bools | None,
    *,
    fill: bool,
    multiple_of: int,
    minimum: Mapping[str, int],
) -> Bools:
    """The gates to keep open: as many of the best scores as the budget allows.

    ``opened`` is the network as it stands; without ``fill`` nothing beyond it is opened. With it, and unless widths are
    multiples of something, a budget of time is spent better yet (choose/widths.py).
    """
    _check_scores(analysis, scores)
    search = _Search(analysis, target, scores, _steps(analysis, multiple_of), _minima(analysis, minimum))
    allowed = np.ones(scores.size, dtype=bool) if opened is None or fill else opened
    chosen = search.fill(search.best_prefix(allowed), allowed)
    if not fill or multiple_of > 1 or chosen.all() or LATENCY not in dict(target.limits):
        return chosen
    return trade(analysis, chosen, scores, allowed, target, search.suits)


def check_reachable(analysis: Analysis, target: Target) -> None:
    """Raise if no choice is on budget."""
    _Search(analysis, target, np.zeros(analysis.variables), {}, {}).least()


class _Search:
    def __init__(
        self, analysis: Analysis, target: Target, scores: Floats, steps: dict[str, int], minima: dict[str, int]
    ) -> None:
        self.analysis, self.target, self.scores = analysis, target, scores
        self.steps, self.minima = steps, minima
        # Equal scores: no layer before another, so that a network without scores is cut evenly.
        place = np.concatenate([np.arange(unit.variables) / unit.variables for unit in analysis.units] or [scores])
        self.order = np.lexsort((place, -scores))

    def used(self, opened: Bools) -> Any:
        """The share of the budget that is used: of one mask, or of each column of an array (variables x masks)."""
        return self.target.used(self.analysis.costs.exact(opened), self.analysis.full_cost)

    # ------------------------------------------------------------ cutting

    def best_prefix(self, allowed: Bools) -> Bools:
        """The best scores that fit together, each layer rounded down and the network kept alive."""
        order = self.order[allowed[self.order]]
        best = self.least()
        low, high = 0, order.size  # the network of the `low` best fits
        while low < high:
            middle = (low + high + 1) // 2
            trial = np.zeros(self.scores.size, dtype=bool)
            trial[order[:middle]] = True
            trial = self.finish(trial, self.scores)
            if self.used(trial) <= 1:
                low, best = middle, trial
            else:
                high = middle - 1
        return best

    def least(self) -> Bools:
        """A small network on budget: with the best scores if possible, else with any channels that fit."""
        nothing = np.zeros(self.scores.size, dtype=bool)
        tried = []
        for scores in (self.scores, np.zeros_like(self.scores)):
            tried.append(self.finish(nothing, scores))
            if self.used(tried[-1]) <= 1:
                return tried[-1]
        given = {
            "a smaller multiple_of": bool(self.steps),
            "smaller widths in minimum": bool(self.minima),
            "fewer layers in wrap(ignore=...)": any(layer.ungated is Ungated.IGNORED for layer in self.analysis.layers),
        }
        ways = ["a larger budget", *(way for way, is_open in given.items() if is_open)]
        fix = "ask for " + " or ".join(filter(None, [", ".join(ways[:-1]), ways[-1]]))
        if self.analysis.channels.freezes:
            fix += "; or free what inspect lists as frozen"
        raise OptionError(self._unreachable(tried), fix=fix)

    def finish(self, opened: Bools, scores: Floats) -> Bools:
        """Round widths down, then open what minimum widths and guards need, and round those layers up."""
        return self._resized(self.analysis.guards.hold(self._resized(opened, floor), scores), ceil)

    def _resized(self, opened: Bools, whole: Callable[[float], int]) -> Bools:
        opened = opened.copy()
        for unit in self.analysis.units:
            step, least = self.steps.get(unit.name, 1), self.minima.get(unit.name, 0)
            if step == 1 and not least:
                continue
            count = int(opened[unit.part].sum())
            if count < unit.variables:
                count = max(whole(count / step) * step, ceil(least / step) * step)
            best = np.lexsort((-self.scores[unit.part], ~opened[unit.part]))  # open ones first
            opened[unit.part] = False
            opened[unit.start + best[:count]] = True
        return opened

    def _unreachable(self, tried: list[Bools]) -> str:
        costs, full = [self.analysis.costs.exact(opened) for opened in tried], self.analysis.full_cost
        cost = min(costs, key=lambda cost: self.target.used(cost, full))
        parts = [
            f"{name} {fraction:.4g} of the full cost; the smallest that can be reached is "
            f"{_at_least(cost[name], full[name])}"
            for name, fraction in self.target.limits
            if cost[name] > fraction * full[name]
        ]
        return "the budget cannot be met: " + "; ".join(parts)

    def suits(self, opened: Bools) -> bool:
        """Whether guarded layers keep a channel, and minimum widths are kept."""
        wide = all(opened[unit.part].sum() >= self.minima.get(unit.name, 0) for unit in self.analysis.units)
        return wide and self.analysis.guards.held(opened)

    # ------------------------------------------------------------ filling

    def fill(self, opened: Bools, allowed: Bools) -> Bools:
        """Spend what is left: open the best closed gates that fit, until none fits."""
        opened = self._spent(opened, self._groups(opened, allowed))
        return self._spent(opened, self._remainders(opened, allowed))

    def _spent(self, opened: Bools, groups: list[Group]) -> Bools:
        """Opened groups of gates, one after the other, as long as they fit."""
        used = self.used(opened) if groups else 1.0
        for start in range(0, len(groups), AT_ONCE):
            rest = groups[start : start + AT_ONCE]
            while rest and used < ENOUGH:
                alone = self.used(_trials(opened, rest))
                rest = [group for group, share in zip(rest, alone, strict=True) if share <= 1]
                if rest:
                    together = np.logical_or.accumulate(_trials(opened, rest), axis=1)
                    shares = self.used(together)
                    over = np.flatnonzero(shares > 1)
                    count = int(over[0]) if over.size else len(rest)  # at least the first group, which is known to fit
                    opened, used = together[:, count - 1].copy(), shares[count - 1]
                    rest = rest[count + 1 :]  # the next one does not fit
        return opened

    def _groups(self, opened: Bools, allowed: Bools) -> list[Group]:
        """Closed gates, best first: one by one, or as many as keep a layer's width a multiple."""
        closed = self.order[(allowed & ~opened)[self.order]]
        if not self.steps:
            return list(closed[:, None])
        groups: list[Group] = []
        for unit in self.analysis.units:
            own = closed[(closed >= unit.part.start) & (closed < unit.part.stop)]
            step = self.steps.get(unit.name, 1)
            groups += [own[at : at + step] for at in range(0, own.size - step + 1, step)]
        rank = np.argsort(self.order)
        return sorted(groups, key=lambda group: int(rank[group[0]]))

    def _remainders(self, opened: Bools, allowed: Bools) -> list[Group]:
        """The last gates of layers whose width is no multiple: they complete the layer, or stay closed."""
        closed = [(unit.name, unit.start + np.flatnonzero(~opened[unit.part])) for unit in self.analysis.units]
        return [own for name, own in closed if 0 < own.size < self.steps.get(name, 1) and allowed[own].all()]


def _trials(opened: Bools, groups: list[Group]) -> Bools:
    """One column per group: the network with it."""
    trials = np.repeat(opened[:, None], len(groups), axis=1)
    for column, group in enumerate(groups):
        trials[group, column] = True
    return trials


# ---------------------------------------------------------------- options


def _check_scores(analysis: Analysis, scores: Floats) -> None:
    if not np.isfinite(scores).all():
        wrong = int(np.flatnonzero(~np.isfinite(scores))[0])
        name = next(unit.name for unit in analysis.units if wrong < unit.part.stop)
        raise OptionError(
            f"harden: the scores of {name!r} hold NaN or infinite values",
            fix="give finite scores; without scores, look for NaN in the gates' log_alpha: training has diverged",
        )


def _steps(analysis: Analysis, multiple_of: int) -> dict[str, int]:
    """How many gate variables make a multiple of so many channels, for each layer where that is more than one."""
    if isinstance(multiple_of, bool) or not isinstance(multiple_of, int) or multiple_of < 1:
        raise OptionError(f"multiple_of={multiple_of!r} is no width", fix="write a whole number, such as multiple_of=8")
    steps = {unit.name: multiple_of // gcd(multiple_of, _grain(unit)) for unit in analysis.units}
    return {name: step for name, step in steps.items() if step > 1}


def _minima(analysis: Analysis, minimum: Mapping[str, int]) -> dict[str, int]:
    """Per layer how many of its gate variables stay open."""
    if not isinstance(minimum, Mapping):
        raise OptionError(f"minimum={minimum!r} names no layers", fix=f"write minimum={{'*': {minimum!r}}}")
    minima: dict[str, int] = {}
    for pattern, width in minimum.items():
        units = [unit for unit in analysis.units if fnmatchcase(unit.name, str(pattern))]
        if not units:
            like = names_like(str(pattern), [unit.name for unit in analysis.units])
            raise OptionError(
                f"minimum={pattern!r} matches no gated layer", fix=f"use a name of wrapped.gates, such as {like}"
            )
        if isinstance(width, bool) or not isinstance(width, int) or width < 0:
            raise OptionError(f"minimum: {width!r} is no number of channels", fix=f"write {{{pattern!r}: 8}}")
        minima.update({unit.name: min(-(-width // max(_grain(unit), 1)), unit.variables) for unit in units})
    return minima


def _grain(unit: Unit) -> int:
    """Channels per gate variable: the width of a group where groups live as a whole. The width of heads is that of
    each, and of heads there may be any number."""
    return {"width": 1, "head": 0}.get(unit.grain, int((unit.rows == 0).sum()))


def _at_least(cost: int, full: int) -> str:
    """A fraction of the full cost with four digits, rounded up: as a budget it must be enough."""
    digits = 10.0 ** (3 - floor(log10(cost / full)))
    number = ceil(cost / full * digits)
    while float(f"{number / digits:.10g}") * full < cost:
        number += 1
    return f"{number / digits:.10g}"
