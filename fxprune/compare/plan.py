"""What is compared: entries, budgets and seeds, and the runs that they ask for, each with a name of its own."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fxprune.cost.model import LATENCY
from fxprune.cost.target import as_share
from fxprune.errors import OptionError

TEACHER = "teacher"  # the name of the entry in rows of teachers
STARTS = (TEACHER, "random")  # weights an entry starts from: those of the teacher of the seed, or random ones
_NOT_SETTINGS = ("checkpoint_minutes", "teacher")  # the first changes no result; a row has "distilled" for the other


@dataclass(frozen=True)
class Entry:
    """A method, or another tool, with its settings: a line of the comparison."""

    name: str
    method: str | None  # or a tool
    tool: str | None
    budgets: dict[str, float]  # as written -> share
    settings: dict[str, Any]  # as fxprune.prune takes them, defaults filled in
    optimizer: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    start: str = TEACHER

    @property
    def metric(self) -> str:
        return str(self.settings["metric"])

    @property
    def counted(self) -> bool:
        """Whether the cost is counted; otherwise it is a time."""
        return self.metric != LATENCY

    @property
    def batch_size(self) -> int | None:
        """Of the example, if the config gives it."""
        return self.settings.get("batch_size")

    @property
    def distilled(self) -> bool:
        return bool(self.settings["teacher"] != "none")

    def options_at(self, budget: str) -> dict[str, Any]:
        """An option may have a value per budget: ``strength = { "1/8" = 40, "1/16" = 80 }``."""
        return {name: _at(self.name, name, value, budget) for name, value in self.options.items()}

    @property
    def what(self) -> str:
        return self.method or str(self.tool)


def _at(entry: str, name: str, value: Any, budget: str) -> Any:
    """The value at this budget, if all keys of ``value`` are budgets; otherwise ``value`` itself."""
    try:
        shares = {as_share(key): one for key, one in value.items()} if isinstance(value, dict) and value else None
    except ValueError:
        shares = None  # an option that is a table
    if shares is None:
        return value
    if as_share(budget) not in shares:
        raise OptionError(
            f'[entries."{entry}"] options: {name} has no value for the budget {budget}',
            fix=f'add "{budget}" to {{ {", ".join(map(str, value))} }}',
        )
    return shares[as_share(budget)]


@dataclass(frozen=True)
class Job:
    """One run: an entry at a budget with a seed, or the teacher of a seed."""

    entry: str
    budget: str
    share: float
    seed: int

    @property
    def key(self) -> str:
        """
        >>> Job("bar", "1/8", 0.125, 0).key, Job(TEACHER, "", 1.0, 0).key
        ('bar, 1/8, seed 0', 'teacher, seed 0')
        """
        return ", ".join([self.entry, *([self.budget] if self.budget else []), f"seed {self.seed}"])

    @property
    def name(self) -> str:
        """The name of its folder.

        >>> Job("bar", "1/8", 0.125, 0).name, Job("bar, labels", "1/8", 0.125, 0).name
        ('bar-1_8-0', 'bar-labels-1_8-0-ab2f09')
        """
        plain = re.sub(r"[^A-Za-z0-9.]+", "-", self.entry).strip("-.") or "entry"
        parts = [plain, *([self.budget.replace("/", "_").replace("%", "pc")] if self.budget else []), str(self.seed)]
        if plain != self.entry:  # two entries may have the same plain name
            parts.append(hashlib.blake2b(self.key.encode(), digest_size=3).hexdigest())
        return "-".join(parts)


@dataclass(frozen=True)
class Plan:
    """All of a comparison; ``model``, ``data`` and ``teacher`` are sections of the config."""

    entries: dict[str, Entry]
    seeds: tuple[int, ...]
    reference: str
    model: dict[str, Any]
    data: dict[str, Any]
    teacher: dict[str, Any]
    folder: Path

    def jobs(
        self, entries: Collection[str] | None = None, shares: Collection[float] | None = None,
        seeds: Collection[int] | None = None,
    ) -> list[Job]:  # fmt: skip
        """In the order in which they run: teachers, then by seed and budget, the smallest first."""
        pruned = [
            Job(entry.name, budget, share, seed)
            for entry in self.entries.values() if entries is None or entry.name in entries
            for budget, share in entry.budgets.items() if shares is None or share in shares
            for seed in self.seeds if seeds is None or seed in seeds
        ]  # fmt: skip
        pruned.sort(key=lambda job: (self.seeds.index(job.seed), job.share))  # stable: entries stay in their order
        return [Job(TEACHER, "", 1.0, seed) for seed in dict.fromkeys(job.seed for job in pruned)] + pruned

    def facts(self, job: Job) -> dict[str, Any]:
        """What a row depends on, beside code and data. A row with other facts does not belong to this comparison."""
        facts: dict[str, Any] = {"model": self.model, "teacher": self.teacher}
        if job.entry == TEACHER:
            facts |= {name: self._shared[name] for name in ("loss", "metric_fn") if name in self._shared}
            facts["data"] = self.teacher_data
        else:
            entry = self.entries[job.entry]
            facts |= {name: value for name, value in entry.settings.items() if name not in _NOT_SETTINGS}
            facts |= {"data": self.data, "method" if entry.method else "tool": entry.what}
            facts |= {"distilled": entry.distilled, "optimizer": entry.optimizer}
            facts |= {"options": entry.options_at(job.budget)}
            facts |= {"start": entry.start} if entry.start != TEACHER else {}
        plain: dict[str, Any] = json.loads(json.dumps(facts, default=str))
        return plain

    @property
    def _shared(self) -> dict[str, Any]:
        """The settings of the first entry: what teachers are trained with is the same for all."""
        return next(iter(self.entries.values())).settings

    @property
    def device(self) -> str:
        """Where teachers are trained: where the first entry is."""
        return str(self._shared.get("device", "cpu"))

    @property
    def teacher_data(self) -> dict[str, Any]:
        return {**self.data, **self.teacher.get("data", {})}
