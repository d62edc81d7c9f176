"""Bars and curves: where everything in them goes. ``page.html.j2`` has their markup."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fxprune.analysis.inspection import Inspection
from fxprune.report.facts import Facts, ReportData, layer_names
from fxprune.report.placement import Block, Point
from fxprune.report.text import NAMES, human, number, plural

MOST = 44  # more bars would be too thin
_CHARACTER = 6.3


@dataclass(frozen=True)
class Bar:
    """Channels before and after pruning; ``label`` is shown on hover."""

    name: str
    before: int
    after: int | None
    label: str


@dataclass(frozen=True)
class Bars:
    """A bar per block: as high as before pruning, filled as far as channels live; ``step`` is from one to the next."""

    bars: list[Bar]
    grid: list[float]
    step: float

    @property
    def width(self) -> float:
        return 86 + self.step * len(self.bars)

    @property
    def height(self) -> float:
        return 240 + 0.71 * _CHARACTER * max((len(bar.name) for bar in self.bars), default=0)


def bars(facts: Facts) -> Bars:
    """Channels per block."""
    entries = []
    for name, layers in groups(facts.tree, facts.seen):
        total = facts.total(layers)
        label = "\n".join((name, total.channels, total.costs["volume"], plural(len(layers), "layer")))
        entries.append(Bar(_end(name), total.before, total.after, label))
    grid = ticks(0, max((entry.before for entry in entries), default=1) or 1)
    return Bars(entries, grid, min(max(34.0, 760.0 / max(len(entries), 1)), 96.0))


def groups(root: Block, seen: Inspection, most: int = MOST) -> list[tuple[str, list[str]]]:
    """Blocks and the layers in them, as finely as there is room for; layers outside of blocks alone."""
    parts = list(root.members.items())
    while True:
        finer = [
            part for key, block in parts
            for part in (block.members.items() if block and any(block.members.values()) else [(key, block)])
        ]  # fmt: skip
        if not len(parts) < len(finer) <= most:
            break
        parts = finer
    convs: dict[str, dict[str, None]] = {}  # a layer that is called several times counts once
    for key, block in parts:
        name, nodes = (block.path, block.nodes()) if block else (seen.nodes[key]["label"], [key])
        convs.setdefault(name, {}).update(dict.fromkeys(layer_names(seen, nodes)))
    return [(name, list(layers)) for name, layers in convs.items() if layers]


def _end(name: str, most: int = 22) -> str:
    """A name without its beginning: names differ at their ends."""
    return name if len(name) <= most else f"…{name[-most + 1 :]}"


@dataclass(frozen=True)
class Line:
    """``style`` is a class of the page's style sheet."""

    name: str
    style: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Curves:
    """``across`` names places along the bottom; ``marks`` are where something new begins, with its name."""

    title: str
    label: str  # for a screen reader
    caption: str
    named: list[Line]  # in the key above the chart
    lines: list[Line]
    across: list[tuple[float, str]]
    marks: list[tuple[float, str]] = field(default_factory=list)
    share: bool = True  # values are shares: shown in percent
    from_zero: bool = False
    left, right, top, bottom, width, height = 38.0, 358.0, 26.0, 190.0, 370.0, 220.0

    @cached_property
    def up(self) -> list[float]:
        """The values of the horizontal lines."""
        values = [y for line in self.lines for _, y in line.points]
        return ticks(0.0 if self.from_zero else min(values), max(values))

    @cached_property
    def _ends(self) -> Point:
        places = [x for line in self.lines for x, _ in line.points] + [x for x, _ in (*self.across, *self.marks)]
        return min(places), max(places)

    def x(self, place: float) -> float:
        start, end = self._ends
        return self.left + (place - start) / ((end - start) or 1.0) * (self.right - self.left)

    def y(self, value: float) -> float:
        low, high = self.up[0], self.up[-1]
        return self.bottom - (value - low) / ((high - low) or 1.0) * (self.bottom - self.top)

    def value(self, value: float) -> str:
        return f"{value * 100:.4g}" if self.share else human(value) if value >= 1000 else f"{value:.4g}"

    def drawn(self, line: Line) -> list[str]:
        return [f"{number(self.x(x))} {number(self.y(y))}" for x, y in thinned(line.points)]


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers around a range.

    >>> ticks(0, 43), ticks(0.31, 0.74), ticks(2, 2)
    ([0.0, 10.0, 20.0, 30.0, 40.0, 50.0], [0.3, 0.4, 0.5, 0.6, 0.7, 0.8], [2, 3.0])
    """
    span = high - low
    if not span > 0:
        return [low, low + (abs(low) / 2 or 1.0)]
    unit = 10.0 ** math.floor(math.log10(span / most))
    step = next(unit * factor for factor in (1, 2, 5, 10, 20) if span / (unit * factor) <= most - 1)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def thinned(points: Sequence[Point], most: int = 400) -> list[Point]:
    """Fewer points, where there are more than can be seen: of each stretch the lowest and the highest.

    >>> thinned([(0, 0), (1, 5), (2, 1), (3, 2), (4, 9), (5, 3)], most=4)
    [(0, 0), (1, 5), (3, 2), (4, 9), (5, 3)]
    """
    if len(points) <= most:
        return list(points)
    kept: list[Point] = []
    stretches = max(most // 2, 1)
    for n in range(stretches):
        part = points[len(points) * n // stretches : len(points) * (n + 1) // stretches]
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def curves(data: ReportData) -> list[Curves]:
    """Cost against sliding budget, accuracy, loss; as much as the log has."""
    phases = _phases(data)
    every = (
        _cost(data),
        _over_epochs("accuracy", "Validation accuracy", data, phases),
        _over_epochs("loss", "Training loss", data, phases),
    )
    return [chart for chart in every if chart is not None]


def _cost(data: ReportData) -> Curves | None:
    rows = [row for row in data.log if row["phase"] == "prune" and row["V"] is not None and row["b"] is not None]
    metric = next(iter(data.budget), "volume")
    full = data.before.get(metric) or 1
    if not rows:
        return None
    epochs, batches = data.settings.get("epochs"), data.settings.get("batches")
    total = rows[-1]["step"]
    if isinstance(epochs, list) and epochs and type(epochs[0]) is int and type(batches) is int:
        total = max(total, epochs[0] * batches)
    budget, cost = (
        Line(name, style, [(row["step"] / max(total, 1), row[key] / full) for row in rows])
        for key, name, style in (("b", "sliding budget b", "two"), ("V", "cost V of the network", "one"))
    )
    return Curves(
        f"Cost and sliding budget, in % of the full {NAMES.get(metric, metric)}",
        "Cost of the network and sliding budget over the progress of pruning",
        f"progress of pruning; at its end V is {cost.points[-1][1]:.2%}, b {budget.points[-1][1]:.2%}",
        named=[budget, cost],
        lines=[budget, cost],
        across=[(n / 4, f"{n * 25} %") for n in range(5)],
        from_zero=True,
    )


def _over_epochs(key: str, title: str, data: ReportData, phases: list[Phase]) -> Curves | None:
    drawn = ((phase.name, [(x, row[key]) for x, row in phase.rows if row[key] is not None]) for phase in phases)
    measured = [Line(name, "one", points) for name, points in drawn if points]
    if not measured:
        return None
    values = [y for line in measured for _, y in line.points]
    share = key == "accuracy" and min(values) >= 0 and max(values) <= 1
    end, last, before = max(x for phase in phases for x, _ in phase.rows), values[-1], data.accuracy.get("before")
    unpruned = []
    if key == "accuracy" and before is not None:
        unpruned = [Line("unpruned network", "two", [(0.0, before), (end, before)])]
    return Curves(
        f"{title}{', in %' if share else ''}",
        f"{title} over the epochs",
        f"epochs; the last value is {f'{last:.2%}' if share else f'{last:.4g}'}",
        named=unpruned,
        lines=[*unpruned, *measured],
        across=[(x, f"{x:g}") for x in ticks(0, end, 7) if x <= end + 1e-9],
        marks=[(phase.start, phase.name) for phase in phases],
        share=share,
    )


@dataclass(frozen=True)
class Phase:
    """Places are in epochs, over all phases; each row of the log has its own."""

    name: str
    start: float
    rows: list[tuple[float, dict[str, Any]]]


def _phases(data: ReportData) -> list[Phase]:
    steps = data.settings.get("batches")  # of an epoch
    if type(steps) is not int or steps <= 0:  # a complete epoch has more steps than one that was cut off
        steps = max((row["step"] / max(row["epoch"], 1) for row in data.log), default=0)
    phases: list[Phase] = []
    start = 0.0
    for name in dict.fromkeys(row["phase"] for row in data.log):
        rows = [(start + row["step"] / (steps or math.inf), row) for row in data.log if row["phase"] == name]
        phases.append(Phase(name, start, rows))
        start = rows[-1][0]
    return phases
