"""Reading and writing files so that nobody ever finds half of one, and everybody is told what is wrong."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fxprune.errors import FxPruneError, OptionError


def write_atomically(path: Path, data: str | bytes) -> None:
    """All of ``data`` or nothing: a temporary file beside ``path`` takes its place when it is complete."""
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, "it is there already and is not a regular file", str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)
        flush(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def file_above(path: Path) -> Path | None:
    """The file in whose place there would have to be a folder, for ``path`` to be made."""
    found = next(parent for parent in path.absolute().parents if parent.exists())
    return None if found.is_dir() else found


def flush(file: Path) -> None:
    """Onto the disk, before a rename makes it count: after a power cut there must not be an empty file of that name."""
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())


def as_path(given: Any, what: str) -> Path:
    """What the user calls a path.

    >>> as_path(3, "run")
    Traceback (most recent call last):
    fxprune.errors.OptionError: run=3 is no path
      fix: write run="a/folder"
    """
    if not isinstance(given, (str, os.PathLike)) or not isinstance(os.fspath(given), str) or "\0" in os.fspath(given):
        raise OptionError(f"{what}={given!r} is no path", fix=f'write {what}="a/folder"')
    return Path(given)


@contextmanager
def told(doing: str, path: Path, kind: type[FxPruneError] = FxPruneError) -> Iterator[None]:
    """What the system has against a path (no permission, a name too long, a disk that is full) is told as ``kind``."""
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else path
        raise kind(
            f"{path} cannot be {doing}: {reason(error)}", fix=f"look at {where}: its permissions, its disk, its name"
        ) from error


def reason(error: OSError) -> str:
    """
    >>> reason(OSError(28, "No space left on device")), reason(OSError("odd"))
    ('No space left on device', 'odd')
    """
    return error.strerror or str(error) or type(error).__name__
