"""Files that are complete or not there: written at once, read without running code in them, checked for what they
should hold."""

from __future__ import annotations

import errno
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from fxprune.errors import FxPruneError, OptionError, one_line


def write_atomically(path: Path, data: str | bytes) -> None:
    """Write all of ``data`` or nothing."""
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, "it is there already and is not a regular file", str(path))
    with replacing(path) as opened:
        opened.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def replacing(path: Path, *, alone: bool = False) -> Iterator[BinaryIO]:
    """A temporary file beside ``path``, which takes its place when it is complete and on the disk.

    Several processes may do that at a time; one that is ``alone`` leaves at most one such file when it is killed.
    """
    temporary = path.with_name(f".{path.name}.tmp" if alone else f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as opened:
            yield opened
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def file_above(path: Path) -> Path | None:
    """The file that stands where ``path`` needs a folder above it, or None."""
    nearest = next(parent for parent in path.absolute().parents if parent.exists())
    return None if nearest.is_dir() else nearest


def flush(file: Path) -> None:
    """Wait until a file is on the disk. Without that, a power cut after its rename may leave an empty file."""
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())


def as_path(given: Any, what: str) -> Path:
    """A path that the user gave; ``what`` is the name of the argument.

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
    """Raise ``kind`` where the system refuses a path (no permission, a name that is too long, a full disk)."""
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


_ZIP = b"PK\x03\x04"


def load_tensors(file: str | os.PathLike[str], *, mapped: bool = False) -> Any:
    """Tensors, numbers and texts; ``mapped`` leaves tensors on the disk until they are looked at.

    A damaged file may raise any exception: torch documents none.
    """
    with open(file, "rb") as opened:
        is_zip = opened.read(len(_ZIP)) == _ZIP  # all but those of very old versions of torch
    if is_zip and (why := damage(file)) is not None:
        raise ValueError(why)
    return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)


def damage(file: str | os.PathLike[str]) -> str | None:
    """What is wrong with the archive. torch.load does not compare checksums: it would not see a flipped bit."""
    try:
        with zipfile.ZipFile(file) as archive:
            bad = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, zlib.error, struct.error) as error:
        return one_line(error)
    return None if bad is None else f"the checksum of {bad} is wrong"


def of_schema(content: Any, schema: str) -> dict[str, Any]:
    """The content of a file, if it is a dict whose "schema" is this one; ``ValueError`` otherwise."""
    if not isinstance(content, dict) or content.get("schema") != schema:
        raise ValueError(f"it is not of the form {schema}")
    return content


def read_json(file: Path, schema: str) -> dict[str, Any]:
    """``ValueError`` or ``RecursionError`` where the file is damaged."""
    return of_schema(json.loads(file.read_text(encoding="utf-8")), schema)


def write_json(file: Path, value: Any) -> None:
    write_atomically(file, json.dumps(value, indent=2) + "\n")


NUMBER, NOTHING = (int, float), type(None)
Kind = Any  # a type, a tuple of types, or a Table


@dataclass(frozen=True)
class Table:
    """A dict with whatever keys, whose values are all of a kind."""

    of: Kind


def misfit(content: Mapping[Any, Any], kinds: Mapping[str, Kind]) -> str | None:
    """The first entry that is missing or of another kind.

    >>> misfit({"rows": 3, "cost": {"volume": 2.0}}, {"rows": int, "cost": Table(NUMBER)})
    >>> misfit({"rows": "3"}, {"rows": int}), misfit({}, {"rows": int}), misfit({"rows": True}, {"rows": int})
    ('rows is of type str', 'rows is missing', 'rows is of type bool')
    """
    for name, kind in kinds.items():
        if name not in content:
            return f"{name} is missing"
        value = content[name]
        if isinstance(kind, Table) and isinstance(value, Mapping):
            inside = misfit(value, dict.fromkeys(value, kind.of))
            if inside is not None:
                return f"{name}.{inside}"
        elif isinstance(kind, Table) or not isinstance(value, kind) or isinstance(value, bool):
            return f"{name} is of type {type(value).__name__}"
    return None
