"""The training of a run as charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fxprune.report.charts import Line, lines, ticks
from fxprune.report.markup import Element, add
from fxprune.report.page_data import ReportData
from fxprune.report.page_summary import NAMES

Rows = Sequence[dict[str, Any]]


def curves(parent: Element, data: ReportData) -> bool:
    """Cost against sliding budget, accuracy, loss; as much as the log has. Says whether there was anything."""
    box = add(parent, "div", class_="charts")
    places = _epochs(data)
    _cost(box, data)
    _over_epochs(box, "accuracy", "Validation accuracy", data, places)
    _over_epochs(box, "loss", "Training loss", data, places)
    if not len(box):
        parent.remove(box)
        return False
    return True


def _cost(parent: Element, data: ReportData) -> None:
    rows = [row for row in data.log if row["phase"] == "prune" and row["V"] is not None and row["b"] is not None]
    metric = next(iter(data.budget), "volume")
    full = data.before.get(metric) or 1
    if not rows:
        return
    epochs, batches = data.settings.get("epochs"), data.settings.get("batches")
    total = rows[-1]["step"]
    if isinstance(epochs, list) and epochs and type(epochs[0]) is int and type(batches) is int:
        total = max(total, epochs[0] * batches)
    found = [
        Line(name, style, [(row["step"] / max(total, 1), row[key] / full) for row in rows])
        for key, name, style in (("b", "sliding budget b", "two"), ("V", "cost V of the network", "one"))
    ]
    figure = _figure(parent, f"Cost and sliding budget, in % of the full {NAMES.get(metric, metric)}", found)
    said = "Cost of the network and sliding budget over the progress of pruning"
    across = [(n / 4, f"{n * 25} %") for n in range(5)]
    lines(figure, said, found, x_ticks=across, percent=True, from_zero=True)
    _caption(
        figure, f"progress of pruning; at its end V is {found[1].points[-1][1]:.2%}, b {found[0].points[-1][1]:.2%}"
    )


def _over_epochs(parent: Element, key: str, title: str, data: ReportData, places: dict[int, float]) -> None:
    found: list[Line] = []
    marks: list[tuple[float, str]] = []
    for phase in dict.fromkeys(row["phase"] for row in data.log):
        own = [n for n, row in enumerate(data.log) if row["phase"] == phase]
        points = [(places[n], data.log[n][key]) for n in own if data.log[n][key] is not None]
        if points:
            found.append(Line(phase, "one", points))
        marks.append((places[own[0]] - _size(data.log[own[0]], data), phase))
    if not found:
        return
    values = [y for line in found for _, y in line.points]
    share = key == "accuracy" and min(values) >= 0 and max(values) <= 1
    end = max(places.values())
    before = data.accuracy.get("before")
    if key == "accuracy" and before is not None:
        found.insert(0, Line("unpruned network", "two", [(0.0, before), (end, before)]))
    figure = _figure(parent, f"{title}{', in %' if share else ''}", [line for line in found if line.style == "two"])
    steps = [value for value in ticks(0, end, 7) if value <= end + 1e-9]
    lines(figure, f"{title} over the epochs", found, x_ticks=[(x, f"{x:g}") for x in steps], marks=marks, percent=share)
    last = found[-1].points[-1][1]
    _caption(figure, f"epochs; the last value is {f'{last:.2%}' if share else f'{last:.4g}'}")


def _epochs(data: ReportData) -> dict[int, float]:
    """Per row of the log the epochs until then, over all phases."""
    found: dict[int, float] = {}
    offset = 0.0
    for phase in dict.fromkeys(row["phase"] for row in data.log):
        rows = [(n, row) for n, row in enumerate(data.log) if row["phase"] == phase]
        for n, row in rows:
            found[n] = offset + _size(row, data)
        offset = found[rows[-1][0]]
    return found


def _size(row: dict[str, Any], data: ReportData) -> float:
    """Epochs since the phase began."""
    batches = data.settings.get("batches")
    if type(batches) is int and batches > 0:
        return float(row["step"] / batches)
    steps = max(each["step"] / max(each["epoch"], 1) for each in data.log)  # complete epochs have the most
    return float(row["step"] / steps) if steps else 0.0


def _figure(parent: Element, title: str, named: Sequence[Line]) -> Element:
    figure = add(parent, "figure")
    add(figure, "h3", title)
    if named:
        keys = add(figure, "p", class_="keys")
        for line in named:
            key = add(keys, "span", class_="key")
            swatch = add(key, "svg", width=26, height=10, aria_hidden="true")
            add(swatch, "path", class_=f"line {line.style}", d="M1 5H25")
            add(key, "span", line.name)
    return figure


def _caption(figure: Element, text: str) -> None:
    add(figure, "figcaption", text)
