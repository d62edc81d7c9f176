"""Rows, arranged: by entry and budget, with means over seeds and differences of pairs that share their seed (the
teacher's luck is taken out of these)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fxprune.compare.plan import TEACHER, Entry, Plan
from fxprune.compare.rows import Row

# Two-sided 95 % quantiles of Student's t by degrees of freedom; in between, the next smaller is on the safe side.
_T = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201,
    12: 2.179, 13: 2.160, 14: 2.145, 15: 2.131, 16: 2.120, 17: 2.110, 18: 2.101, 19: 2.093, 20: 2.086, 25: 2.060,
    30: 2.042, 40: 2.021, 60: 2.000, 120: 1.980,
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences, and how far the 95 % interval reaches to both sides (None of a single pair)."""

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
    >>> made = paired([3.0, 5.0, 7.0], [1.0, 2.0, 3.0])  # 2, 3, 4: mean 3, deviation 1, t = 4.303
    >>> made.mean, round(made.half, 4), made.pairs
    (3.0, 2.4843, 3)
    """
    found = [one - other for one, other in zip(ones, others, strict=True)]
    many = len(found)
    if many < 2:
        return Difference(found[0], None, many)
    return Difference(statistics.fmean(found), quantile(many - 1) * statistics.stdev(found) / math.sqrt(many), many)


def quantile(freedom: int) -> float:
    """
    >>> quantile(2), quantile(27), quantile(10_000)
    (4.303, 2.06, 1.98)
    """
    return _T[max(known for known in _T if known <= freedom)]


@dataclass(frozen=True)
class Group:
    """Entries that can be compared as they are: their budgets are on the same, and all are taught alike."""

    metric: str
    distilled: bool
    entries: list[Entry]
    reference: str  # what the others' accuracy is subtracted from

    @property
    def budgets(self) -> dict[float, str]:
        return budgets_of(self.entries)


def budgets_of(entries: Iterable[Entry]) -> dict[float, str]:
    """Share -> as it was written, the largest first."""
    found: dict[float, str] = {}
    for entry in entries:
        for text, share in entry.budgets.items():
            found.setdefault(share, text)
    return dict(sorted(found.items(), reverse=True))


@dataclass(frozen=True)
class Result:
    """What is known of a comparison so far."""

    plan: Plan
    rows: list[Row]
    failed: list[Row]
    command: str

    @cached_property
    def _cells(self) -> dict[tuple[str, float], dict[int, Row]]:
        found: dict[tuple[str, float], dict[int, Row]] = {}
        for row in self.rows:
            if row["entry"] != TEACHER:
                found.setdefault((row["entry"], row["share"]), {})[row["seed"]] = row
        return found

    @property
    def teachers(self) -> list[Row]:
        return [row for row in self.rows if row["entry"] == TEACHER]

    @property
    def pruned(self) -> list[Row]:
        return [row for row in self.rows if row["entry"] != TEACHER]

    @property
    def machines(self) -> list[str]:
        """Those that rows come from."""
        found = [row.get("machine") or {} for row in self.rows]
        return list(dict.fromkeys(", ".join(f"{name} {value}" for name, value in each.items()) for each in found))

    @cached_property
    def groups(self) -> list[Group]:
        """In the order of the entries; the reference of a group is the plan's, or has its method, or comes first."""
        members: dict[tuple[str, bool], list[Entry]] = {}
        for entry in self.plan.entries.values():
            members.setdefault((entry.metric, entry.distilled), []).append(entry)
        wanted = self.plan.entries[self.plan.reference]
        found = []
        for (metric, distilled), entries in members.items():
            near = [entry for entry in entries if entry.what == wanted.what]
            first = wanted if wanted in near else (near or entries)[0]
            found.append(Group(metric, distilled, entries, first.name))
        return found

    @property
    def variants(self) -> Group:
        """The reference and those that differ from it only in how they are trained."""
        wanted = self.plan.entries[self.plan.reference]
        alike = [e for e in self.plan.entries.values() if (e.what, e.metric) == (wanted.what, wanted.metric)]
        return Group(wanted.metric, wanted.distilled, alike, wanted.name)

    def cell(self, entry: str, share: float) -> list[Row]:
        """A row per seed, in the order of the seeds."""
        found = self._cells.get((entry, share), {})
        return [found[seed] for seed in self.plan.seeds if seed in found]

    def difference(self, one: str, other: str, share: float) -> Difference | None:
        """Accuracy of one entry minus that of another, over the seeds that both have."""
        ones, others = ({row["seed"]: row["accuracy"] for row in self.cell(name, share)} for name in (one, other))
        seeds = [seed for seed in ones if seed in others]
        return paired([ones[seed] for seed in seeds], [others[seed] for seed in seeds]) if seeds else None

    @property
    def metric_groups(self) -> list[list[Entry]]:
        """Entries that differ in what their budget is on, and in nothing else but the budgets."""
        groups: dict[str, list[Entry]] = {}
        for entry in self.plan.entries.values():
            rest = {name: value for name, value in entry.settings.items() if name != "metric"}
            key = repr((entry.what, sorted(rest.items(), key=str), entry.options, entry.optimizer))
            groups.setdefault(key, []).append(entry)
        return [group for group in groups.values() if len({entry.metric for entry in group}) > 1]


def mean(rows: list[Row], *path: str) -> float | None:
    """Of a number in every row; None where no row has it.

    >>> mean([{"cost": {"volume": 2}}, {"cost": {"volume": 4}}, {"cost": None}], "cost", "volume")
    3.0
    """
    found = [value for row in rows if (value := _at(row, path)) is not None]
    return statistics.fmean(found) if found else None


def over(rows: list[Row]) -> bool:
    """Whether a net of these is over its budget; half a thousandth is rounding."""
    return any(row["used"] > 1.0005 for row in rows)


def _at(row: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        row = row.get(name) if isinstance(row, dict) else None
    return row
