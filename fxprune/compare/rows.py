"""``rows.jsonl``: a line per finished run, which outlives whatever ends the comparison."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fxprune.compare.plan import TEACHER, Job, Plan
from fxprune.errors import OptionError, RunError
from fxprune.files import NOTHING, NUMBER, Table, misfit, told, write_atomically

Row = dict[str, Any]
ROWS, FAILED = "rows.jsonl", "failed.jsonl"
_MAYBE = (*NUMBER, NOTHING)
_ANY: dict[str, Any] = {"entry": str, "seed": int, "accuracy": NUMBER, "settings": dict}
_PRUNED: dict[str, Any] = {
    "share": NUMBER, "used": NUMBER, "cost": Table(NUMBER), "full": Table(NUMBER), "factor": Table(_MAYBE),
    "widths": Table(int), "latency": Table(_MAYBE),
}  # fmt: skip
_FAILED = {"key": str, "error": (str, NOTHING)}


def append(file: Path, row: Row) -> None:
    """Onto the disk before anything that the row replaces is deleted."""
    with file.open("a", encoding="utf-8") as opened:
        opened.write(json.dumps(row) + "\n")
        opened.flush()
        os.fsync(opened.fileno())


def read(file: Path, repair: bool = True) -> list[Row]:
    """A last line that was cut off is dropped; to ``repair`` the file, too: the next row must not be joined to it."""
    with told("read", file, RunError):
        if not file.exists():
            return []
        text = file.read_bytes()
    rows, lines = [], text.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("it is not a row")
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise _damaged(file, f"line {number}: {error}") from error
        rows.append(row)
    if repair and (len(rows) < len(lines) or (text and not text.endswith(b"\n"))):
        write(file, rows)
    return rows


def read_failed(file: Path, repair: bool = True) -> list[Row]:
    """The runs that failed, with their keys and what they said."""
    rows = read(file, repair)
    for number, row in enumerate(rows, 1):
        wrong = misfit(row, _FAILED)
        if wrong is not None:
            raise _damaged(file, f"line {number}: {wrong}")
    return rows


def write(file: Path, rows: list[Row]) -> None:
    write_atomically(file, "".join(json.dumps(row) + "\n" for row in rows))


def replace(file: Path, row: Row) -> None:
    """Put it in the place of the one with its key; the others, of plans past and future, stay."""
    write(file, [row if other.get("key") == row["key"] else other for other in read(file)])


def belonging(file: Path, rows: list[Row], plan: Plan) -> dict[str, Row]:
    """Key -> row, of the runs of the plan in their order; a row that was made otherwise is an error."""
    by_key = {str(row.get("key")): row for row in rows}
    found = {}
    for job in plan.jobs():
        row = by_key.get(job.key)
        if row is None:
            continue
        _check(file, job, row)
        then, now = row["settings"], plan.facts(job)
        for name in {**now, **then}:
            if then.get(name) != now.get(name):
                raise OptionError(
                    f"{file} holds {job.key!r} of other settings: {name} was {_short(then.get(name))} and is "
                    f"{_short(now.get(name))}",
                    fix="use another folder (--run FOLDER), or the settings that it was started with",
                )
        found[job.key] = row
    return found


def _check(file: Path, job: Job, row: Row) -> None:
    """Whether it is a row of this run, with what tables and figures are made of."""
    wrong = misfit(row, _ANY if job.entry == TEACHER else {**_ANY, **_PRUNED})
    if wrong is None and (row["entry"], row["seed"], row.get("share", job.share)) != (job.entry, job.seed, job.share):
        wrong = "entry, seed and share are those of another run"
    if wrong is not None:
        raise _damaged(file, f"the line of {job.key!r}: {wrong}")


def _damaged(file: Path, why: str) -> RunError:
    return RunError(f"{file} is damaged: {why}", fix="remove that line: its run is done again")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
