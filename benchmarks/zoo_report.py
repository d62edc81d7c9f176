"""The tables of benchmarks/zoo.py."""

from __future__ import annotations

import math
import statistics
from collections import Counter

from zoo_check import TOLERANCE, Record


def summary(records: list[Record]) -> Record:
    shares = [record["prunable"] for record in records if "prunable" in record]
    return {
        "models": len(records),
        "traced": sum("nodes" in record for record in records),
        "equal_at_example_batch": sum(record.get("difference", math.inf) <= TOLERANCE for record in records),
        "equal_at_both_batches": sum(_equal(record) for record in records),
        "inspected": len(shares),
        "exported": sum("export_difference" in record for record in records),
        "exported_exactly": sum(record.get("export_difference", math.inf) <= TOLERANCE for record in records),
        "without_leaves": sum("nodes" in record and not record["leaves"] for record in records),
        "median_prunable": statistics.median(shares) if shares else None,
        "prunable_below_95_percent": sum(share < 0.95 for share in shares),
    }


def _equal(record: Record) -> bool:
    return max(record.get("difference", math.inf), record.get("difference_other_batch", math.inf)) <= TOLERANCE


def markdown(records: list[Record]) -> str:
    lines = ["# Model zoo", "", "Made by `python benchmarks/zoo.py`; do not edit.", ""]
    lines += [
        "Every parameter and buffer is random, everything runs in float64; *equal* means that the traced graph's",
        f"outputs differ from the model's by at most {TOLERANCE:.0e} of the largest one, at the example's batch size",
        "and at another one. *Prunable*: the share of the convolutions' output volume that can go. *Exported exactly*:",
        "with half of all gates closed at random, and with nine tenths of them, the slim net equals the gated one",
        "within the same tolerance.",
        "",
    ]  # fmt: skip
    suites = list(dict.fromkeys(record["suite"] for record in records))
    lines += ["| | " + " | ".join(suites) + " | all |", "| --- |" + " ---: |" * (len(suites) + 1)]
    columns = [summary([r for r in records if r["suite"] == suite]) for suite in suites] + [summary(records)]
    labels = {
        "models": "models", "traced": "traced", "equal_at_both_batches": "equal at both batch sizes",
        "without_leaves": "traced without a leaf", "inspected": "inspected", "median_prunable": "median prunable share",
        "prunable_below_95_percent": "prunable share below 95 %", "exported": "exported under both masks",
        "exported_exactly": "of these exactly",
    }  # fmt: skip
    for key, label in labels.items():
        cells = [_percent(column[key]) if key == "median_prunable" else str(column[key]) for column in columns]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    failed = [record for record in records if record["status"] != "ok"]
    if failed:
        lines += ["", "## Failures", "", "| model | status | reason |", "| --- | --- | --- |"]
        lines += [f"| {r['name']} ({r['suite']}) | {r['status']} | {_cell(r['reason'])} |" for r in failed]
    below = sorted((r for r in records if r.get("prunable", 1.0) < 0.95), key=lambda r: r["prunable"])
    if below:
        lines += ["", "## Prunable share below 95 %", ""]
        lines += ["| model | prunable | what keeps the rest |", "| --- | ---: | --- |"]
        lines += [f"| {r['name']} ({r['suite']}) | {_percent(r['prunable'])} | {_cell(_keeps(r))} |" for r in below]
    leaves = [record for record in records if record.get("leaves")]
    if leaves:
        lines += ["", "## Leaves", "", "| model | volume in leaves | leaves |", "| --- | ---: | --- |"]
        for r in leaves:
            texts = [f"`{x['path']}` ({x['type']}): {x['reason']} at {x['source']}" for x in r["leaves"][:3]]
            shown = "; ".join(texts)
            more = f"; and {len(r['leaves']) - 3} more" if len(r["leaves"]) > 3 else ""
            lines.append(f"| {r['name']} ({r['suite']}) | {_percent(r['leaf_share'])} | {_cell(shown + more)} |")
    compared = any("torch_pruning" in record for record in records)
    heads = ["family", "model", "input", "equal", "nodes", "trace s", "inspect s", "prunable", "smallest budget"]
    heads += ["leaves", "freezes", "Torch-Pruning"] if compared else ["leaves", "freezes"]
    for suite in suites:
        lines += ["", f"## {suite}", "", "| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
        for r in records:
            if r["suite"] == suite:
                lines.append("| " + " | ".join(_row(r, compared)) + " |")
    return "\n".join(lines) + "\n"


def changed_freezes(before: list[Record], after: list[Record]) -> list[str]:
    """What freezes in one run only, of the models that both have inspected."""
    known = {(r["suite"], r["name"]): r["freezes"] for r in before if "freezes" in r}
    lines = []
    for r in after:
        was = known.get((r["suite"], r["name"]))
        if was is None or "freezes" not in r:
            continue
        old, new = (Counter(f"{f['op']}: {f['why']}" for f in freezes) for freezes in (was, r["freezes"]))
        for word, freezes in (("freezes now", new - old), ("freezes no more", old - new)):
            lines += [f"{r['suite']}/{r['name']} {word}, {count} x {text}" for text, count in freezes.items()]
    return lines


def _row(r: Record, compared: bool) -> list[str]:
    equal = "yes" if _equal(r) else "**no**"
    smallest = _percent(r["smallest_budget"]["volume"], 2) if "smallest_budget" in r else "–"
    cells = [
        r["family"], r["name"], r["input"], equal, str(r.get("nodes", "–")), str(r.get("trace_seconds", "–")),
        str(r.get("inspect_seconds", "–")), _percent(r.get("prunable")), smallest, str(len(r.get("leaves", []))),
        str(len(r.get("freezes", []))),
    ]  # fmt: skip
    if compared:
        answer = r.get("torch_pruning")
        cells.append("–" if answer is None else "builds" if answer["ok"] else _cell("fails: " + answer["reason"][:80]))
    return cells


def _keeps(r: Record) -> str:
    parts = [f"{reason}: {_percent(share)}" for reason, share in r.get("ungated", {}).items() if share >= 0.005]
    sources = {f["source"] for f in r.get("freezes", []) if f["volume_share"] > 0 and f["source"]}
    return "; ".join(parts[:5]) + (f" ({', '.join(sorted(sources)[:4])})" if sources else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _percent(share: float | None, digits: int = 1) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def line(r: Record) -> str:
    state = "ok" if r["status"] == "ok" else f"{r['status'].upper()}: {r['reason']}"
    return f"{r['suite'] + '/' + r['name']:45} {_percent(r.get('prunable')):>8} {r.get('seconds', 0):6.1f} s  {state}"
