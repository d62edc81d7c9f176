"""A report as one HTML page that needs nothing else, and the network as one SVG file; the markup is in templates.

The templates escape every text.
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
from fxprune.report import charts, text
from fxprune.report.drawing import Graph
from fxprune.report.facts import MARKS, Facts, ReportData, of_inspection, of_run
from fxprune.report.terminal import at, collect, pooling_rows, specialisation_rows, stream_rows
from fxprune.report.text import NAMES, fraction, human, listing, lower_bound, part_of, percent
from fxprune.trace.source_lines import short_source

PAGE = "report.html"
Rows = Sequence[tuple[str, str | None]]

_TEMPLATES = Environment(
    loader=PackageLoader("fxprune.report", ""),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=lambda value: text.number(value) if isinstance(value, float) else value,
)
_TEMPLATES.policies["json.dumps_kwargs"] = {"separators": (",", ":")}  # keys keep their order
_TEMPLATES.filters.update(human=human, exact="{:,}".format, plural=text.plural)


def write_page(folder: str | os.PathLike[str], file: Path | None = None) -> Path:
    """Write the page of a run, into its folder if no other ``file`` is named."""
    path = as_path(folder, "folder")
    target = path / PAGE if file is None else file
    write_atomically(target, render(of_run(path)))
    return target


def render(data: ReportData) -> str:
    """The whole page."""
    from fxprune import __version__

    script, style = (
        resources.files("fxprune.report").joinpath(f"page.{kind}").read_text("utf-8") for kind in ("js", "css")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shown: dict[str, Any] = {
        "data": data, "script": script, "style": style, "digest": digest, "about": _about(data), "cards": cards(data),
        "columns": ("channels", *METRICS), "totals": totals(data), "curves": charts.curves(data),
        "settings": settings(data), "seen": data.inspection, "capital": capital, "version": __version__,
    }  # fmt: skip
    if data.inspection is not None:
        facts = Facts(data)
        shown.update(
            graph=Graph(facts), legend=legend(facts), joins=joins(facts), bars=charts.bars(facts),
            notes=collect(data.inspection), constraints=constraints(data.inspection),
        )  # fmt: skip
    return _written("page.html.j2", shown)


def draw(seen: Inspection) -> str:
    """Layers, joins, inputs and outputs, top to bottom, with a legend, as SVG."""
    graph = Graph(Facts(of_inspection(seen)), bars=False)
    title = f"{seen.model} for {', '.join(seen.inputs)}: volume {human(seen.cost['volume'])}"
    return _written("graph.svg.j2", {"title": title, "graph": graph, "legend": graph.legend()})


def _written(template: str, shown: dict[str, Any]) -> str:
    return text.clean(_TEMPLATES.get_template(template).render(shown)).strip() + "\n"


def capital(metric: str) -> str:
    """
    >>> capital("flops"), capital("volume"), capital("channels")
    ('FLOPs', 'Volume', 'Channels')
    """
    name = NAMES.get(metric, metric)
    return name[:1].upper() + name[1:]


def _about(data: ReportData) -> str:
    """The line below the title."""
    budgets = [f"{fraction(share)} of the {NAMES.get(name, name)}" for name, share in data.budget.items()]
    parts = [f"Budget: {', '.join(budgets)}"] if budgets else []
    if budgets and data.stage is None:
        parts = [f"Asked about a budget of {fraction(next(iter(data.budget.values())))}"]
    parts += [f"Input: {', '.join(data.inspection.inputs)}"] if data.inspection is not None else []
    return " · ".join([*parts, *([f"Run: {data.run}"] if data.run is not None else [])])


# ------------------------------------------------------------ costs


@dataclass(frozen=True)
class Card:
    """A number to see first; ``left`` is the share that the meter shows."""

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
    told = f"{part_of(left, full)} is left"
    told += f"; {part_of(left, share * full)} of its budget" if share and full else ""
    numbers = f"{_exactly(metric, full)} → {_exactly(metric, left)}"
    factor = f"{full / left:.1f}×" if left else "–"
    return Card(capital(metric), factor, "less", left / max(full, 1), numbers, (told,))


def _unpruned(data: ReportData, metric: str) -> Card:
    full, share, seen = data.before[metric], data.budget.get(metric), data.inspection
    told = ""
    if seen is not None and metric in seen.smallest:
        least = seen.smallest[metric]
        told = f"smallest net: {_exactly(metric, least)}, a budget of {lower_bound(seen.smallest_budget[metric])}"
        if data.run is None and share is not None:
            told = f"{fraction(share)} {'can be reached' if least <= share * full else 'is out of reach'}; {told}"
    big, numbers = (_exactly(metric, full), f"{full:,} ns") if metric == LATENCY else (human(full), f"{full:,}")
    return Card(capital(metric), big, numbers=numbers, told=(told,) if told else ())


def _exactly(metric: str, count: int) -> str:
    """
    >>> _exactly("volume", 43008), _exactly("latency", 1_234_567)
    ('43,008', '1.23 ms')
    """
    return f"{count / 1e6:.3g} ms" if metric == LATENCY else f"{count:,}"


def _accuracy(data: ReportData) -> Card:
    before, after = data.accuracy.get("before"), data.accuracy.get("after", data.accuracy.get("exported"))
    share = all(0 <= value <= 1 for value in data.accuracy.values())

    def shown(value: float) -> str:
        return f"{100 * value:.2f} %" if share else f"{value:.4g}"

    if after is None:
        return Card("Accuracy", shown(before or 0.0), told=("of the unpruned net",))
    told = () if "after" in data.accuracy else ("not fine-tuned yet",)
    if before is None:
        return Card("Accuracy", shown(after), told=told)
    change = f"{100 * (after - before):+.2f} points" if share else f"{after - before:+.2f}"
    against = f"{change} against the unpruned net".replace("-", "−")
    return Card("Accuracy", shown(after), numbers=f"{shown(before)} → {shown(after)}", told=(against, *told))


def totals(data: ReportData) -> list[tuple[str, list[str]]]:
    """The rows of the table of exact costs."""
    in_full = {
        "network_flops": f"{NAMES['flops']} with linear layers",
        "network_params": "All parameters",
        LATENCY: f"{capital(LATENCY)} of the example's batch, in ns, by a model of this machine",
    }
    rows = []
    for metric in filter(data.before.__contains__, NAMES):
        full, left = data.before[metric], (data.after or {}).get(metric)
        cells = [f"{full:,}"]
        if left is not None:
            factor = f"{full / left:.2f}×" if left else "–"
            cells += [f"{left:,}", part_of(left, full), factor]
        elif data.after:
            cells += ["–"] * 3
        rows.append((in_full.get(metric, capital(metric)), cells))
    return rows


# ------------------------------------------------------------ words


def legend(facts: Facts) -> list[tuple[str, str]]:
    """What the signs in this drawing mean."""
    marks = {mark for fact in facts.nodes.values() for mark in fact.marks}
    pruned = facts.data.layers is not None
    entries = [("alive", "channel that lives"), ("track", "channel that is dead")] if pruned else [("alive", "channel")]
    entries += [(mark, told) for mark, told in MARKS.items() if mark in marks]
    gone = any(fact.gone for fact in facts.nodes.values())
    return [*entries, *([("vanished", "gone: nothing of it is left")] if gone else [])]


def joins(facts: Facts) -> list[tuple[int, str, str]]:
    """How often each way of joining is used, the most frequent first."""
    known = Counter(filter(None, map(facts.became, facts.nodes))) if facts.data.joins is not None else Counter()
    return [(count, *words) for words, count in known.most_common()]


def constraints(seen: Inspection) -> list[tuple[str, str, Rows]]:
    """Guards, freezes, leaves, streams and specialisations, each with its reason."""
    freezes = []
    for freeze in seen.freezes:
        kept = f"keeps {percent(freeze.volume_share)} % of the volume"
        layers = f": {listing(freeze.layers)}" if freeze.layers else ""
        freezes.append((freeze.op, f"{freeze.why}{at(freeze.source)}; {kept}{layers}. To free it: {freeze.remedy}."))
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
        ("Without a gate", "Layers that follow others, or stay as they are.", ungated),
        ("Residual streams", "Adds that share channels.", stream_rows(seen)),
        ("Pooling blocks", "Adds that no identity reaches.", pooling_rows(seen)),
        ("Specialised to the example", asserted, specialisation_rows(seen)),
    ]
    return [part for part in parts if part[2]]


def settings(data: ReportData) -> Rows:
    seconds = [("time", text.duration(data.seconds))] if data.seconds is not None else []
    return [*((str(name), _in_words(value)) for name, value in data.settings.items()), *seconds]


def _in_words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_in_words(entry)}" for key, entry in value.items()) or "–"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_in_words, value)) or "–"
    return f"{value:.6g}" if isinstance(value, float) else "–" if value is None else str(value)
