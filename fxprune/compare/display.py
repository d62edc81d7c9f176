"""What a comparison says while it runs: a table that fills on a terminal, a line per finished run in a pipe."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fxprune.compare.plan import TEACHER, Plan
from fxprune.compare.pool import Outcome, Pool
from fxprune.compare.results import Result, Row, budgets_of, mean
from fxprune.train.progress import duration


class Display:
    """``rows`` is the dict that the caller adds finished rows to: the table shows what is in it."""

    def __init__(self, console: Console, plan: Plan, rows: dict[str, Row], pool: Pool, left: int) -> None:
        self.console, self.plan, self.rows, self.pool, self.left = console, plan, rows, pool, left
        self.begin, self.taken, self.done, self.last = time.monotonic(), 0.0, 0, 0.0
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal and left else None

    def __enter__(self) -> Display:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self.live is not None:
            self.live.update(self._table(), refresh=True)
            self.live.stop()
        if error is not None and self.left > self.done:
            self._say("stopped; what is finished is kept: start the same command again to go on")

    def refresh(self) -> None:
        """Draw again, at most twice a second."""
        if self.live is not None and time.monotonic() - self.last > 0.5:
            self.last = time.monotonic()
            self.live.update(Group(self._table(), self._below()), refresh=True)

    def ended(self, outcome: Outcome) -> None:
        self.done += 1
        self.taken += outcome.seconds
        parts = [f"{self.done}/{self.left}", outcome.job.key]
        row = outcome.row
        if row is None:
            parts.append(f"FAILED: {outcome.error}")
        else:
            parts.append(f"accuracy {row['accuracy']:.2f} %")
            if outcome.job.entry != TEACHER:
                parts.append(f"used {row['used']:.3f} of the budget")
        parts += [duration(outcome.seconds), f"{self._remaining()} left"]
        if self.live is None or row is None:
            self._say("  ".join(parts))

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _remaining(self) -> str:
        """Estimated from the mean time of the finished runs; "?" before the first."""
        if self.done == 0:
            return "?"
        return duration(self.taken / self.done * (self.left - self.done) / self.pool.jobs)

    def _table(self) -> Table:
        result = Result(self.plan, list(self.rows.values()), [], "")
        budgets = budgets_of(self.plan.entries.values())
        table = Table("mean accuracy % (seeds)", *budgets.values(), box=None, pad_edge=False)
        taught = mean(result.teachers, "accuracy")
        if taught is not None:
            table.add_row(Text(f"{TEACHER} {taught:.2f} ({len(result.teachers)})", style="dim"))
        for entry in self.plan.entries.values():
            cells = []
            for share in budgets:
                cell = result.cell(entry.name, share)
                accuracy, waits = mean(cell, "accuracy"), "·" if share in entry.budgets.values() else ""
                cells.append(waits if accuracy is None else f"{accuracy:.2f} ({len(cell)})")
            table.add_row(Text(entry.name), *cells)
        return table

    def _below(self) -> Text:
        now = time.monotonic()
        running = [f"{job.key} ({duration(now - begin)})" for job, (_, begin) in self.pool.running.items()]
        said = f"{self.done} of {self.left} done, {duration(now - self.begin)}, about {self._remaining()} left"
        return Text("\n".join(["", *(f"running: {each}" for each in running), said]), style="dim")
