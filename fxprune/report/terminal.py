"""Tables for the terminal: an inspection as a table or a tree, with what stands above and below it, and a profile."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Text
from rich.tree import Tree

from fxprune.analysis.inspection import FreezeInfo, Inspection, LayerInfo, plain
from fxprune.latency.profile import Profile
from fxprune.report.text import NAMES, fold_name, heads, human, listing, lower_bound, percent, plural
from fxprune.trace.source_lines import short_source

SCHEMA = "fxprune.inspect/1"
_NARROWEST = 72  # a narrower table would lose its numbers


def plain_console() -> Console:
    """Prints texts as they are, on lines that a table has room on."""
    console = Console(markup=False, highlight=False, emoji=False)
    console.width = max(console.width, _NARROWEST)
    return console


def as_json(seen: Inspection, budget: float | None = None) -> str:
    """One object: ``schema``, everything that the inspection holds, and ``budget`` (null if none was asked about)."""
    asked = None
    if budget is not None:
        asked = {"fraction": budget, "reachable": {metric: reachable(seen, metric, budget) for metric in seen.cost}}
    return json.dumps({"schema": SCHEMA, **plain(seen.as_dict()), "budget": asked}, indent=2, allow_nan=False)


@dataclass(frozen=True)
class Notes:
    """``marks`` per layer name; ``legend`` resolves all but the ``f`` marks, which ``freezes`` does."""

    marks: dict[str, str]
    legend: tuple[tuple[str, str], ...]
    freezes: tuple[tuple[str, FreezeInfo], ...]


def collect(seen: Inspection) -> Notes:
    """Give every reason a mark: g for guarded, f for frozen, n for other layers without a gate."""
    costly = (freeze for freeze in seen.freezes if freeze.volume_share > 0)
    freezes = tuple((f"f{n}", freeze) for n, freeze in enumerate(costly, 1))
    frozen: dict[str, str] = {}
    for mark, freeze in freezes:
        for name in freeze.layers:
            frozen[name] = f"{frozen[name]}+" if name in frozen and frozen[name][-1] != "+" else frozen.get(name, mark)
    reasons: dict[str, dict[str, str]] = {"g": {}, "n": {}}

    def mark_of(letter: str, reason: str) -> str:
        return reasons[letter].setdefault(reason, f"{letter}{len(reasons[letter]) + 1}")

    marks: dict[str, str] = {}
    for layer in seen.layers:
        own = []
        if layer.guarded:
            own.append(mark_of("g", f"guarded: {layer.guarded}"))
        if layer.name in frozen:
            own.append(frozen[layer.name])
        elif layer.ungated:
            stays = "" if layer.prunable else " (all its channels stay)"
            own.append(mark_of("n", f"no gate: {layer.ungated}{stays}"))
        if layer.calls > 1:
            own.append(f"{layer.calls}x")
        marks[layer.name] = " ".join(own)
    legend = [(mark, reason) for of_letter in reasons.values() for reason, mark in of_letter.items()]
    if any(layer.calls > 1 for layer in seen.layers):
        legend.append(("2x", "called so many times; the area is that of one call, the costs are those of all"))
    return Notes(marks, tuple(legend), freezes)


_GRAINS = {"group": ("g", "a group of the convolution"), "group norm": ("gn", "a group of the norm behind it")}
_COLUMNS = ("layer", "ch", "gate", "area", NAMES["volume"], "%", NAMES["flops"], "%", "into", "note")
_LEFT = {"into", "note"}
_NARROWEST_NAME = 12


def layer_table(seen: Inspection, notes: Notes, width: int) -> Table:
    """All that fits on a line; names that do not are broken before dots."""
    rows = [_cells(layer, seen, notes) for layer in seen.layers]
    names, *columns = zip(_COLUMNS, *rows, strict=True)
    shown = [column for column in columns if any(column[1:])]
    widths = [max(map(len, column)) for column in shown]
    longest, gaps = max(map(len, names)), len(shown) + 1
    gap = 2 if longest + sum(widths) + 2 * gaps <= width else 1
    name_width = max(_NARROWEST_NAME, min(longest, width - sum(widths) - gap * gaps))

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    table.add_column(names[0], overflow="fold", min_width=name_width)
    for (title, *_), least in zip(shown, widths, strict=True):
        table.add_column(title, justify="left" if title in _LEFT else "right", overflow="fold", min_width=least)
    for layer, cells in zip(seen.layers, zip(*(column[1:] for column in shown), strict=True), strict=True):
        table.add_row(Text(fold_name(layer.name, name_width), style=layer_style(layer)), *map(Text, cells))
    return table


def _cells(layer: LayerInfo, seen: Inspection, notes: Notes) -> list[str]:
    return [
        layer.name,
        str(layer.channels),
        _gate(layer),
        str(layer.area),
        human(layer.volume),
        percent(layer.volume_share),
        human(layer.flops),
        percent(layer.flops_share),
        into(layer, seen),
        notes.marks[layer.name],
    ]


def _gate(layer: LayerInfo) -> str:
    """Channels per gate; of attention how many gates of each kind."""
    if layer.heads:
        return heads({unit.name: unit.gates for unit in layer.heads}, short=True)
    mark, _ = _GRAINS.get(layer.grain, ("", ""))
    return f"{layer.channels // layer.gates} {mark}".rstrip() if layer.gates else "-"


def into(layer: LayerInfo, seen: Inspection) -> str:
    """The residual streams that the layer writes, and how many concats read it."""
    first = layer.streams[0] if layer.streams else ""
    more = f"+{len(layer.streams) - 1}" if len(layer.streams) > 1 else ""
    concats = sum(seen.nodes[join]["kind"] == "cat" for join in layer.writes)
    return f"{first}{more} {f'{concats}cat' if concats else ''}".strip()


def layer_style(layer: LayerInfo) -> str:
    """Colours repeat the notes: nothing is lost without them."""
    if layer.ungated:
        return "red" if not layer.prunable else "yellow"
    return "green" if layer.guarded else ""


def layer_tree(seen: Inspection, notes: Notes) -> Tree:
    """A branch per module, a leaf per layer; every branch has the volume of all that is below it."""
    volumes: Counter[str] = Counter()
    for layer in seen.layers:
        volumes.update(dict.fromkeys(_paths(layer.name), layer.volume))
    total = max(seen.cost["volume"], 1)
    root = Tree(Text(f"{seen.model}  {human(seen.cost['volume'])}", style="bold"))
    branches: dict[str, Tree] = {"": root}
    for layer in seen.layers:
        for path in _paths(layer.name):
            if path not in branches:
                above, _, own = path.rpartition(".")
                label = Text(f"{own}  {human(volumes[path])}  {percent(volumes[path] / total)} %")
                branches[path] = branches[above].add(label)
        branches[layer.name].label = _leaf(layer, seen, notes)
    return root


def _paths(name: str) -> list[str]:
    """
    >>> _paths("layer1.0.conv1")
    ['layer1', 'layer1.0', 'layer1.0.conv1']
    """
    return list(accumulate(name.split("."), "{}.{}".format))


def _leaf(layer: LayerInfo, seen: Inspection, notes: Notes) -> Text:
    label = Text(layer.name.rpartition(".")[2], style=layer_style(layer))
    of_heads = heads({unit.name: unit.gates for unit in layer.heads})
    costs = human(layer.volume), f"{percent(layer.volume_share)} %"
    facts = (of_heads, *costs, into(layer, seen), notes.marks[layer.name])
    return label.append("  ".join(("", f"{layer.channels} ch", *filter(None, facts))), style="default")


_LONGEST_LIST = 12


def head(seen: Inspection, budget: float | None = None) -> Iterator[RenderableType]:
    """Model, inputs, costs and how far they can come down."""
    inputs = f"{'input' if len(seen.inputs) == 1 else 'inputs'} {', '.join(seen.inputs)}"
    yield Text(f"{seen.model}, {inputs}", style="bold")
    yield ""
    yield _costs(seen)
    yield ""
    gated = sum(layer.gates > 0 for layer in seen.layers)
    gates = sum(layer.gates for layer in seen.layers)
    of = f"{gated:,} of {plural(len(seen.layers), 'layer')} with {plural(gates, 'gate')}"
    yield f"Prunable: {percent(seen.prunable)} % of the volume; {of}."
    if budget is not None:
        yield ""
        yield from _budget(seen, budget)


def _costs(seen: Inspection) -> Table:
    numbers = (Column(title, justify="right", no_wrap=True) for title in ("", "exact", "smallest net", "as budget"))
    table = Table("cost", *numbers, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for metric, full in seen.cost.items():
        least = seen.smallest[metric]
        table.add_row(NAMES[metric], human(full), f"{full:,}", f"{least:,}", lower_bound(seen.smallest_budget[metric]))
    return table


def _budget(seen: Inspection, budget: float) -> Iterator[RenderableType]:
    yield Text(f"Budget {budget:.4g}", style="bold")
    rows = []
    for metric, full in seen.cost.items():
        smallest = f"{lower_bound(seen.smallest_budget[metric])} ({seen.smallest[metric]:,})"
        out = f"out of reach, the smallest budget is {smallest}"
        answer = "reachable" if reachable(seen, metric, budget) else out
        rows.append((NAMES[metric], f"{int(budget * full):,}: {answer}"))
    yield _rows(rows)


def reachable(seen: Inspection, metric: str, budget: float) -> bool:
    return seen.smallest[metric] <= budget * seen.cost[metric]


def foot(seen: Inspection, notes: Notes, *, grains: bool = True) -> Iterator[RenderableType]:
    """What the marks and streams of the table mean, and why channels must stay."""
    used = [": ".join(words) for grain, words in _GRAINS.items() if any(layer.grain == grain for layer in seen.layers)]
    gate = [("gate", "channels per gate" + (f" ({', '.join(used)})" if used else ""))] if grains else []
    if grains and any(layer.heads for layer in seen.layers):
        gate.append(("", "12h 64q 64v: 12 heads, and as many channels of queries and of values in each of them"))
    yield from _section("Notes", [*gate, *notes.legend])
    yield from _section("Streams", stream_rows(seen))
    yield from _section("Pooling blocks (joins that no identity reaches, with no way around)", pooling_rows(seen))
    yield from _freezes(seen, notes)
    leaves = [(leaf.path, f"{leaf.type}{at(leaf.source)}: {leaf.reason}") for leaf in seen.leaves]
    yield from _section("Leaves (submodules that could not be traced)", leaves)
    yield from _section("Specialised to the example (other inputs are refused)", specialisation_rows(seen))


def stream_rows(seen: Inspection) -> list[tuple[str, str]]:
    rows = []
    for name, joins in seen.streams.items():
        writers = [layer.name for layer in seen.layers if name in layer.streams]
        by = f", written by {listing(writers)}" if writers else ""
        rows.append((name, plural(len(joins), "add") + by))
    return rows


def pooling_rows(seen: Inspection) -> list[tuple[str, str]]:
    rows = []
    for block in seen.pooling_blocks:
        operands = [seen.nodes[a]["label"] for a, b in seen.edges if b == block]
        sign = " + " if seen.nodes[block]["kind"] == "add" else ", "
        rows.append((block, sign.join(operands) + at(seen.nodes[block]["source"])))
    return rows


def _freezes(seen: Inspection, notes: Notes) -> Iterator[RenderableType]:
    free = len(seen.freezes) - len(notes.freezes)
    kept = {name for _, freeze in notes.freezes for name in freeze.layers}
    share = sum(layer.volume_share for layer in seen.layers if layer.name in kept)
    rows = []
    for position, (mark, freeze) in enumerate(notes.freezes):
        lines = [
            f"{freeze.op}{at(freeze.source)}: {freeze.why}",
            f"keeps {percent(freeze.volume_share)} % of the volume: {listing(freeze.layers)}",
        ]
        if freeze.alone_share < freeze.volume_share:
            lines.append(f"freeing it alone would free {percent(freeze.alone_share)} %, others keep the rest")
        later = notes.freezes[position + 1 :]
        if not later or later[0][1].remedy != freeze.remedy:  # freezes in a row that share a remedy say it once
            lines.append(f"to free it: {freeze.remedy}")
        rows.append((mark, "\n".join(lines)))
    if free:
        more = "more op" if rows else "op"
        rows.append(
            ("", f"{plural(free, more)} {'keeps' if free == 1 else 'keep'} no {'further ' if rows else ''}volume")
        )
    yield from _section(f"Frozen (ops that keep every channel): {percent(share)} % of the volume", rows)


def specialisation_rows(seen: Inspection) -> list[tuple[str, str]]:
    told = {"branch": "a branch took {}", "value": "Python read {}", "training": "self.training was read as {}"}
    counted = Counter((s.kind, repr(s.value), s.source) for s in seen.specialisations)
    rows = []
    for (kind, value, source), count in counted.items():
        times = f", {count} times" if count > 1 else ""
        rows.append((short_source(source) or "-", told.get(kind, kind + " {}").format(value) + times))
    if len(rows) > _LONGEST_LIST:
        rows[_LONGEST_LIST:] = [("", f"and {len(rows) - _LONGEST_LIST} more (all of them with --json)")]
    return rows


def at(source: str | None) -> str:
    return f" at {short_source(source)}" if source else ""


def _section(title: str, rows: Iterable[tuple[str, str]]) -> Iterator[RenderableType]:
    every = list(rows)
    if every:
        yield ""
        yield Text(title, style="bold")
        yield _rows(every)


def _rows(rows: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(Column(overflow="fold"), Column(overflow="fold"), padding=(0, 2, 0, 0))
    for key, text in rows:
        grid.add_row(Text(key), Text(text))
    return grid


_BAR, _WIDE = 12, 100


def profile_table(taken: Profile, width: int, most: int | None = None) -> Table:
    """All ops, or the slowest ``most``; bars where a line of ``width`` has room for them."""
    total = sum(op.seconds for op in taken.ops) or 1.0
    slowest = sorted(op.seconds for op in taken.ops)[-most:] if most else [0.0]
    texts = (Column(title, no_wrap=True) for title in ("op", "result"))
    titles = ("µs", "%", NAMES["flops"], "GFLOP/s", "FLOPs/B")
    numbers = (Column(title, justify="right", no_wrap=True) for title in titles)
    bars = [Column("", no_wrap=True)] if width >= _WIDE else []
    columns = (Column("layer", overflow="fold"), *texts, *numbers, *bars)
    table = Table(*columns, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    longest = max((op.seconds for op in taken.ops), default=1.0)
    for op in taken.ops:
        if op.seconds < slowest[0]:
            continue
        work = [human(op.flops), f"{op.flops / op.seconds / 1e9:.1f}", f"{op.intensity:.1f}"] if op.flops else [""] * 3
        bar = Text("█" * round(_BAR * op.seconds / longest), style=_COLOURS.get(op.kind, ""))
        table.add_row(
            op.layer, op.op, "x".join(map(str, op.shape)), f"{1e6 * op.seconds:.0f}", percent(op.seconds / total),
            *work, *([bar] if bars else []),
        )  # fmt: skip
    return table


def profile_summary(taken: Profile) -> str:
    """One line: the whole, and the share of each kind of op."""
    shares = ", ".join(f"{kind} {percent(share)} %" for kind, share in taken.by_kind.items())
    lost = taken.by_kind.get("join", 0.0)
    return (
        f"{1e3 * taken.seconds:.2f} ms for the whole net. Of the time of its ops: {shares}.\n"
        f"Lost to joins: {percent(lost)} %."
    )


_COLOURS = {"convolution": "blue", "linear": "blue", "join": "red", "norm": "cyan", "activation": "green"}
