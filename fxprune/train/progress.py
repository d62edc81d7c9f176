"""What a run says while it runs: bars on a terminal, a line per epoch in a pipe."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fxprune.run.log import Row


class Display:
    """With ``console=None`` nothing is printed."""

    def __init__(self, console: Console | None) -> None:
        self.console = console
        name, said = TextColumn("{task.description}"), TextColumn("{task.fields[said]}")
        self._bars = Progress(
            name, BarColumn(bar_width=20), said, TimeRemainingColumn(), console=console,
            disable=console is None or not console.is_terminal,
        )  # fmt: skip

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._bars.disable:
            self._bars.stop()

    def note(self, text: str) -> None:
        if self.console is not None:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def phase(self, name: str, epochs: int, steps: int, done: int) -> None:
        """A phase starts, or goes on after ``done`` of its ``steps``."""
        self._name, self._epochs, self._steps, self._first = name, epochs, steps, done
        self._begin, self._measured = time.perf_counter(), dict[str, str]()
        self._task = self._bars.add_task(name, total=steps, completed=done, said="")

    def step(self, epoch: int, done: int, loss: float) -> None:
        said = f"epoch {epoch + 1}/{self._epochs}  loss {loss:.4g}"
        self._bars.update(self._task, completed=done, said="  ".join([said, *self._measured.values()]))

    def row(self, row: Row) -> None:
        """Remember accuracy and cost, which are not known at every step: bars show the last ones."""
        if row["accuracy"] is not None:
            self._measured["accuracy"] = f"accuracy {row['accuracy']:.4f}"
        if row["V"] is not None:
            self._measured["cost"] = f"cost {row['V']:,.0f} of {row['b']:,.0f}"

    def epoch(self, row: Row) -> None:
        """Print the line of a finished epoch."""
        self.row(row)
        done, passed = row["step"], time.perf_counter() - self._begin
        left = passed / max(done - self._first, 1) * (self._steps - done)
        parts = [f"{self._name:<9} {row['epoch']:>3}/{self._epochs}", f"loss {row['loss']:.4g}"]
        parts += [*self._measured.values(), f"{duration(row['seconds'])}, {duration(left)} left in this phase"]
        self.note("  ".join(parts))


def duration(seconds: float) -> str:
    """
    >>> duration(7), duration(3661)
    ('0:07', '1:01:01')
    """
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
