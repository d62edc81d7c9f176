"""Under a budget of time, widths are exchanged: fewer channels where that saves much, more where they take little.

Time is a staircase: a machine computes, say, 16 channels at once, so 17 take as long as 32. And an add of tensors with
different channels takes longer than one of equal ones. Training follows a smooth model of the time, which knows
neither; what it chose is the start of a search among whole networks for the one with the most worth
(``Latency.worth``) within the exact time.

The search maximizes worth minus price times time, one group of channels after the other. The price at which the
network is on budget is found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
import numpy.typing as npt

from fxprune.analysis import Analysis
from fxprune.analysis.streams import connected, labels_of, of_variables
from fxprune.channels.ids import Ids
from fxprune.cost.model import LATENCY
from fxprune.cost.target import Target

CHEAP, DEAR, TRIES = 1 / 8, 8.0, 7
ROUNDS = 6  # over all groups, at one price
WIDTHS = np.array([0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048])
LEAST = 1e-4  # a gain that is worth a step

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Group:
    """Gate variables whose number is changed together: those of a layer, or of all layers that write one stream.

    Variables with the same ``position`` open and close as one.
    """

    variables: Ids
    positions: Ids
    size: int


def trade(
    analysis: Analysis,
    opened: Bools,
    scores: Floats,
    allowed: Bools,
    target: Target,
    fits: Callable[[Bools], bool],
) -> Bools:
    """A network worth more than ``opened`` that uses no more than the budget, or ``opened``.

    ``fits`` tells what else a mask must fulfil; only ``allowed`` gates are opened.
    """
    search = _Search(analysis, opened, scores, allowed, target, fits)
    best, most, low, high = opened, 0.0, CHEAP, DEAR
    for _ in range(TRIES):
        price = sqrt(low * high)
        reached = search.climbed(opened, price, most=inf)
        share, worth = (float(each[0]) for each in search.measured(reached[:, None]))
        if share > 1:
            low = price
            continue
        high = price
        if worth > most:
            best, most = reached, worth
    reached = best
    while high > CHEAP:  # the next step costs too much: the rest is spent where it gains less and less
        high /= 2
        reached = search.climbed(reached, high, most=1.0)
    return reached if search.measured(reached[:, None])[1][0] > most else best


class _Search:
    def __init__(
        self,
        analysis: Analysis,
        around: Bools,
        scores: Floats,
        allowed: Bools,
        target: Target,
        fits: Callable[[Bools], bool],
    ) -> None:
        assert analysis.costs.latency is not None
        self.costs, self.latency, self.full = analysis.costs, analysis.costs.latency, analysis.full_cost
        self.others = Target(tuple(limit for limit in target.limits if limit[0] != LATENCY))
        self.limit = dict(target.limits)[LATENCY] * self.full.latency
        self.scores, self.allowed, self.fits = scores, allowed, fits
        self.worth = self.latency.worth(self.latency.widths(self.costs.logic.present(around[:, None]))[:, 0])
        label = labels_of(analysis.channels.table, analysis.units)
        labels = np.concatenate([of_variables(unit, label) for unit in analysis.units])
        self.stream = np.unique(labels, return_inverse=True)[1]  # per variable, its position among all streams
        self.groups = []
        for part in connected(analysis.units, label):
            own = [np.arange(unit.part.start, unit.part.stop) for unit in part]
            if len(part) > 1:
                together = np.concatenate(own)
                positions = np.unique(self.stream[together], return_inverse=True)[1]
                self.groups.append(Group(together, positions, int(positions.max()) + 1))
            self.groups += [Group(variables, np.arange(variables.size), variables.size) for variables in own]

    def measured(self, masks: Bools) -> tuple[Floats, Floats]:
        """Shares of the budget, and worths."""
        present = self.costs.logic.present(masks)
        widths = self.latency.widths(present)
        shares = np.ceil(self.latency.at(widths)) / self.limit
        if self.others.limits:
            shares = np.maximum(shares, self.others.used(self.costs.of_present(present, many=True), self.full))
        return shares, self.worth(widths)

    def climbed(self, opened: Bools, price: float, most: float) -> Bools:
        """Group after group takes its best width at this price that uses at most ``most``, until none changes."""
        still = 0
        for group in ROUNDS * self.groups:
            before, opened = opened, self._best(opened, group, price, most)
            still = still + 1 if opened is before else 0
            if still == len(self.groups):
                break
        return opened

    def _best(self, opened: Bools, group: Group, price: float, most: float) -> Bools:
        masks = np.stack([opened, *self._changed(opened, group)], 1)
        shares, worths = self.measured(masks)
        gains = worths - price * shares
        for number in np.argsort(-gains, kind="stable"):
            if gains[number] <= gains[0] + LEAST:
                break
            if shares[number] <= most and self.fits(masks[:, number]):
                return np.array(masks[:, number])
        return opened

    def _changed(self, opened: Bools, group: Group) -> Iterator[Bools]:
        """Other widths of the group: those that may be the edge of a stair, and some around."""
        open_now = opened[group.variables]
        alive = np.zeros(group.size, dtype=bool)
        alive[group.positions[open_now]] = True
        closed = group.variables[~open_now & alive[group.positions] & self.allowed[group.variables]]
        if closed.size:  # all layers that write a stream then write all of it
            yield _put(opened, closed, True)
        value = np.full(group.size, -np.inf)
        np.maximum.at(value, group.positions, self.scores[group.variables])
        joined = np.zeros(group.size, dtype=bool)  # what another layer writes costs its readers nothing more
        joined[group.positions] = self._alive(opened)[self.stream[group.variables]]
        width = int(alive.sum())
        weakest, strongest = np.flatnonzero(alive), np.flatnonzero(~alive)
        weakest = weakest[np.argsort(value[weakest], kind="stable")]
        strongest = strongest[np.lexsort((-value[strongest], ~joined[strongest]))]
        for other in _widths(width, group.size):
            moved = weakest[: width - other] if other < width else strongest[: other - width]
            which = group.variables[np.isin(group.positions, moved)]
            yield _put(opened, which if other < width else which[self.allowed[which]], other > width)

    def _alive(self, opened: Bools) -> Bools:
        """Positions of streams that somebody writes."""
        alive = np.zeros(int(self.stream.max()) + 1, dtype=bool)
        alive[self.stream[opened]] = True
        return alive


def _widths(width: int, most: int) -> Iterator[int]:
    """Other widths to try: one more or less, and edges of stairs.

    >>> list(_widths(10, 32))
    [2, 4, 8, 9, 11, 12, 16, 20, 24, 32]
    """
    place = int(np.searchsorted(WIDTHS, width))
    others = {*WIDTHS[max(place - 3, 0) : place], width - 1, width + 1, *WIDTHS[place:][:4], min(2 * width, most)}
    yield from sorted(int(each) for each in others if 0 <= each <= most and each != width)


def _put(opened: Bools, which: Ids, value: bool) -> Bools:
    changed = np.array(opened)
    changed[which] = value
    return changed
