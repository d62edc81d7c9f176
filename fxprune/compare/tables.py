"""``compare.md`` and ``compare.csv``: a comparison in words and numbers."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from fxprune.budget.cost import METRICS
from fxprune.compare.result import Result, mean, over
from fxprune.compare.rows import Row
from fxprune.compare.statistics import Difference

_MINUS = "−"


def markdown(result: Result, figures: Iterable[str]) -> str:
    plan = result.plan
    lines = [f"# Comparison: {'; '.join(_plain(name) for name in plan.entries)}", "", f"`{result.command}`", ""]
    lines += [f"- {name}: {text}" for name, text in _settings(result)]
    lines += ["", *_state(result)]
    for metric in result.metrics:
        lines += ["", f"## Budgets on {_name(metric)}", "", *_wide(result, metric), "", *_accuracy(result, metric)]
        differences = _differences(result, metric)
        lines += ["", *differences] if differences else []
    for title, table in (("Regular against mixed blocks", _regular(result)), ("Latency", _latency(result))):
        lines += ["", f"## {title}", "", *table] if table else []
    for name, text in FIGURES.items():
        lines += ["", f"![{text}]({name}.png)", "", f"*{text}*"] if name in figures else []
    return "\n".join(lines) + "\n"


FIGURES = {
    "accuracy": "Accuracy against volume and FLOP factor: mean, least and largest over the seeds; dashed: the teachers",
    "neurons": "Channels per block of the reference entry, mean over the seeds",
    "metrics": "The same method with budgets on volume and on FLOPs",
}


def _settings(result: Result) -> list[tuple[str, str]]:
    plan = result.plan
    entries = list(plan.entries.values())
    shared = {k: v for k, v in entries[0].settings.items() if all(entry.settings.get(k) == v for entry in entries)}
    found = [("model", _told(plan.model)), ("data", _told(plan.data)), ("teacher", _told(plan.teacher))]
    same = all(entry.optimizer == entries[0].optimizer for entry in entries)
    if same:
        found.append(("optimizer", _told(entries[0].optimizer) if entries[0].optimizer else "the default, Adam"))
    found.append(("all entries", _told(shared)))
    for entry in entries:
        own: dict[str, Any] = {"method" if entry.method else "tool": entry.what}
        own |= {name: value for name, value in entry.settings.items() if name not in shared}
        own |= {"optimizer": entry.optimizer or "the default, Adam"} if not same else {}
        own |= {"options": entry.options} if entry.options else {}
        found.append((f"**{_plain(entry.name)}**", _told(own)))
    found += [("machine", text) for text in result.machines if text]
    return found


def _state(result: Result) -> list[str]:
    taught = ", ".join(f"{row['accuracy']:.2f} (seed {row['seed']})" for row in result.teachers)
    wanted = sum(len(entry.budgets) for entry in result.plan.entries.values()) * len(result.plan.seeds)
    lines = [f"Teachers, accuracy in %: {taught or 'none yet'}.", f"Pruned nets: {len(result.pruned)} of {wanted}."]
    lines += ["", "Failed:", *(f"- {row['key']}: {_plain(str(row['error']))}" for row in result.failed)] * bool(
        result.failed
    )
    return lines


def _wide(result: Result, metric: str) -> list[str]:
    """Mean accuracies only, to be taken in at a glance."""
    budgets = result.budgets(metric)
    lines = []
    for entry in result.entries(metric):
        cells = [result.cell(entry.name, share) for share in budgets]
        lines.append([_plain(entry.name), *(_mean(cell) for cell in cells)])
    return table(["mean accuracy %", *budgets.values()], lines)


def _accuracy(result: Result, metric: str) -> list[str]:
    head = ["entry", "budget", "accuracy %", "each seed", "volume factor", "FLOP factor", "share of the budget used"]
    reached = any(row.get("reached") is not None for row in result.pruned)
    lines = []
    for share, budget in result.budgets(metric).items():
        for entry in result.entries(metric):
            cell = result.cell(entry.name, share)
            if not cell:
                continue
            used = [row["used"] for row in cell]
            line = [
                _plain(entry.name),
                budget,
                _mean(cell),
                ", ".join(f"{row['accuracy']:.2f}" for row in cell),
                _number(mean(cell, "factor", "volume")),
                _number(mean(cell, "factor", "flops")),
                _range(used, 3) + (" OVER" if over(cell) else ""),
            ]
            known = [row["reached"] for row in cell if row.get("reached") is not None]
            lines.append([*line, _range(known, 2) if known else "–"] if reached else line)
    return table([*head, "V/B before harden"] if reached else head, lines)


def _differences(result: Result, metric: str) -> list[str]:
    """The reference minus each other entry; of an own reference where it has another metric, the metric's first."""
    names = [entry.name for entry in result.entries(metric)]
    reference = result.plan.reference if result.plan.reference in names else names[0]
    others = [name for name in names if name != reference]
    lines = []
    for name in others:
        cells = [result.difference(reference, name, share) for share in result.budgets(metric)]
        if any(cell is not None for cell in cells):
            lines.append([_plain(name), *("–" if cell is None else told_difference(cell) for cell in cells)])
    if not lines:
        return []
    said = (
        f"Accuracy of **{_plain(reference)}** minus that of each other entry, in points: mean of the differences seed "
        "by seed, and their 95 % interval (Student's t). *ahead* and *behind*: the interval does not hold 0."
    )
    return [said, "", *table([f"{_plain(reference)} minus", *result.budgets(metric).values()], lines)]


def told_difference(found: Difference) -> str:
    """
    >>> told_difference(Difference(1.26, 0.5, 3)), told_difference(Difference(-1.26, None, 1))
    ('+1.26 ± 0.50 ahead', '−1.26 (one seed)')
    """
    mean = f"{'+' if found.mean >= 0 else _MINUS}{abs(found.mean):.2f}"
    return f"{mean} (one seed)" if found.half is None else f"{mean} ± {found.half:.2f} {found.verdict}"


def _regular(result: Result) -> list[str]:
    """What the same nets would cost if every residual add kept all channels of both sides."""
    lines = []
    for entry in result.entries():
        for share, budget in sorted(((share, text) for text, share in entry.budgets.items()), reverse=True):
            cell = [row for row in result.cell(entry.name, share) if row.get("regular")]
            regular, mixed = mean(cell, "regular", "volume"), mean(cell, "cost", "volume")
            if regular is None or mixed is None:
                continue
            part = f"{100 * (regular - mixed) / regular:.1f}" if regular else "–"
            lines.append([_plain(entry.name), budget, f"{regular:,.0f}", f"{mixed:,.0f}", part])
    return table(["entry", "budget", "regular volume", "mixed volume", "mixed saves %"], lines) if lines else []


def _latency(result: Result) -> list[str]:
    sizes = list(dict.fromkeys(size for row in result.pruned for size in row.get("latency") or {}))
    lines = []
    for entry in result.entries():
        for share, budget in sorted(((share, text) for text, share in entry.budgets.items()), reverse=True):
            cell = result.cell(entry.name, share)
            if cell:
                lines.append([_plain(entry.name), budget, *(_number(mean(cell, "latency", size)) for size in sizes)])
    if not sizes or not lines:
        return []
    said = "Time of the pruned net over that of the unpruned one: median of 30 pairs in turns, mean over the seeds."
    return [said, "", *table(["entry", "budget", *(f"batch of {size}" for size in sizes)], lines)]


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
    nested += [("latency", "1"), ("latency", "32")]
    out.writerow([*plain, "used", "reached", *("_".join(path) for path in nested), "seconds"])
    for row in rows:
        ends = [(row.get(group) or {}).get(name, "") for group, name in nested]
        out.writerow([*(row.get(name, "") for name in (*plain, "used", "reached")), *ends, row.get("seconds", "")])
    return text.getvalue()


# ---------------------------------------------------------------- numbers and names


def _mean(cell: list[Row]) -> str:
    found = mean(cell, "accuracy")
    return "–" if found is None else f"{found:.2f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _range(values: list[float], digits: int) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def _name(metric: str) -> str:
    return {"flops": "FLOPs", "params": "parameters"}.get(metric, metric)


def _plain(name: str) -> str:
    """A name, or an error, that breaks no table."""
    return re.sub(r"\s+", " ", name).replace("|", "/")


def _told(table: dict[str, Any]) -> str:
    return "; ".join(f"{name} `{json.dumps(_own(value), ensure_ascii=False)}`" for name, value in table.items())


def _own(value: Any) -> Any:
    """Paths of this machine are left out."""
    if isinstance(value, dict):
        return {name: _own(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_own(each) for each in value]
    if isinstance(value, str) and os.path.isabs(value):
        return os.path.basename(value)
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
