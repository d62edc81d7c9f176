"""The parts of the page that are text and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fxprune.inspection import Inspection
from fxprune.report.markup import Element, add, also
from fxprune.report.notes import collect
from fxprune.report.page_data import ReportData
from fxprune.report.page_facts import BECAME
from fxprune.report.summary import pooling_rows, specialisation_rows, stream_rows
from fxprune.report.text import human, listing, percent, plural
from fxprune.tracing.frames import short_source

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
    definitions(parent, [*((str(name), _said(value)) for name, value in data.settings.items()), *seconds])


def _said(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_said(entry)}" for key, entry in value.items()) or "–"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_said, value)) or "–"
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
