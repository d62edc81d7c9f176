"""Files that ``torch.save`` wrote: read without running anything of theirs, and only whole."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from typing import Any

import torch

_ZIP = b"PK\x03\x04"


def load_tensors(file: str | os.PathLike[str], *, mapped: bool = False) -> Any:
    """Tensors, numbers and texts; ``mapped`` leaves tensors on the disk until they are looked at.

    What a damaged file raises is anything: torch documents nothing.
    """
    with open(file, "rb") as opened:
        is_zip = opened.read(len(_ZIP)) == _ZIP  # all but those of very old versions of torch
    why = damage(file) if is_zip else None
    if why is not None:
        raise ValueError(why)
    return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)


def damage(file: str | os.PathLike[str]) -> str | None:
    """What is wrong with the archive. torch.load does not compare checksums: a flipped bit would go unnoticed."""
    try:
        with zipfile.ZipFile(file) as archive:
            bad = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, zlib.error, struct.error) as error:
        return one_line(error)
    return None if bad is None else f"the checksum of {bad} is wrong"


def one_line(error: BaseException) -> str:
    """What an error says, or what it is called if it says nothing."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    return " ".join(lines[:2])[:200] or type(error).__name__
