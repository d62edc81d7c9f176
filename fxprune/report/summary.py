"""What stands above and below the table: costs, reach, streams, freezes, leaves, specialisations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fxprune.inspection import Inspection
from fxprune.report.notes import Notes, grain_legend
from fxprune.report.text import human, listing, lower_bound, percent, plural
from fxprune.tracing.frames import short_source

METRICS = {
    "volume": "volume",
    "flops": "FLOPs",
    "params": "params",
    "network_flops": "network FLOPs",
    "network_params": "network params",
}
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
    of = f"{gated:,} of {plural(len(seen.layers), 'convolution')} with {plural(gates, 'gate')}"
    yield f"Prunable: {percent(seen.prunable)} % of the volume; {of}."
    if budget is not None:
        yield ""
        yield from _budget(seen, budget)


def _costs(seen: Inspection) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("cost")
    for title in ("", "exact", "smallest net", "as budget"):
        table.add_column(title, justify="right", no_wrap=True)
    for metric, title in METRICS.items():
        full, least = seen.cost[metric], seen.smallest[metric]
        table.add_row(title, human(full), f"{full:,}", f"{least:,}", lower_bound(seen.smallest_budget[metric]))
    return table


def _budget(seen: Inspection, budget: float) -> Iterator[RenderableType]:
    yield Text(f"Budget {budget:.4g}", style="bold")
    rows = []
    for metric, title in METRICS.items():
        allowed = f"{int(budget * seen.cost[metric]):,}"
        if reachable(seen, metric, budget):
            rows.append((title, f"{allowed}: reachable"))
        else:
            smallest = f"{lower_bound(seen.smallest_budget[metric])} ({seen.smallest[metric]:,})"
            rows.append((title, f"{allowed}: out of reach, the smallest budget is {smallest}"))
    yield _rows(rows)


def reachable(seen: Inspection, metric: str, budget: float) -> bool:
    return seen.smallest[metric] <= budget * seen.cost[metric]


def foot(seen: Inspection, notes: Notes, *, grains: bool = True) -> Iterator[RenderableType]:
    """Everything that a mark, a stream's name or a missing channel makes one ask."""
    yield from _section("Notes", [*([("gate", grain_legend(seen))] if grains else []), *notes.legend])
    yield from _section("Streams", stream_rows(seen))
    yield from _section("Pooling blocks (adds that no identity reaches)", pooling_rows(seen))
    yield from _freezes(seen, notes)
    leaves = [(leaf.path, f"{leaf.type}{_at(leaf.source)}: {leaf.reason}") for leaf in seen.leaves]
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
        rows.append((block, " + ".join(operands) + _at(seen.nodes[block]["source"])))
    return rows


def _freezes(seen: Inspection, notes: Notes) -> Iterator[RenderableType]:
    free = len(seen.freezes) - len(notes.freezes)
    kept = {name for _, freeze in notes.freezes for name in freeze.layers}
    share = sum(layer.volume_share for layer in seen.layers if layer.name in kept)
    rows = []
    for position, (mark, freeze) in enumerate(notes.freezes):
        lines = [
            f"{freeze.op}{_at(freeze.source)}: {freeze.why}",
            f"keeps {percent(freeze.volume_share)} % of the volume: {listing(freeze.layers)}",
        ]
        if freeze.alone_share < freeze.volume_share:
            lines.append(f"freeing it alone would free {percent(freeze.alone_share)} %, others keep the rest")
        later = notes.freezes[position + 1 :]
        if not later or later[0][1].remedy != freeze.remedy:  # neighbours that share a remedy say it once
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


def _at(source: str | None) -> str:
    return f" at {short_source(source)}" if source else ""


def _section(title: str, rows: Iterable[tuple[str, str]]) -> Iterator[RenderableType]:
    every = list(rows)
    if every:
        yield ""
        yield Text(title, style="bold")
        yield _rows(every)


def _rows(rows: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(overflow="fold")
    grid.add_column(overflow="fold")
    for key, text in rows:
        grid.add_row(Text(key), Text(text))
    return grid
