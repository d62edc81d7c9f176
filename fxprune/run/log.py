"""What happened, row by row: ``log.csv`` and ``log.jsonl``, and TensorBoard events where that is installed."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fxprune.errors import RunError
from fxprune.files import flush, write_atomically
from fxprune.run.layout import EVENTS, LOG, LOG_TABLE

FIELDS = ("phase", "epoch", "step", "loss", "accuracy", "V", "b", "lr", "seconds")
Row = dict[str, Any]


def _csv(row: Row) -> str:
    text = io.StringIO()
    csv.DictWriter(text, FIELDS, lineterminator="\n").writerow(row)
    return text.getvalue()


_LINES: dict[str, Callable[[Row], str]] = {LOG: lambda row: json.dumps(row) + "\n", LOG_TABLE: _csv}


class Log:
    """Rows are appended at once; ``keep`` drops those after a checkpoint, which a resumed run writes again."""

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.rows = folder, 0
        self._files = {folder / name: line for name, line in _LINES.items()} if folder is not None else {}
        self._events: Any = None

    def keep(self, count: int) -> None:
        """Keep the first ``count`` rows of the files, and go on behind them."""
        self.rows = count
        if self.folder is None:
            return
        file, head = self.folder / LOG, {LOG_TABLE: ",".join(FIELDS) + "\n"}
        lines = file.read_bytes().splitlines()[:count] if file.exists() else []
        rows = [_parsed(file, number, line) for number, line in enumerate(lines, 1)]
        self.rows = len(rows)  # fewer after a power cut
        for path, line in self._files.items():
            write_atomically(path, head.get(path.name, "") + "".join(map(line, rows)))
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(self.folder / EVENTS), purge_step=self.rows or None)

    def write(self, row: Row) -> None:
        self.rows += 1
        for path, line in self._files.items():
            with path.open("a", encoding="utf-8", newline="") as opened:
                opened.write(line(row))
        if self._events is not None:
            for name in FIELDS[3:]:
                if row[name] is not None:
                    self._events.add_scalar(f"{row['phase']}/{name}", row[name], self.rows - 1)

    def sync(self) -> None:
        """Flush to the disk, before a checkpoint relies on these rows."""
        for path in self._files:
            flush(path)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()


def _parsed(file: Path, number: int, line: bytes) -> Row:
    try:
        row = json.loads(line)
        if not isinstance(row, dict) or set(row) != set(FIELDS):
            raise ValueError("it is not a row of this log")
    except (ValueError, RecursionError) as error:
        raise RunError(
            f"{file} is damaged: line {number}: {error}", fix="remove that line: the run does not depend on it"
        ) from error
    return row
