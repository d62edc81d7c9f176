"""Bars and lines as inline SVG. Colours and fonts are the page's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fxprune.report.markup import Element, add, number
from fxprune.report.text import human

_CHARACTER = 6.3


@dataclass(frozen=True)
class Bar:
    """A thing before and after; ``label`` is what hovering says."""

    name: str
    before: int
    after: int | None
    label: str


@dataclass(frozen=True)
class Line:
    """``style`` names how it is drawn: as the page's class of that name."""

    name: str
    style: str
    points: Sequence[tuple[float, float]]


def bars(parent: Element, title: str, entries: Sequence[Bar]) -> Element:
    """Per entry a bar as high as it was, filled as far as it is."""
    step = min(max(34.0, 760.0 / max(len(entries), 1)), 96.0)
    thick, top, high = min(step * 0.6, 44.0), 22.0, 200.0
    left = 46.0
    longest = max((len(_end(entry.name)) for entry in entries), default=0)
    below = longest * _CHARACTER * 0.71 + 18
    width, height = left + step * len(entries) + 40, top + high + below
    view = f"0 0 {number(width)} {number(height)}"
    svg = add(parent, "svg", class_="chart bars", width=width, height=height, viewBox=view, role="group")
    svg.set("aria-label", title)
    largest = max((entry.before for entry in entries), default=1) or 1
    steps = ticks(0, largest)
    scale = high / steps[-1]
    for value in steps:
        y = top + high - value * scale
        add(svg, "line", class_="grid", x1=left, x2=width - 40, y1=y, y2=y)
        add(svg, "text", human(value), class_="tick end", x=left - 6, y=y + 4)
    for place, entry in enumerate(entries):
        x = left + step * place + (step - thick) / 2
        group = add(svg, "g", class_="entry", tabindex=0, role="img", aria_label=entry.label)
        add(group, "rect", class_="hit", x=left + step * place, y=top, width=step, height=high)
        full = entry.before * scale
        add(group, "rect", class_="before", x=x, y=top + high - full, width=thick, height=full)
        lives = entry.before if entry.after is None else entry.after
        add(group, "rect", class_="alive", x=x, y=top + high - lives * scale, width=thick, height=lives * scale)
        if entry.after == 0:
            add(group, "text", "gone", class_="tick middle", x=x + thick / 2, y=top + high - full - 5)
        turned = f"translate({number(x + thick / 2 - 3)} {number(top + high + 12)}) rotate(45)"
        add(group, "text", _end(entry.name), class_="tick", transform=turned)
    return svg


def lines(
    parent: Element, title: str, entries: Sequence[Line], *, x_ticks: Sequence[tuple[float, str]],
    marks: Sequence[tuple[float, str]] = (), percent: bool = False, unit: str = "", from_zero: bool = False,
) -> Element:  # fmt: skip
    """``x_ticks`` name places along the bottom; ``marks`` are where something new begins, with its name."""
    width, height, left, right, top, bottom = 370.0, 220.0, 38.0, 12.0, 26.0, 30.0
    svg = add(parent, "svg", class_="chart lines", viewBox=f"0 0 {number(width)} {number(height)}", role="img",
              aria_label=title)  # fmt: skip
    places = [x for line in entries for x, _ in line.points] + [x for x, _ in (*x_ticks, *marks)]
    values = [y for line in entries for _, y in line.points]
    start, end = min(places, default=0.0), max(places, default=1.0)
    steps = ticks(0.0 if from_zero else min(values, default=0.0), max(values, default=1.0))
    low, span = steps[0], (steps[-1] - steps[0]) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - start) / ((end - start) or 1.0)
        return left + across * (width - left - right), height - bottom - (y - low) / span * (height - top - bottom)

    for value in steps:
        _, y = at(start, value)
        add(svg, "line", class_="grid", x1=left, x2=width - right, y1=y, y2=y)
        said = f"{value * 100:.4g}" if percent else human(value) if value >= 1000 else f"{value:.4g}"
        add(svg, "text", said, class_="tick end", x=left - 6, y=y + 4)
    add(svg, "text", unit, class_="tick", x=4, y=12)
    for x, name in marks:
        place, _ = at(x, low)
        add(svg, "line", class_="mark", x1=place, x2=place, y1=top - 6, y2=height - bottom)
        add(svg, "text", name, class_="tick", x=place + 4, y=12 if len(marks) > 1 and not unit else top - 2)
    for x, name in x_ticks:
        place, _ = at(x, low)
        anchor = " end" if place > width - right - 20 else " middle"
        add(svg, "text", name, class_=f"tick{anchor}", x=min(place, width - right), y=height - bottom + 18)
    for line in entries:
        found = [at(x, y) for x, y in thinned(line.points)]
        path = "L".join(f"{number(x)} {number(y)}" for x, y in found)
        if len(found) == 1:
            add(svg, "circle", class_=f"dot {line.style}", cx=found[0][0], cy=found[0][1], r=3)
        elif found:
            add(svg, "path", class_=f"line {line.style}", d=f"M{path}")
    return svg


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


def thinned(points: Sequence[tuple[float, float]], most: int = 400) -> list[tuple[float, float]]:
    """No more points than can be seen: of each stretch the lowest and the highest.

    >>> thinned([(0, 0), (1, 5), (2, 1), (3, 2), (4, 9), (5, 3)], most=4)
    [(0, 0), (1, 5), (3, 2), (4, 9), (5, 3)]
    """
    if len(points) <= most:
        return list(points)
    kept: list[tuple[float, float]] = []
    stretches = max(most // 2, 1)
    for n in range(stretches):
        part = points[len(points) * n // stretches : len(points) * (n + 1) // stretches]
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def _end(name: str, most: int = 22) -> str:
    """The end of a name tells it from the others."""
    return name if len(name) <= most else f"…{name[-most + 1 :]}"
