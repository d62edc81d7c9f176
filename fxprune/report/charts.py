"""Bars and curves: where everything in them goes. ``page.html.j2`` has their markup."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fxprune.analysis.inspection import Inspection
from fxprune.report.facts import Facts, ReportData, layer_names
from fxprune.report.layout import Block, Point
from fxprune.report.text import NAMES, human, number, plural

MOST = 44  # more bars than these cannot be told apart
_CHARACTER = 6.3


@dataclass(frozen=True)
class Bar:
    """A thing before and after; ``label`` is what hovering says."""

    name: str
    before: int
    after: int | None
    label: str


@dataclass(frozen=True)
class Bars:
    """Per entry a bar as high as it was, filled as far as it is; ``step`` is from one to the next."""

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
        label = "\n".join((name, total.channels, total.costs["volume"], plural(len(layers), "convolution")))
        entries.append(Bar(_end(name), total.before, total.after, label))
    grid = ticks(0, max((entry.before for entry in entries), default=1) or 1)
    return Bars(entries, grid, min(max(34.0, 760.0 / max(len(entries), 1)), 96.0))


def groups(root: Block, seen: Inspection, most: int = MOST) -> list[tuple[str, list[str]]]:
    """Blocks and the convolutions in them, as finely as there is room for; layers outside of blocks alone."""
    parts = [(block, key) for key, block in root.members.items()]
    while True:
        finer = [
            (inner, name)
            for block, key in parts
            for name, inner in ([(key, block)] if block is None or _is_last(block) else block.members.items())
        ]
        if len(finer) > most or len(finer) == len(parts):
            break
        parts = finer
    named = [
        (seen.nodes[key]["label"] if block is None else block.path, [key] if block is None else list(block.nodes()))
        for block, key in parts
    ]
    convs: dict[str, list[str]] = {}  # a layer that is called several times is one
    for name, nodes in named:
        known = convs.setdefault(name, [])
        known += [layer for layer in layer_names(seen, nodes) if layer not in known]
    return [(name, layers) for name, layers in convs.items() if layers]


def _is_last(block: Block) -> bool:
    return all(inner is None for inner in block.members.values())


def _end(name: str, most: int = 22) -> str:
    """The end of a name tells it from the others."""
    return name if len(name) <= most else f"…{name[-most + 1 :]}"


@dataclass(frozen=True)
class Line:
    """``style`` names how it is drawn: as the page's class of that name."""

    name: str
    style: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Curves:
    """``across`` names places along the bottom; ``marks`` are where something new begins, with its name."""

    title: str
    said: str
    caption: str
    named: list[Line]  # that are told apart above it
    lines: list[Line]
    across: list[tuple[float, str]]
    marks: list[tuple[float, str]] = field(default_factory=list)
    share: bool = True  # in percent
    from_zero: bool = False
    left, right, top, bottom, width, height = 38.0, 358.0, 26.0, 190.0, 370.0, 220.0

    @cached_property
    def up(self) -> list[float]:
        """Values beside which there is a line."""
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
    """No more points than can be seen: of each stretch the lowest and the highest.

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
    places = _epochs(data)
    every = (
        _cost(data),
        _over_epochs("accuracy", "Validation accuracy", data, places),
        _over_epochs("loss", "Training loss", data, places),
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


def _over_epochs(key: str, title: str, data: ReportData, places: dict[int, float]) -> Curves | None:
    measured: list[Line] = []
    marks: list[tuple[float, str]] = []
    for phase in dict.fromkeys(row["phase"] for row in data.log):
        own = [n for n, row in enumerate(data.log) if row["phase"] == phase]
        points = [(places[n], data.log[n][key]) for n in own if data.log[n][key] is not None]
        if points:
            measured.append(Line(phase, "one", points))
        marks.append((places[own[0]] - _size(data.log[own[0]], data), phase))
    if not measured:
        return None
    values = [y for line in measured for _, y in line.points]
    share = key == "accuracy" and min(values) >= 0 and max(values) <= 1
    end, last, before = max(places.values()), measured[-1].points[-1][1], data.accuracy.get("before")
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
        marks=marks,
        share=share,
    )


def _epochs(data: ReportData) -> dict[int, float]:
    """Per row of the log the epochs until then, over all phases."""
    epochs: dict[int, float] = {}
    offset = 0.0
    for phase in dict.fromkeys(row["phase"] for row in data.log):
        rows = [(n, row) for n, row in enumerate(data.log) if row["phase"] == phase]
        for n, row in rows:
            epochs[n] = offset + _size(row, data)
        offset = epochs[rows[-1][0]]
    return epochs


def _size(row: dict[str, Any], data: ReportData) -> float:
    """Epochs since the phase began."""
    batches = data.settings.get("batches")
    if type(batches) is int and batches > 0:
        return float(row["step"] / batches)
    steps = max(each["step"] / max(each["epoch"], 1) for each in data.log)  # complete epochs have the most
    return float(row["step"] / steps) if steps else 0.0
