"""A report as one HTML page that needs nothing else: no network, no fonts, no scripts of others."""

from __future__ import annotations

import base64
import hashlib
import os
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree as ET

from fxprune.analysis.inspection import Inspection
from fxprune.files import as_path, write_atomically
from fxprune.report import parts as tables
from fxprune.report.blocks import Block
from fxprune.report.facts import Facts, ReportData, change, layer_names, of_run
from fxprune.report.markup import Element, add, also
from fxprune.report.page_graph import Graph
from fxprune.report.parts import NAMES, Bar, bars, cards, curves, fraction, totals
from fxprune.report.text import plural

PAGE = "report.html"
_COUNTED = "Per sample. Volume: positions of all output channels. FLOPs: two per multiply-add. Of convolutions only; "
_COUNTED += "a linear layer that is applied at every position of a map is one."
_BARS = 44  # more than these cannot be told apart


def write_page(folder: str | os.PathLike[str], file: Path | None = None) -> Path:
    """Write the page of a run, into its folder if no other ``file`` is named."""
    from fxprune import __version__

    path = as_path(folder, "folder")
    made = path / PAGE if file is None else file
    write_atomically(made, render(of_run(path, __version__)))
    return made


def render(data: ReportData) -> str:
    """The whole page."""
    root = ET.Element("html", lang="en")
    _head(root, data)
    body = add(root, "body")
    add(body, "a", "Skip to the numbers", href="#costs", class_="skip")
    _title(body, data)
    main = add(body, "main")
    tables.missing(main, data.missing)
    cards(main, data)
    seen = data.inspection
    if seen is not None:
        graph = Graph(data)
        _network(main, data, seen, graph)
        _channels(main, data, graph.facts)
    if data.run is not None:
        part = tables.section(main, "training", "Training")
        if not curves(part, data):
            add(part, "p", "Nothing was logged yet.")
    part = tables.section(main, "costs", "Costs", _COUNTED)
    totals(part, data)
    if seen is not None:
        tables.cost_table(part, data, seen)
        tables.constraints(tables.section(main, "constraints", "What must stay, and why"), seen)
    if data.run is not None:
        tables.certificate(tables.section(main, "certificate", "Certificate"), data)
        if data.settings:
            tables.settings(tables.section(main, "settings", "Settings of the run"), data)
    _foot(body, data)
    text = ET.tostring(root, encoding="unicode", method="html")
    return f"<!DOCTYPE html>\n{text}\n"


def _head(root: Element, data: ReportData) -> None:
    head = add(root, "head")
    add(head, "meta", charset="utf-8")
    script, style = (
        resources.files("fxprune.report").joinpath(f"page.{kind}").read_text("utf-8") for kind in ("js", "css")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head.append(ET.Element("meta", {"http-equiv": "Content-Security-Policy", "content": policy}))
    add(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    add(head, "meta", name="color-scheme", content="light dark")
    add(head, "link", rel="icon", href="data:,")
    add(head, "title", f"{data.model}: {'pruning report' if data.run is not None else 'what can be pruned'}")
    add(head, "style").text = style
    add(head, "script", defer="").text = script


def _title(body: Element, data: ReportData) -> None:
    header = add(body, "header")
    line = add(header, "div", class_="line")
    words = add(line, "div")
    add(words, "p", "fxprune report" if data.run is not None else "fxprune inspect", class_="over")
    add(words, "h1", data.model)
    sub = add(words, "p", class_="sub")
    if data.stage is not None:
        add(sub, "span", data.stage, class_=f"chip {data.stage}")
    budgets = ", ".join(f"{fraction(share)} of the {NAMES.get(name, name)}" for name, share in data.budget.items())
    if data.stage is not None:
        also(sub, f" Budget: {budgets}")
    elif data.budget:
        also(sub, f"Asked about a budget of {fraction(next(iter(data.budget.values())))}")
    if data.inspection is not None:
        also(sub, f"{' · ' if data.budget else ''}Input: {', '.join(data.inspection.inputs)}")
    if data.run is not None:
        also(sub, f" · Run: {data.run}")
    add(line, "button", "Dark", id="theme", type="button", aria_pressed="false", title="Switch between light and dark")
    links = {"network": "Network", "channels": "Channels", "training": "Training", "costs": "Costs",
             "constraints": "Constraints", "certificate": "Certificate", "settings": "Settings"}  # fmt: skip
    left_out = set() if data.inspection is not None else {"network", "channels", "constraints"}
    left_out |= set() if data.run is not None else {"training", "certificate", "settings"}
    left_out |= set() if data.settings else {"settings"}
    nav = add(header, "nav", aria_label="Parts of this page")
    for name, title in links.items():
        if name not in left_out:
            add(nav, "a", title, href=f"#{name}")


def _network(main: Element, data: ReportData, seen: Inspection, graph: Graph) -> None:
    told = "A box per convolution, a pill per join; in the bars a channel is filled if it lives. "
    if data.layers is None:
        told = "A box per convolution, a pill per join. "
    many = sum(1 for _ in graph.root.blocks()) > 1
    told += "Hover or focus one to see its numbers"
    told += "; click a block, or press Enter, to open or close it." if many else "."
    part = tables.section(main, "network", "Network", told)
    columns = add(part, "div", class_="columns")
    box = add(columns, "div", class_="scroll graph", id="graph-box")
    graph.write(box)
    side = add(columns, "div", class_="side")
    if many:
        buttons = add(side, "p", class_="buttons")
        add(buttons, "button", "Open all", id="open-all", type="button")
        add(buttons, "button", "Close all", id="close-all", type="button")
    _legend(side, data, graph.facts)
    tables.joins_table(side, data, seen)


def _legend(side: Element, data: ReportData, facts: Facts) -> None:
    marks = {mark for fact in facts.nodes.values() for mark in fact.marks}
    add(side, "h3", "Legend")
    rows = add(side, "ul", class_="legend")
    pruned = data.layers is not None
    entries = [
        ("alive", "channel that lives" if pruned else "channel", True),
        ("track", "channel that is dead", pruned),
        ("guarded", "guarded: one channel must live", "guarded" in marks),
        ("frozen", "frozen: every channel stays", "frozen" in marks),
        ("ungated", "no gate of its own", "ungated" in marks),
        ("pooling", "pooling block: one side must live", "pooling" in marks),
        ("vanished", "gone: nothing of it is left", any(fact.gone for fact in facts.nodes.values())),
    ]
    for kind, text, used in entries:
        if used:
            row = add(rows, "li")
            add(row, "i", class_=f"swatch {kind}", aria_hidden="true")
            add(row, "span", text)


def _channels(main: Element, data: ReportData, facts: Facts) -> None:
    title = "Channels per block"
    told = "As high as before pruning, filled as far as they live." if data.layers is not None else "Before pruning."
    part = tables.section(main, "channels", title, told)
    box = add(part, "div", class_="scroll", tabindex=0, role="region", aria_label=title)
    entries = []
    for name, layers in groups(facts.tree, facts.seen):
        infos = [facts.infos[layer] for layer in layers]
        before = sum(info.channels for info in infos)
        left = [data.layers[layer] for layer in layers] if data.layers is not None else None
        after = None if left is None else sum(entry.channels for entry in left)
        lines = [
            name,
            plural(before, "channel") if after is None else f"{after:,} of {before:,} channels live",
            change("volume", sum(i.volume for i in infos), None if left is None else sum(e.volume for e in left)),
            plural(len(layers), "convolution"),
        ]
        entries.append(Bar(name, before, after, "\n".join(lines)))
    bars(box, title, entries)


def groups(root: Block, seen: Inspection, most: int = _BARS) -> list[tuple[str, list[str]]]:
    """Blocks and the convolutions in them, as finely as there is room for; layers outside of blocks alone."""
    found = [(block, key) for key, block in root.members.items()]
    while True:
        finer = [
            (inner, name)
            for block, key in found
            for name, inner in ([(key, block)] if block is None or _is_last(block) else block.members.items())
        ]
        if len(finer) > most or len(finer) == len(found):
            break
        found = finer
    named = [
        (seen.nodes[key]["label"] if block is None else block.path, [key] if block is None else list(block.nodes()))
        for block, key in found
    ]
    convs: dict[str, list[str]] = {}  # a layer that is called several times is one
    for name, nodes in named:
        known = convs.setdefault(name, [])
        known += [layer for layer in layer_names(seen, nodes) if layer not in known]
    return [(name, layers) for name, layers in convs.items() if layers]


def _is_last(block: Block) -> bool:
    return all(inner is None for inner in block.members.values())


def _foot(body: Element, data: ReportData) -> None:
    add(body, "footer", f"Written by fxprune {data.version}. This page is one file: it loads nothing.")
    add(body, "div", id="tip", role="tooltip", hidden="")
