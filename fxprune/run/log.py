"""What happened, row by row: ``log.csv`` and ``log.jsonl``, and TensorBoard events where that is installed."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from pathlib import Path
from typing import Any

from fxprune.errors import RunError
from fxprune.files import flush, write_atomically
from fxprune.run.names import EVENTS, LOG, LOG_TABLE

FIELDS = ("phase", "epoch", "step", "loss", "accuracy", "V", "b", "lr", "seconds")
Row = dict[str, Any]


class Log:
    """Rows are appended at once; ``keep`` drops those after a checkpoint, which a resumed run writes again."""

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.rows = folder, 0
        self._events: Any = None

    def keep(self, count: int) -> None:
        """Start with the first ``count`` rows of what is there."""
        self.rows = count
        if self.folder is None:
            return
        json_file, csv_file = self._files()
        lines = json_file.read_bytes().splitlines()[:count] if json_file.exists() else []
        rows = [_parsed(json_file, number, line) for number, line in enumerate(lines, 1)]
        self.rows = len(rows)  # fewer after a power cut
        write_atomically(json_file, "".join(json.dumps(row) + "\n" for row in rows))
        write_atomically(csv_file, _csv(dict(zip(FIELDS, FIELDS, strict=True))) + "".join(map(_csv, rows)))
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(self.folder / EVENTS), purge_step=self.rows or None)

    def write(self, row: Row) -> None:
        self.rows += 1
        if self.folder is None:
            return
        for file, line in zip(self._files(), (json.dumps(row) + "\n", _csv(row)), strict=True):
            with file.open("a", encoding="utf-8", newline="") as opened:
                opened.write(line)
        if self._events is not None:
            for name in FIELDS[3:]:
                if row[name] is not None:
                    self._events.add_scalar(f"{row['phase']}/{name}", row[name], self.rows - 1)

    def sync(self) -> None:
        """Onto the disk, before a checkpoint counts on these rows."""
        for file in self._files() if self.folder is not None else ():
            flush(file)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()

    def _files(self) -> tuple[Path, Path]:
        assert self.folder is not None
        return self.folder / LOG, self.folder / LOG_TABLE


def _csv(row: Row) -> str:
    text = io.StringIO()
    csv.DictWriter(text, FIELDS, lineterminator="\n").writerow(row)
    return text.getvalue()


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
