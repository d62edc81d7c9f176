"""One file that is always whole: the state of a run, in plain tensors, numbers and texts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from fxprune.errors import RunError

FILE = "checkpoint.pt"
SCHEMA = "fxprune.checkpoint/1"
_PLAIN = (torch.Tensor, str, bool, int, float, type(None))


def save(file: Path, state: dict[str, Any]) -> None:
    """Replace ``file``; whatever happens meanwhile, the old file or the new one is there, never a part of one."""
    _check_plain(state, "the checkpoint")
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        with temporary.open("wb") as opened:
            torch.save({"schema": SCHEMA, **state}, opened)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(temporary, file)
        _sync_folder(file.parent)
    except (OSError, RuntimeError) as error:  # torch's own writer raises the latter
        why = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        left = "the one before is intact" if file.exists() else "there is none yet"
        raise RunError(
            f"the checkpoint {file} cannot be written ({why}); {left}",
            fix="make room on the disk, then start the same run again: it goes on from that checkpoint",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def load(file: Path, *, mapped: bool = False) -> dict[str, Any]:
    """Runs no code of the file's (``weights_only``); ``mapped`` leaves tensors on the disk until they are looked at."""
    try:
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # what a damaged file raises is not documented
        raise _damaged(file, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error
    if not isinstance(state, dict) or state.get("schema") != SCHEMA:
        raise _damaged(file, f"it is not of the form {SCHEMA}")
    return state


def _damaged(file: Path, why: str) -> RunError:
    return RunError(f"{file} cannot be read: {why}", fix="start anew in another folder")


def _sync_folder(folder: Path) -> None:
    """The rename itself, too, must survive a power cut."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_plain(value: Any, where: str) -> None:
    """What ``weights_only`` would refuse is found when it is written, not when it is needed."""
    if isinstance(value, dict):
        for key, entry in value.items():
            _check_plain(key, where)
            _check_plain(entry, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, entry in enumerate(value):
            _check_plain(entry, f"{where}[{number}]")
    elif not isinstance(value, _PLAIN) or type(value).__module__.startswith("numpy"):
        raise RunError(
            f"{where} is of type {type(value).__module__}.{type(value).__qualname__}, which a checkpoint cannot hold",
            fix="keep tensors, numbers and texts in the states of modules and optimizers",
        )
