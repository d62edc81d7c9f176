"""Writing files so that nobody ever finds half of one."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, data: str | bytes) -> None:
    """All of ``data`` or nothing: a temporary file beside ``path`` takes its place when it is complete."""
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise OSError("it is there already and is not a regular file")
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
