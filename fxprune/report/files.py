"""Writing files so that nobody ever finds half of one."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """All of ``text`` or nothing: a temporary file beside ``path`` takes its place when it is complete."""
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise OSError("it is there already and is not a regular file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
