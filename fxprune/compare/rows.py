"""``rows.jsonl``: a line per finished run, which outlives whatever ends the comparison."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fxprune.compare.plan import Plan
from fxprune.emit.files import write_atomically
from fxprune.errors import OptionError, RunError

Row = dict[str, Any]
ROWS, FAILED = "rows.jsonl", "failed.jsonl"


def append(file: Path, row: Row) -> None:
    """Onto the disk before anything that the row replaces is deleted."""
    with file.open("a", encoding="utf-8") as opened:
        opened.write(json.dumps(row) + "\n")
        opened.flush()
        os.fsync(opened.fileno())


def read(file: Path, repair: bool = True) -> list[Row]:
    """A last line that was cut off is dropped; to ``repair`` the file, too: the next row must not be joined to it."""
    if not file.exists():
        return []
    text = file.read_bytes().decode("utf-8", errors="replace")
    rows, lines = [], text.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("it is not a row")
        except ValueError as error:
            if number == len(lines):
                break
            raise RunError(
                f"{file} is damaged: line {number}: {error}", fix="remove that line: its run is done again"
            ) from error
        rows.append(row)
    if repair and (len(rows) < len(lines) or (text and not text.endswith("\n"))):
        write(file, rows)
    return rows


def write(file: Path, rows: list[Row]) -> None:
    write_atomically(file, "".join(json.dumps(row) + "\n" for row in rows))


def belonging(file: Path, rows: list[Row], plan: Plan) -> dict[str, Row]:
    """Key -> row, of the runs of the plan in their order; a row that was made otherwise is an error."""
    by_key = {str(row.get("key")): row for row in rows}
    found = {}
    for job in plan.jobs():
        row = by_key.get(job.key)
        if row is None:
            continue
        then, now = row.get("settings") or {}, plan.facts(job)
        for name in {**now, **then}:
            if then.get(name) != now.get(name):
                raise OptionError(
                    f"{file} holds {job.key!r} of other settings: {name} was {_short(then.get(name))} and is "
                    f"{_short(now.get(name))}",
                    fix="use another folder (--run FOLDER), or the settings that it was started with",
                )
        found[job.key] = row
    return found


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
