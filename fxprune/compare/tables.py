"""``compare.md``, ``compare.csv`` and figures: the results of a comparison for readers."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fxprune.compare.figures import draw
from fxprune.compare.plan import TEACHER
from fxprune.compare.results import ROWS, Difference, Group, Result, Row, mean, over, write_rows
from fxprune.cost.model import METRICS
from fxprune.errors import OptionError
from fxprune.files import told, write_atomically

_MINUS = "−"


def markdown(result: Result, figures: Iterable[str]) -> str:
    plan = result.plan
    lines = [f"# Comparison on {_plain(str(plan.model.get('target', 'a model')))}", "", f"`{result.command}`", ""]
    lines += _state(result)
    for group in result.groups:
        if not any(result.cell(entry.name, share) for entry in group.entries for share in group.budgets):
            continue
        lines += ["", f"## {title(group)}", "", *_wide(result, group), "", *_accuracy(result, group)]
        differences = _differences(result, group)
        lines += ["", _DIFFERENCES, "", *differences] if differences else []
    for heading, table in (
        ("Other ways to train the reference", _differences(result, result.variants)),
        ("Regular against mixed blocks", _regular(result)),
    ):
        lines += ["", f"## {heading}", "", *table] if table else []
    for name in figures:
        lines += ["", f"![{caption(name)}]({name}.png)", "", f"*{caption(name)}*"]
    lines += ["", "## Settings", "", *(f"- {name}: {text}" for name, text in _settings(result))]
    return "\n".join(lines) + "\n"


_DIFFERENCES = (
    "Differences in points: mean of those seed by seed, and its 95 % interval (Student's t). *ahead* and *behind*: the "
    "interval does not hold 0."
)


def title(group: Group) -> str:
    return f"Budgets on {_name(group.metric)}{'' if group.distilled else ', taught by labels alone'}"


def caption(figure: str) -> str:
    said = {
        "neurons": "Channels per block of the reference entry, mean over the seeds",
        "metrics": "The same method with budgets on volume and on FLOPs",
    }
    return said.get(figure, "Accuracy against cost: mean, least and largest over the seeds; dotted: the teachers")


def _settings(result: Result) -> list[tuple[str, str]]:
    plan = result.plan
    entries = list(plan.entries.values())
    shared = {k: v for k, v in entries[0].settings.items() if all(entry.settings.get(k) == v for entry in entries)}
    settings = [("model", _told(plan.model)), ("data", _told(plan.data)), ("teacher", _told(plan.teacher))]
    same = all(entry.optimizer == entries[0].optimizer for entry in entries)
    if same:
        settings.append(("optimizer", _told(entries[0].optimizer) if entries[0].optimizer else "the default, Adam"))
    settings.append(("all entries", _told(shared)))
    for entry in entries:
        own: dict[str, Any] = {"method" if entry.method else "tool": entry.what}
        own |= {name: value for name, value in entry.settings.items() if name not in shared}
        own |= {"optimizer": entry.optimizer or "the default, Adam"} if not same else {}
        own |= {"options": entry.options} if entry.options else {}
        own |= {"start": entry.start} if entry.start != TEACHER else {}
        settings.append((f"**{_plain(entry.name)}**", _told(own)))
    return settings + [("machine", text) for text in result.machines if text]


def _state(result: Result) -> list[str]:
    taught = ", ".join(f"{row['accuracy']:.2f} (seed {row['seed']})" for row in result.teachers)
    wanted = sum(len(entry.budgets) for entry in result.plan.entries.values()) * len(result.plan.seeds)
    lines = [f"Teachers, accuracy in %: {taught or 'none yet'}.", f"Pruned nets: {len(result.pruned)} of {wanted}."]
    failed = [f"- {row['key']}: {_plain(str(row['error']))}" for row in result.failed]
    return [*lines, "", "Failed:", *failed] if failed else lines


def _wide(result: Result, group: Group) -> list[str]:
    """Mean accuracies only: an overview."""
    lines = [
        [_plain(entry.name), *(_mean(result.cell(entry.name, share)) for share in group.budgets)]
        for entry in group.entries
    ]
    return table(["mean accuracy %", *group.budgets.values()], lines)


def _accuracy(result: Result, group: Group) -> list[str]:
    head = ["entry", "budget", "accuracy %", "each seed", "volume factor", "FLOP factor", "share of the budget used"]
    reached = any(row.get("reached") is not None for row in result.pruned)
    sizes = list(dict.fromkeys(size for row in result.pruned for size in row.get("latency") or {}))
    lines = []
    for share, budget in group.budgets.items():
        for entry in group.entries:
            cell = result.cell(entry.name, share)
            if not cell:
                continue
            each = ", ".join(f"{row['accuracy']:.2f}" for row in cell)
            factors = [_number(mean(cell, "factor", metric)) for metric in ("volume", "flops")]
            used = _range([row["used"] for row in cell], 3) + (" OVER" if over(cell) else "")
            times = [_number(mean(cell, "latency", size)) for size in sizes]
            line = [_plain(entry.name), budget, _mean(cell), each, *factors, used, *times]
            known = [row["reached"] for row in cell if row.get("reached") is not None]
            lines.append([*line, _range(known, 2) if known else "–"] if reached else line)
    head += [f"latency, batch of {size}" for size in sizes]
    return table([*head, "V/B before harden"] if reached else head, lines)


def _differences(result: Result, group: Group) -> list[str]:
    """The reference minus each other entry."""
    lines = []
    for entry in group.entries:
        if entry.name == group.reference:
            continue
        cells = [result.difference(group.reference, entry.name, share) for share in group.budgets]
        if any(cell is not None for cell in cells):
            lines.append([_plain(entry.name), *("–" if cell is None else told_difference(cell) for cell in cells)])
    return table([f"{_plain(group.reference)} minus", *group.budgets.values()], lines) if lines else []


def told_difference(far: Difference) -> str:
    """
    >>> told_difference(Difference(1.26, 0.5, 3)), told_difference(Difference(-1.26, None, 1))
    ('+1.26 ± 0.50 ahead', '−1.26 (one seed)')
    """
    mean = f"{'+' if far.mean >= 0 else _MINUS}{abs(far.mean):.2f}"
    return f"{mean} (one seed)" if far.half is None else f"{mean} ± {far.half:.2f} {far.verdict}"


def _regular(result: Result) -> list[str]:
    """What the same nets would cost if every residual add kept all channels of both sides."""
    lines = []
    for entry in result.plan.entries.values():
        for share, budget in sorted(((share, text) for text, share in entry.budgets.items()), reverse=True):
            cell = [row for row in result.cell(entry.name, share) if row.get("regular")]
            regular, mixed = mean(cell, "regular", "volume"), mean(cell, "cost", "volume")
            if regular is None or mixed is None:
                continue
            part = f"{100 * (regular - mixed) / regular:.1f}" if regular else "–"
            lines.append([_plain(entry.name), budget, f"{regular:,.0f}", f"{mixed:,.0f}", part])
    return table(["entry", "budget", "regular volume", "mixed volume", "mixed saves %"], lines) if lines else []


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """
    >>> table(["entry", "1/2"], [["bar", "70.1"]])
    ['| entry | 1/2 |', '| --- | --- |', '| bar | 70.1 |']
    """
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines)]


def as_csv(rows: list[Row]) -> str:
    """A line per pruned net."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    plain = ("entry", "method", "tool", "metric", "budget", "share", "seed", "distilled", "accuracy", "val", "teacher")
    nested = [(group, name) for group in ("cost", "full", "factor", "regular") for name in METRICS]
    sizes = sorted({size for row in rows for size in row.get("latency") or {}} | {"1", "32"}, key=int)
    nested += [("latency", size) for size in sizes]
    out.writerow([*plain, "used", "reached", *("_".join(path) for path in nested), "seconds"])
    for row in rows:
        ends = [(row.get(group) or {}).get(name, "") for group, name in nested]
        out.writerow([*(row.get(name, "") for name in (*plain, "used", "reached")), *ends, row.get("seconds", "")])
    return text.getvalue()


# ---------------------------------------------------------------- numbers and names


def _mean(cell: list[Row]) -> str:
    accuracy = mean(cell, "accuracy")
    return "–" if accuracy is None else f"{accuracy:.2f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _range(values: list[float], digits: int) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def _name(metric: str) -> str:
    return {"flops": "FLOPs", "params": "parameters"}.get(metric, metric)


def _plain(name: str) -> str:
    """A name or an error, on one line and without the bars that would split a cell."""
    return re.sub(r"\s+", " ", name).replace("|", "/")


def _told(table: dict[str, Any]) -> str:
    return "; ".join(f"{name} `{json.dumps(_own(value), ensure_ascii=False)}`" for name, value in table.items())


def _own(value: Any) -> Any:
    """Without the folders of absolute paths: they belong to this machine."""
    if isinstance(value, dict):
        return {name: _own(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_own(each) for each in value]
    if isinstance(value, str) and os.path.isabs(value):
        return os.path.basename(value)
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def write_all(result: Result, folder: Path) -> list[str]:
    """Write tables, figures and, into another folder than the plan's, a copy of the rows. Returns lines that say so."""
    if not result.pruned:
        return ["no pruned net is finished yet: there are no tables"]
    with told("written", folder, OptionError):
        return _write(result, folder)


def _write(result: Result, folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    said, figures = [], []
    try:
        figures = draw(result, folder)
    except ImportError:
        said = ["no figures: pip install matplotlib"]
    if folder.resolve() != result.plan.folder.resolve():
        write_rows(folder / ROWS, result.rows)
    write_atomically(folder / "compare.csv", as_csv(result.pruned))
    write_atomically(folder / "compare.md", markdown(result, figures))
    files = ["compare.md", "compare.csv", *(f"{name}.png, {name}.svg" for name in figures)]
    return [*said, f"wrote {folder}: {', '.join(files)}"]
