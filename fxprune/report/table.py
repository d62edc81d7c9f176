"""One row per convolution, at any width down to 80 columns."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fxprune.inspection import Inspection, LayerInfo
from fxprune.report.notes import Notes
from fxprune.report.text import fold_name, human, percent

_COLUMNS = ("conv", "ch", "gate", "area", "volume", "%", "FLOPs", "%", "into", "note")
_LEFT = {"conv", "into", "note"}
_NARROWEST_NAME = 12


def layer_table(seen: Inspection, notes: Notes, width: int) -> Table:
    """All that fits on a line; names that do not are broken before dots."""
    rows = [_cells(layer, seen, notes) for layer in seen.layers]
    widths = [max(len(row[column]) for row in [list(_COLUMNS), *rows]) for column in range(len(_COLUMNS))]
    shown = [column for column in range(len(_COLUMNS)) if column == 0 or any(row[column] for row in rows)]
    taken = sum(widths[column] for column in shown[1:])
    gap = 2 if widths[0] + taken + 2 * len(shown) <= width else 1
    name_width = max(_NARROWEST_NAME, min(widths[0], width - taken - gap * len(shown)))

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    for column in shown:
        justify = "left" if _COLUMNS[column] in _LEFT else "right"
        least = name_width if column == 0 else widths[column]
        table.add_column(_COLUMNS[column], justify=justify, overflow="fold", min_width=least)  # type: ignore[arg-type]
    for layer, row in zip(seen.layers, rows, strict=True):
        row[0] = fold_name(row[0], name_width)
        table.add_row(*(Text(row[column], style=layer_style(layer) if column == 0 else "") for column in shown))
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
    """Channels per gate, and what holds them together if it is more than one."""
    if not layer.gates:
        return "-"
    held = {"channel": "", "group": " g", "group norm": " gn"}
    return f"{layer.channels // layer.gates}{held.get(layer.grain, '')}"


def into(layer: LayerInfo, seen: Inspection) -> str:
    """The residual streams that the layer writes, and how many concats read it."""
    parts = []
    if layer.streams:
        parts.append(layer.streams[0] + (f"+{len(layer.streams) - 1}" if len(layer.streams) > 1 else ""))
    concats = sum(seen.nodes[join]["kind"] == "cat" for join in layer.writes)
    if concats:
        parts.append(f"{concats}cat")
    return " ".join(parts)


def layer_style(layer: LayerInfo) -> str:
    """Colours say again what the notes say: nothing is lost without them."""
    if layer.ungated:
        return "red" if not layer.prunable else "yellow"
    return "green" if layer.guarded else ""
