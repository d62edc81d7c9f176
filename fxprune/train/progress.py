"""What a run says while it runs: bars on a terminal, a line per epoch in a pipe."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fxprune.run.log import Row


class Display:
    """``console=None`` says nothing."""

    def __init__(self, console: Console | None) -> None:
        self.console = console
        self._bars: Progress | None = None
        if console is not None and console.is_terminal:
            name, said = TextColumn("{task.description}"), TextColumn("{task.fields[said]}")
            self._bars = Progress(name, BarColumn(bar_width=20), said, TimeRemainingColumn(), console=console)
        self._task: TaskID | None = None
        self._name, self._epochs, self._steps, self._first = "", 0, 0, 0
        self._begin = time.perf_counter()
        self._measured: dict[str, str] = {}

    def __enter__(self) -> Display:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def note(self, text: str) -> None:
        if self.console is not None:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def phase(self, name: str, epochs: int, steps: int, done: int) -> None:
        """A phase starts, or goes on after ``done`` of its ``steps``."""
        self._name, self._epochs, self._steps, self._first = name, epochs, steps, done
        self._begin, self._measured = time.perf_counter(), {}
        if self._bars is not None:
            self._task = self._bars.add_task(name, total=steps, completed=done, said="")

    def step(self, epoch: int, done: int, loss: float) -> None:
        if self._bars is not None and self._task is not None:
            said = f"epoch {epoch + 1}/{self._epochs}  loss {loss:.4g}"
            self._bars.update(self._task, completed=done, said="  ".join([said, *self._measured.values()]))

    def row(self, row: Row) -> None:
        """What is not known at every step: bars show the last of it."""
        if row["accuracy"] is not None:
            self._measured["accuracy"] = f"accuracy {row['accuracy']:.4f}"
        if row["V"] is not None:
            self._measured["cost"] = f"cost {row['V']:,.0f} of {row['b']:,.0f}"

    def epoch(self, row: Row) -> None:
        """An epoch is over."""
        self.row(row)
        here = time.perf_counter() - self._begin
        done = row["step"]
        left = here / max(done - self._first, 1) * (self._steps - done)
        parts = [f"{self._name:<9} {row['epoch']:>3}/{self._epochs}", f"loss {row['loss']:.4g}"]
        parts += self._measured.values()
        parts += [f"{duration(row['seconds'])}, {duration(left)} left in this phase"]
        self.note("  ".join(parts))


def duration(seconds: float) -> str:
    """
    >>> duration(7), duration(3661)
    ('0:07', '1:01:01')
    """
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
