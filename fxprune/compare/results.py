"""The rows of a comparison, one per finished run: kept in ``rows.jsonl``, and arranged by entry and budget, with means
over seeds and differences of pairs that share their seed (and so their teacher)."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fxprune.compare.plan import TEACHER, Entry, Job, Plan
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


def append_row(file: Path, row: Row) -> None:
    """Write the row and flush it to the disk: the files that it makes superfluous are deleted afterwards."""
    with file.open("a", encoding="utf-8") as opened:
        opened.write(json.dumps(row) + "\n")
        opened.flush()
        os.fsync(opened.fileno())


def read_rows(file: Path, repair: bool = True) -> list[Row]:
    """A last line that was cut off is dropped; with ``repair`` in the file, too, where the next row would join it."""
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
        write_rows(file, rows)
    return rows


def read_failed(file: Path, repair: bool = True) -> list[Row]:
    """The runs that failed, with their keys and errors."""
    rows = read_rows(file, repair)
    for number, row in enumerate(rows, 1):
        wrong = misfit(row, _FAILED)
        if wrong is not None:
            raise _damaged(file, f"line {number}: {wrong}")
    return rows


def write_rows(file: Path, rows: list[Row]) -> None:
    write_atomically(file, "".join(json.dumps(row) + "\n" for row in rows))


def replace_row(file: Path, row: Row) -> None:
    """Replace the row with the same key. All others stay, also those that are not of this plan."""
    write_rows(file, [row if other.get("key") == row["key"] else other for other in read_rows(file)])


def rows_of_plan(file: Path, rows: list[Row], plan: Plan) -> dict[str, Row]:
    """Key -> row, for the runs of the plan in their order. A row made with other settings is an error."""
    by_key = {str(row.get("key")): row for row in rows}
    own = {}
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
        own[job.key] = row
    return own


def _check(file: Path, job: Job, row: Row) -> None:
    """Raise unless it is a row of this run and has all that tables and figures need."""
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


# Two-sided 95 % quantiles of Student's t by degrees of freedom. In between the next smaller number is taken: its
# quantile is larger.
_T = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201,
    12: 2.179, 13: 2.160, 14: 2.145, 15: 2.131, 16: 2.120, 17: 2.110, 18: 2.101, 19: 2.093, 20: 2.086, 25: 2.060,
    30: 2.042, 40: 2.021, 60: 2.000, 120: 1.980,
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences, and half the width of its 95 % interval (None for a single pair)."""

    mean: float
    half: float | None
    pairs: int

    @property
    def verdict(self) -> str:
        """
        >>> Difference(2.0, 1.5, 3).verdict, Difference(-2.0, 1.5, 3).verdict, Difference(1.0, 1.5, 3).verdict
        ('ahead', 'behind', 'level')
        """
        if self.half is None:
            return "one seed"
        return "ahead" if self.mean > self.half else "behind" if self.mean < -self.half else "level"


def paired(ones: Sequence[float], others: Sequence[float]) -> Difference:
    """
    >>> far = paired([3.0, 5.0, 7.0], [1.0, 2.0, 3.0])  # 2, 3, 4: mean 3, deviation 1, t = 4.303
    >>> far.mean, round(far.half, 4), far.pairs
    (3.0, 2.4843, 3)
    """
    each = [one - other for one, other in zip(ones, others, strict=True)]
    many = len(each)
    half = quantile(many - 1) * statistics.stdev(each) / math.sqrt(many) if many > 1 else None
    return Difference(statistics.fmean(each), half, many)


def quantile(freedom: int) -> float:
    """
    >>> quantile(2), quantile(27), quantile(10_000)
    (4.303, 2.06, 1.98)
    """
    return _T[max(known for known in _T if known <= freedom)]


@dataclass(frozen=True)
class Group:
    """Entries that can be compared directly: their budgets are on the same metric, and all or none are distilled."""

    metric: str
    distilled: bool
    entries: list[Entry]
    reference: str  # the entry from which the accuracies of the others are subtracted

    @property
    def budgets(self) -> dict[float, str]:
        return budgets_of(self.entries)


def budgets_of(entries: Iterable[Entry]) -> dict[float, str]:
    """Share -> the budget as written, the largest first."""
    written: dict[float, str] = {}
    for entry in entries:
        for text, share in entry.budgets.items():
            written.setdefault(share, text)
    return dict(sorted(written.items(), reverse=True))


@dataclass(frozen=True)
class Result:
    """What is known of a comparison so far."""

    plan: Plan
    rows: list[Row]
    failed: list[Row]
    command: str

    @property
    def teachers(self) -> list[Row]:
        return [row for row in self.rows if row["entry"] == TEACHER]

    @property
    def pruned(self) -> list[Row]:
        return [row for row in self.rows if row["entry"] != TEACHER]

    @property
    def machines(self) -> list[str]:
        """Descriptions of the machines that the rows come from."""
        machines = [row.get("machine") or {} for row in self.rows]
        return list(dict.fromkeys(", ".join(f"{name} {value}" for name, value in each.items()) for each in machines))

    @cached_property
    def groups(self) -> list[Group]:
        """In the order of the entries. The reference of a group is that of the plan, or else an entry with its method,
        or else the first entry."""
        members: dict[tuple[str, bool], list[Entry]] = {}
        for entry in self.plan.entries.values():
            members.setdefault((entry.metric, entry.distilled), []).append(entry)
        wanted = self.plan.entries[self.plan.reference]
        groups = []
        for (metric, distilled), entries in members.items():
            near = [entry for entry in entries if entry.what == wanted.what]
            first = wanted if wanted in near else (near or entries)[0]
            groups.append(Group(metric, distilled, entries, first.name))
        return groups

    @property
    def variants(self) -> Group:
        """The reference and those that differ from it only in how they are trained."""
        wanted = self.plan.entries[self.plan.reference]
        alike = [e for e in self.plan.entries.values() if (e.what, e.metric) == (wanted.what, wanted.metric)]
        return Group(wanted.metric, wanted.distilled, alike, wanted.name)

    def cell(self, entry: str, share: float) -> list[Row]:
        """A row per seed, in the order of the seeds."""
        rows = {row["seed"]: row for row in self.pruned if (row["entry"], row["share"]) == (entry, share)}
        return [rows[seed] for seed in self.plan.seeds if seed in rows]

    def difference(self, one: str, other: str, share: float) -> Difference | None:
        """Accuracy of one entry minus that of another, over the seeds that both have."""
        ones, others = ({row["seed"]: row["accuracy"] for row in self.cell(name, share)} for name in (one, other))
        seeds = [seed for seed in ones if seed in others]
        return paired([ones[seed] for seed in seeds], [others[seed] for seed in seeds]) if seeds else None

    @property
    def metric_groups(self) -> list[list[Entry]]:
        """Entries that differ in the metric of their budgets, and in nothing else but the budgets."""
        groups: dict[str, list[Entry]] = {}
        for entry in self.plan.entries.values():
            rest = {name: value for name, value in entry.settings.items() if name != "metric"}
            key = repr((entry.what, sorted(rest.items(), key=str), entry.options, entry.optimizer))
            groups.setdefault(key, []).append(entry)
        return [group for group in groups.values() if len({entry.metric for entry in group}) > 1]


def mean(rows: list[Row], *path: str) -> float | None:
    """The mean of a number over the rows that have it; None if none has.

    >>> mean([{"cost": {"volume": 2}}, {"cost": {"volume": 4}}, {"cost": None}], "cost", "volume")
    3.0
    """
    values = [value for row in rows if (value := _number_at(row, path)) is not None]
    return statistics.fmean(values) if values else None


def over(rows: list[Row]) -> bool:
    """Whether one of these nets is over its budget, by more than rounding."""
    return any(row["used"] > 1.0005 for row in rows)


def _number_at(row: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        row = row.get(name) if isinstance(row, dict) else None
    return row
