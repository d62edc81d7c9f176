"""The parts of the report page: the first look, text and tables, and curves as inline SVG."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fxprune.analysis.inspection import Inspection
from fxprune.cost.model import LATENCY
from fxprune.report.facts import BECAME, ReportData
from fxprune.report.markup import Element, add, also, number
from fxprune.report.terminal import collect, pooling_rows, specialisation_rows, stream_rows
from fxprune.report.text import human, listing, lower_bound, percent, plural
from fxprune.trace.frames import short_source

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


NAMES = {"volume": "volume", "flops": "FLOPs", "params": "params", LATENCY: "latency"}
_TITLES = {
    "volume": "Volume",
    "flops": "FLOPs",
    "params": "Params",
    "network_flops": "FLOPs with linear layers",
    "network_params": "All parameters",
    LATENCY: "Latency of the example's batch, in ns, by a model of this machine",
}


def cards(main: Element, data: ReportData) -> None:
    """What was given up, and what was gained."""
    part = add(main, "section", class_="cards", aria_label="Summary")
    before, after = data.accuracy.get("before"), data.accuracy.get("after", data.accuracy.get("exported"))
    if before is not None or after is not None:
        _accuracy(_card(part, "Accuracy"), data, before, after)
    for metric, title in (*COSTS, (LATENCY, "Latency")):  # the last one only if a budget asked for it
        if metric not in data.before:
            continue
        full, left = data.before[metric], (data.after or {}).get(metric)
        card = _card(part, title)
        if left is None:
            add(card, "p", _said(metric, full) if metric == LATENCY else human(full), class_="big")
            _before_pruning(card, data, metric, full)
            continue
        big = add(card, "p", f"{full / left:.1f}×" if left else "–", class_="big")
        add(big, "small", "less")
        meter = add(card, "div", class_="meter", aria_hidden="true")
        add(meter, "i", style=f"width:{100 * left / max(full, 1):.2f}%")
        add(card, "p", f"{_said(metric, full)} → {_said(metric, left)}", class_="numbers")
        share = data.budget.get(metric)
        told = f"{percent(left / full if full else 0)} % is left"
        told += f"; {percent(left / (share * full))} % of its budget" if share and full else ""
        add(card, "p", told, class_="told")


def _before_pruning(card: Element, data: ReportData, metric: str, full: int) -> None:
    add(card, "p", f"{full:,}{' ns' if metric == LATENCY else ''}", class_="numbers")
    seen, share = data.inspection, data.budget.get(metric)
    if seen is None:
        return
    if metric not in seen.smallest:
        return
    told = (
        f"smallest net: {_said(metric, seen.smallest[metric])}, a budget of {lower_bound(seen.smallest_budget[metric])}"
    )
    if data.run is None and share is not None:
        can = seen.smallest[metric] <= share * full
        told = f"{fraction(share)} {'can be reached' if can else 'is out of reach'}; {told}"
    add(card, "p", told, class_="told")


def _said(metric: str, count: int) -> str:
    """
    >>> _said("volume", 43008), _said("latency", 1_234_567)
    ('43,008', '1.23 ms')
    """
    return f"{count / 1e6:.3g} ms" if metric == LATENCY else f"{count:,}"


def _accuracy(card: Element, data: ReportData, before: float | None, after: float | None) -> None:
    known = list(data.accuracy.values())
    share = min(known) >= 0 and max(known) <= 1

    def said(value: float) -> str:
        return f"{100 * value:.2f} %" if share else f"{value:.4g}"

    final = "after" in data.accuracy
    if after is None and before is not None:
        add(card, "p", said(before), class_="big")
        add(card, "p", "of the unpruned net", class_="told")
    elif after is not None:
        add(card, "p", said(after), class_="big")
        if before is not None:
            far = 100 * (after - before) if share else after - before
            points = " points" if share else ""
            add(card, "p", f"{said(before)} → {said(after)}", class_="numbers")
            add(card, "p", f"{far:+.2f}{points} against the unpruned net".replace("-", "−"), class_="told")
        if not final:
            add(card, "p", "not fine-tuned yet", class_="told")


def _card(parent: Element, title: str) -> Element:
    card = add(parent, "div", class_="card")
    add(card, "h2", title)
    return card


def totals(part: Element, data: ReportData) -> None:
    """All costs, exactly."""
    table = add(add(part, "div", class_="scroll fit"), "table", class_="totals")
    head = add(add(table, "thead"), "tr")
    columns = ["", "Unpruned", *(["Slim", "Left", "Factor"] if data.after else [])]
    for name in columns:
        add(head, "th", name, scope="col", class_="number" if name else None)
    body = add(table, "tbody")
    for metric, title in _TITLES.items():
        if metric not in data.before:
            continue
        row, full = add(body, "tr"), data.before[metric]
        add(row, "th", title, scope="row")
        add(row, "td", f"{full:,}", class_="number")
        if data.after:
            left = data.after.get(metric)
            cells = ["–"] * 3 if left is None else [f"{left:,}", f"{percent(left / full if full else 0)} %",
                                                    f"{full / left:.2f}×" if left else "–"]  # fmt: skip
            for cell in cells:
                add(row, "td", cell, class_="number")


def fraction(share: float) -> str:
    """
    >>> fraction(0.25), fraction(1 / 3), fraction(0.3)
    ('1/4', '1/3', '30.0 %')
    """
    whole = round(1 / share) if share > 0 else 0
    return f"1/{whole}" if whole > 1 and abs(share * whole - 1) < 1e-6 else f"{percent(share)} %"


COSTS = (("volume", "Volume"), ("flops", "FLOPs"), ("params", "Params"))


def section(parent: Element, name: str, title: str, told: str = "") -> Element:
    made = add(parent, "section", id=name, aria_labelledby=f"{name}-title")
    add(made, "h2", title, id=f"{name}-title")
    if told:
        add(made, "p", told, class_="told")
    return made


def cost_table(parent: Element, data: ReportData, seen: Inspection) -> None:
    """A row per convolution: what it had and what it has."""
    box = add(parent, "div", class_="scroll tall", tabindex=0, role="region", aria_label="Costs per convolution")
    table = add(box, "table", class_="costs")
    pruned = data.layers is not None
    head = add(add(table, "thead"), "tr")
    columns = ["Channels", "Volume", "FLOPs", "Params"]
    add(head, "th", "Convolution", scope="col")
    for name in columns:
        add(head, "th", name, scope="col", class_="number")
        if pruned:
            add(head, "th", "after", scope="col", class_="number")
    add(head, "th", "Note", scope="col")
    body, notes = add(table, "tbody"), collect(seen)
    for layer in seen.layers:
        left = data.layers[layer.name] if data.layers is not None else None
        row = add(body, "tr", class_="gone" if left is not None and not left.channels else None)
        add(row, "th", layer.name, scope="row")
        for name in ("channels", "volume", "flops", "params"):
            before = getattr(layer, name)
            add(row, "td", human(before) if name != "channels" else f"{before:,}", class_="number", title=f"{before:,}")
            if left is not None:
                after = getattr(left, name)
                text = human(after) if name != "channels" else f"{after:,}"
                add(row, "td", text, class_="number after", title=f"{after:,}")
        add(row, "td", notes.marks[layer.name], class_="note")
    foot = add(add(table, "tfoot"), "tr")
    add(foot, "th", "all convolutions", scope="row")
    totals = [sum(layer.channels for layer in seen.layers), *(data.before.get(metric, 0) for metric, _ in COSTS)]
    living = sum(left.channels for left in data.layers.values()) if data.layers is not None else None
    afters = [living, *((data.after or {}).get(metric) for metric, _ in COSTS)]
    for before, after in zip(totals, afters, strict=True):
        add(foot, "td", human(before), class_="number", title=f"{before:,}")
        if pruned:
            add(foot, "td", "–" if after is None else human(after), class_="number after")
    add(foot, "td")
    if notes.legend or notes.freezes:
        resolved = [*notes.legend, *((mark, f"frozen by {freeze.op}") for mark, freeze in notes.freezes)]
        definitions(parent, resolved, "legend-list")


def joins_table(parent: Element, data: ReportData, seen: Inspection) -> None:
    """How often each way of joining is used."""
    kinds: Counter[tuple[str, str]] = Counter()
    for name, node in seen.nodes.items():
        mask = data.streams.get(name)
        if node["kind"] in ("add", "cat", "mul") and mask is not None and data.joins is not None:
            known = "dead" if "1" not in mask else data.joins.get(name, node["kind"])
            kinds[BECAME.get(known, BECAME[node["kind"]])] += 1
    if not kinds:
        return
    add(parent, "h3", "What joins became")
    table = add(parent, "table", class_="plain")
    for (title, why), count in sorted(kinds.items(), key=lambda entry: -entry[1]):
        row = add(add(table, "tbody"), "tr")
        add(row, "td", str(count), class_="number")
        cell = add(row, "td")
        add(cell, "b", title)
        add(cell, "span", why, class_="told")


def constraints(parent: Element, seen: Inspection) -> None:
    """Guards, freezes, leaves, streams and specialisations, each with its reason."""
    told = False
    guards = [(layer.name, layer.guarded) for layer in seen.layers if layer.guarded]
    told |= _list(parent, "Guards", "At least one channel of these must live.", guards)
    freezes = []
    for freeze in seen.freezes:
        at = f" at {short_source(freeze.source)}" if freeze.source else ""
        kept = f"keeps {percent(freeze.volume_share)} % of the volume"
        layers = f": {listing(freeze.layers)}" if freeze.layers else ""
        freezes.append((freeze.op, f"{freeze.why}{at}; {kept}{layers}. To free it: {freeze.remedy}."))
    told |= _list(parent, "Freezes", "Ops that keep every channel that reaches them.", freezes)
    leaves = [
        (leaf.path, f"{leaf.type}: {leaf.reason}" + (f" ({short_source(leaf.source)})" if leaf.source else ""))
        for leaf in seen.leaves
    ]
    told |= _list(parent, "Leaves", "Submodules that were not looked into; their channels stay.", leaves)
    frozen = {name for freeze in seen.freezes for name in freeze.layers}
    ungated = [(layer.name, layer.ungated) for layer in seen.layers if layer.ungated and layer.name not in frozen]
    told |= _list(parent, "Without a gate", "Convolutions that follow others, or stay as they are.", ungated)
    told |= _list(parent, "Residual streams", "Adds that share channels.", stream_rows(seen))
    told |= _list(parent, "Pooling blocks", "Adds that no identity reaches.", pooling_rows(seen))
    asserted = "What Python read of the example, and the graph asserts since."
    told |= _list(parent, "Specialised to the example", asserted, specialisation_rows(seen))
    if not told:
        add(parent, "p", "There are none: every channel may go.")


def _list(parent: Element, title: str, told: str, rows: Sequence[tuple[str, str | None]]) -> bool:
    if not rows:
        return False
    part = add(parent, "details", open="")
    summary = add(part, "summary", title)
    add(summary, "span", f"{len(rows)}", class_="chip")
    add(part, "p", told, class_="told")
    definitions(part, rows)
    return True


def definitions(parent: Element, rows: Iterable[tuple[str, str | None]], class_: str = "") -> None:
    made = add(parent, "dl", class_=class_ or None)
    for name, text in rows:
        pair = add(made, "div")
        add(pair, "dt", name)
        add(pair, "dd", text or "")


def certificate(parent: Element, data: ReportData) -> None:
    """What export verified, in one sentence and in numbers."""
    found = data.certificate
    if found is None:
        add(parent, "p", "There is none yet. Export compares the hardened net with the slim one, and writes it here.")
        return
    sizes = " and ".join(map(str, found["batches"]))
    text = add(parent, "p", "The slim net computes what the masked net computed: on noise they differ by at most ")
    add(text, "strong", f"{found['error']:.1e}")
    also(text, f" of the largest output. Up to {found['tolerance']:.0e} is rounding; more would have been an error.")
    definitions(
        parent,
        [
            ("largest relative difference", f"{found['error']:.2e}"),
            ("compared in", str(found.get("dtype", "float64"))),
            ("batch sizes", sizes),
            *([("batch norms folded", str(found["fused"]))] if found.get("fused") else []),
        ],
    )
    if data.run is not None:
        add(parent, "p", "Of the net before it was fine-tuned, which changes its weights.", class_="told")


def settings(parent: Element, data: ReportData) -> None:
    seconds = [("time", _duration(data.seconds))] if data.seconds is not None else []
    definitions(parent, [*((str(name), _as_said(value)) for name, value in data.settings.items()), *seconds])


def _as_said(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_as_said(entry)}" for key, entry in value.items()) or "–"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_as_said, value)) or "–"
    return f"{value:.6g}" if isinstance(value, float) else "–" if value is None else str(value)


def _duration(seconds: float) -> str:
    """
    >>> _duration(9.4), _duration(754), _duration(7320)
    ('9.4 s', '12 min 34 s', '2 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    return f"{minutes} min {int(seconds) % 60} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def missing(parent: Element, entries: Sequence[str]) -> None:
    if entries:
        box = add(parent, "aside", class_="missing", aria_label="What is missing")
        add(box, "b", f"Not on this page ({plural(len(entries), 'part')})")
        rows = add(box, "ul")
        for entry in entries:
            add(rows, "li", entry)
