"""The first look at a report: accuracy and costs of the unpruned net against the slim one."""

from __future__ import annotations

from fxprune.budget.cost import LATENCY
from fxprune.report.markup import Element, add
from fxprune.report.page_data import ReportData
from fxprune.report.page_tables import COSTS
from fxprune.report.text import human, lower_bound, percent

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
