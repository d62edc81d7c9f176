"""A report as one HTML page that needs nothing else, and the network as one SVG file; the markup is in templates.

Whatever text goes into a template is escaped there.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fxprune.analysis.inspection import Inspection
from fxprune.cost.model import LATENCY, METRICS
from fxprune.files import as_path, write_atomically
from fxprune.report import charts
from fxprune.report.facts import BECAME, JOINS, MARKS, Facts, ReportData, of_inspection, of_run
from fxprune.report.graph import Graph
from fxprune.report.terminal import collect, pooling_rows, specialisation_rows, stream_rows
from fxprune.report.text import NAMES, clean, duration, fraction, human, listing, lower_bound, number, percent, plural
from fxprune.trace.frames import short_source

PAGE = "report.html"
Rows = Sequence[tuple[str, str | None]]

_TEMPLATES = Environment(
    loader=PackageLoader("fxprune.report", ""),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=lambda value: number(value) if isinstance(value, float) else value,
)
_TEMPLATES.policies["json.dumps_kwargs"] = {"separators": (",", ":")}  # in the order in which it comes
_TEMPLATES.filters.update(human=human, exact="{:,}".format, plural=plural)


def write_page(folder: str | os.PathLike[str], file: Path | None = None) -> Path:
    """Write the page of a run, into its folder if no other ``file`` is named."""
    from fxprune import __version__

    path = as_path(folder, "folder")
    target = path / PAGE if file is None else file
    write_atomically(target, render(of_run(path, __version__)))
    return target


def render(data: ReportData) -> str:
    """The whole page."""
    script, style = (
        resources.files("fxprune.report").joinpath(f"page.{kind}").read_text("utf-8") for kind in ("js", "css")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shown: dict[str, Any] = {
        "data": data, "script": script, "style": style, "digest": digest, "about": _about(data), "cards": cards(data),
        "columns": ("channels", *METRICS), "totals": totals(data), "curves": charts.curves(data),
        "settings": settings(data), "seen": data.inspection, "capital": capital,
    }  # fmt: skip
    if data.inspection is not None:
        facts = Facts(data)
        shown.update(
            graph=Graph(facts), legend=legend(facts), joins=joins(data, data.inspection), bars=charts.bars(facts),
            notes=collect(data.inspection), constraints=constraints(data.inspection),
        )  # fmt: skip
    return _written("page.html.j2", shown)


def draw(seen: Inspection) -> str:
    """Convolutions, joins, inputs and outputs, top to bottom, with a legend, as SVG."""
    graph = Graph(Facts(of_inspection(seen, "")), bars=False)
    title = f"{seen.model} for {', '.join(seen.inputs)}: volume {human(seen.cost['volume'])}"
    return _written("graph.svg.j2", {"title": title, "graph": graph, "legend": graph.legend()})


def _written(template: str, shown: dict[str, Any]) -> str:
    return clean(_TEMPLATES.get_template(template).render(shown)).strip() + "\n"


def capital(metric: str) -> str:
    """
    >>> capital("flops"), capital("volume"), capital("channels")
    ('FLOPs', 'Volume', 'Channels')
    """
    name = NAMES.get(metric, metric)
    return name[:1].upper() + name[1:]


def _about(data: ReportData) -> str:
    """The line below the title."""
    parts = []
    if data.budget and data.stage is None:
        parts.append(f"Asked about a budget of {fraction(next(iter(data.budget.values())))}")
    elif data.budget:
        budgets = (f"{fraction(share)} of the {NAMES.get(name, name)}" for name, share in data.budget.items())
        parts.append(f"Budget: {', '.join(budgets)}")
    if data.inspection is not None:
        parts.append(f"Input: {', '.join(data.inspection.inputs)}")
    return " · ".join([*parts, *([f"Run: {data.run}"] if data.run is not None else [])])


# ------------------------------------------------------------ costs


@dataclass(frozen=True)
class Card:
    """A number at a first look; ``left`` is a share to draw."""

    title: str
    big: str
    small: str = ""
    left: float | None = None
    numbers: str = ""
    told: tuple[str, ...] = ()


def cards(data: ReportData) -> list[Card]:
    """What was given up, and what was gained."""
    every = [_accuracy(data)] if data.accuracy.keys() & {"before", "exported", "after"} else []
    for metric in (*METRICS, LATENCY):  # the last one only if a budget asked for it
        if metric in data.before:
            left = (data.after or {}).get(metric)
            every.append(_unpruned(data, metric) if left is None else _pruned(data, metric, left))
    return every


def _pruned(data: ReportData, metric: str, left: int) -> Card:
    full, share = data.before[metric], data.budget.get(metric)
    told = f"{percent(left / full if full else 0)} % is left"
    told += f"; {percent(left / (share * full))} % of its budget" if share and full else ""
    numbers = f"{_said(metric, full)} → {_said(metric, left)}"
    factor = f"{full / left:.1f}×" if left else "–"
    return Card(capital(metric), factor, "less", left / max(full, 1), numbers, (told,))


def _unpruned(data: ReportData, metric: str) -> Card:
    full, share, seen = data.before[metric], data.budget.get(metric), data.inspection
    told = ""
    if seen is not None and metric in seen.smallest:
        least = seen.smallest[metric]
        told = f"smallest net: {_said(metric, least)}, a budget of {lower_bound(seen.smallest_budget[metric])}"
        if data.run is None and share is not None:
            told = f"{fraction(share)} {'can be reached' if least <= share * full else 'is out of reach'}; {told}"
    big, numbers = (_said(metric, full), f"{full:,} ns") if metric == LATENCY else (human(full), f"{full:,}")
    return Card(capital(metric), big, numbers=numbers, told=(told,) if told else ())


def _said(metric: str, count: int) -> str:
    """
    >>> _said("volume", 43008), _said("latency", 1_234_567)
    ('43,008', '1.23 ms')
    """
    return f"{count / 1e6:.3g} ms" if metric == LATENCY else f"{count:,}"


def _accuracy(data: ReportData) -> Card:
    before, after = data.accuracy.get("before"), data.accuracy.get("after", data.accuracy.get("exported"))
    share = all(0 <= value <= 1 for value in data.accuracy.values())

    def said(value: float) -> str:
        return f"{100 * value:.2f} %" if share else f"{value:.4g}"

    if after is None:
        return Card("Accuracy", said(before or 0.0), told=("of the unpruned net",))
    numbers, told = "", []
    if before is not None:
        far = f"{100 * (after - before):+.2f} points" if share else f"{after - before:+.2f}"
        numbers, told = f"{said(before)} → {said(after)}", [f"{far} against the unpruned net".replace("-", "−")]
    told += [] if "after" in data.accuracy else ["not fine-tuned yet"]
    return Card("Accuracy", said(after), numbers=numbers, told=tuple(told))


def totals(data: ReportData) -> list[tuple[str, list[str]]]:
    """All costs, exactly."""
    in_full = {
        "network_flops": f"{NAMES['flops']} with linear layers",
        "network_params": "All parameters",
        LATENCY: f"{capital(LATENCY)} of the example's batch, in ns, by a model of this machine",
    }
    rows = []
    for metric in NAMES:
        if metric in data.before:
            full, left = data.before[metric], (data.after or {}).get(metric)
            cells = ["–"] * 3
            if left is not None:
                factor = f"{full / left:.2f}×" if left else "–"
                cells = [f"{left:,}", f"{percent(left / full if full else 0)} %", factor]
            rows.append((in_full.get(metric, capital(metric)), [f"{full:,}", *(cells if data.after else [])]))
    return rows


# ------------------------------------------------------------ words


def legend(facts: Facts) -> list[tuple[str, str]]:
    """How things are drawn that are there, and what that means."""
    marks = {mark for fact in facts.nodes.values() for mark in fact.marks}
    pruned = facts.data.layers is not None
    entries = [("alive", "channel that lives"), ("track", "channel that is dead")] if pruned else [("alive", "channel")]
    entries += [(mark, told) for mark, told in MARKS.items() if mark in marks]
    gone = any(fact.gone for fact in facts.nodes.values())
    return [*entries, *([("vanished", "gone: nothing of it is left")] if gone else [])]


def joins(data: ReportData, seen: Inspection) -> list[tuple[int, str, str]]:
    """How often each way of joining is used."""
    kinds: Counter[tuple[str, str]] = Counter()
    for name, node in seen.nodes.items():
        mask = data.streams.get(name)
        if node["kind"] in JOINS and mask is not None and data.joins is not None:
            known = "dead" if "1" not in mask else data.joins.get(name, node["kind"])
            kinds[BECAME.get(known, BECAME[node["kind"]])] += 1
    return [(count, *words) for words, count in sorted(kinds.items(), key=lambda entry: -entry[1])]


def constraints(seen: Inspection) -> list[tuple[str, str, Rows]]:
    """Guards, freezes, leaves, streams and specialisations, each with its reason."""
    freezes = []
    for freeze in seen.freezes:
        at = f" at {short_source(freeze.source)}" if freeze.source else ""
        kept = f"keeps {percent(freeze.volume_share)} % of the volume"
        layers = f": {listing(freeze.layers)}" if freeze.layers else ""
        freezes.append((freeze.op, f"{freeze.why}{at}; {kept}{layers}. To free it: {freeze.remedy}."))
    leaves = [
        (leaf.path, f"{leaf.type}: {leaf.reason}" + (f" ({short_source(leaf.source)})" if leaf.source else ""))
        for leaf in seen.leaves
    ]
    frozen = {name for freeze in seen.freezes for name in freeze.layers}
    guards = [(layer.name, layer.guarded) for layer in seen.layers if layer.guarded]
    ungated = [(layer.name, layer.ungated) for layer in seen.layers if layer.ungated and layer.name not in frozen]
    asserted = "What Python read of the example, and the graph asserts since."
    parts: list[tuple[str, str, Rows]] = [
        ("Guards", "At least one channel of these must live.", guards),
        ("Freezes", "Ops that keep every channel that reaches them.", freezes),
        ("Leaves", "Submodules that were not looked into; their channels stay.", leaves),
        ("Without a gate", "Convolutions that follow others, or stay as they are.", ungated),
        ("Residual streams", "Adds that share channels.", stream_rows(seen)),
        ("Pooling blocks", "Adds that no identity reaches.", pooling_rows(seen)),
        ("Specialised to the example", asserted, specialisation_rows(seen)),
    ]
    return [part for part in parts if part[2]]


def settings(data: ReportData) -> Rows:
    seconds = [("time", duration(data.seconds))] if data.seconds is not None else []
    return [*((str(name), _as_said(value)) for name, value in data.settings.items()), *seconds]


def _as_said(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_as_said(entry)}" for key, entry in value.items()) or "–"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_as_said, value)) or "–"
    return f"{value:.6g}" if isinstance(value, float) else "–" if value is None else str(value)
