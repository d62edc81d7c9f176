"""The figures of a comparison; drawing them twice gives the same files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fxprune.compare.plan import Entry
from fxprune.compare.results import Group, Result, mean

_AXES = ("volume", "flops", "latency")
_MARKERS = "osD^vP*X<>ph"
_COLOURS = (*(f"C{number}" for number in range(10)), "black", "navy", "darkgreen", "darkred")


def draw(result: Result, folder: Path) -> list[str]:
    """Names of the figures that were drawn: those with data. ImportError without matplotlib."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "fxprune", "font.size": 9}):
        from matplotlib.figure import Figure  # draws into files only: no window, no state of pyplot's

        def accuracy(entries: list[Entry], axes: list[str]) -> Callable[[Any], bool]:
            return lambda figure: _accuracy(figure, result, entries, axes)

        todo = {_name(group, result): accuracy(group.entries, list(_AXES)) for group in result.groups}
        todo["neurons"] = lambda figure: _neurons(figure, result)
        todo["metrics"] = accuracy([entry for group in result.metric_groups for entry in group], ["flops", "volume"])
        drawn = []
        for name, work in todo.items():
            figure = Figure(figsize=(10, 4.2) if name in ("neurons", "metrics") else (14, 4.2), layout="constrained")
            if not work(figure):
                continue
            figure.savefig(folder / f"{name}.png", dpi=110, metadata={"Software": None})
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            drawn.append(name)
    return drawn


def _name(group: Group, result: Result) -> str:
    """``accuracy`` for the group of the reference; the names of the others say how they differ from it."""
    own = result.plan.entries[result.plan.reference]
    other = [group.metric] if group.metric != own.metric else []
    other += [] if group.distilled == own.distilled else ["distilled" if group.distilled else "labels"]
    return "-".join(["accuracy", *other])


def _accuracy(figure: Any, result: Result, entries: list[Entry], axes: list[str]) -> bool:
    """A line per entry over its budgets, a panel per cost."""
    entries = [entry for entry in entries if any(result.cell(entry.name, share) for share in entry.budgets.values())]
    if not entries:
        return False
    panels = figure.subplots(1, len(axes), sharey=True)
    for panel, axis in zip(panels, axes, strict=True):
        path, label = _axis(axis, entries)
        for number, entry in enumerate(entries):
            cells = [result.cell(entry.name, share) for share in sorted(entry.budgets.values(), reverse=True)]
            cells = [cell for cell in cells if cell]
            places = [math.nan if (cost := mean(cell, *path)) is None else cost for cell in cells]
            values = [mean(cell, "accuracy") or 0.0 for cell in cells]
            ends = [[row["accuracy"] for row in cell] for cell in cells]
            panel.errorbar(
                places, values, color=_COLOURS[number % len(_COLOURS)], marker=_MARKERS[number % len(_MARKERS)],
                capsize=2, linewidth=1.2, markersize=4, label=entry.name, linestyle="--" if entry.tool else "-",
                yerr=[[max(0.0, v - min(e)) for v, e in zip(values, ends, strict=True)],
                      [max(0.0, max(e) - v) for v, e in zip(values, ends, strict=True)]],
            )  # fmt: skip
        taught = mean(result.teachers, "accuracy")
        if taught is not None:
            panel.axhline(taught, color="black", linestyle=":", linewidth=1, label="teacher")
        if axis == "latency":
            panel.invert_xaxis()  # smaller to the right, as in the other panels
        else:
            _log_axis(panel)
        panel.set(xlabel=label)
        panel.grid(alpha=0.3)
    panels[0].set(ylabel="accuracy %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return True


def _axis(name: str, entries: list[Entry]) -> tuple[tuple[str, str], str]:
    """The keys of that cost in a row, and the label. Times are those of the batch size that the budgets are about."""
    if name != "latency":
        return ("factor", name), {"volume": "volume factor", "flops": "FLOP factor"}[name]
    batches = {entry.batch_size for entry in entries if not entry.counted and entry.batch_size}
    batch = str(batches.pop()) if len(batches) == 1 else "32"
    return ("latency", batch), f"latency of a batch of {batch}, over the unpruned net's"


def _log_axis(panel: Any) -> None:
    """Ticks at powers of two, as factors are usually given, and at least two of them."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    panel.set_xscale("log", base=2)
    ends = [math.log2(max(end, 1e-3)) for end in panel.get_xlim()]
    panel.set_xlim(2 ** (math.floor(ends[0]) - 0.1), 2 ** (math.ceil(ends[1]) + 0.1))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())


def _neurons(figure: Any, result: Result) -> bool:
    """Bars per block: the full net and each budget of the reference entry."""
    entry = result.plan.entries[result.plan.reference]
    cells = {text: result.cell(entry.name, share) for text, share in entry.budgets.items()}
    cells = {text: cell for text, cell in cells.items() if cell}
    if not cells:
        return False
    full = blocks(next(iter(cells.values()))[0]["full_widths"])
    series = {"full": [float(count) for count in full.values()]}
    for text, cell in cells.items():
        nets = [blocks(row["widths"]) for row in cell]
        series[text] = [sum(net.get(block, 0) for net in nets) / len(nets) for block in full]
    panel, width = figure.subplots(), 0.8 / len(series)
    for number, (text, heights) in enumerate(series.items()):
        places = [place + (number - (len(series) - 1) / 2) * width for place in range(len(full))]
        panel.bar(places, heights, width, label=text, color="0.7" if text == "full" else f"C{number - 1}")
    panel.set_xticks(range(len(full)), list(full), rotation=90 if len(full) > 12 else 0)
    panel.set(ylabel="channels", title=f"{entry.name}: channels of the convolutions, per block")
    panel.legend()
    return True


def blocks(widths: dict[str, int]) -> dict[str, int]:
    """Channels per block: the outermost module that holds two convolutions itself, or else the one around it.

    >>> blocks({"conv": 8, "stage1.conv1": 8, "stage1.conv2": 8, "stage1.shortcut.0": 4, "stage2.conv1": 16})
    {'conv': 8, 'stage1': 20, 'stage2': 16}
    """
    held = Counter(name.rpartition(".")[0] for name in widths)
    channels: Counter[str] = Counter()
    for name, count in widths.items():
        above = name.split(".")[:-1]
        places = [".".join(above[: depth + 1]) for depth in range(len(above))]
        # for example layer1.0, neither layer1 nor layer1.0.shortcut
        block = next((place for place in places if held[place] > 1), ".".join(above) or name)
        channels[block] += count
    return dict(channels)
