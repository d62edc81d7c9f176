"""One file that is always whole: the state of a run, in plain tensors, numbers and texts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from fxprune.emit.kinds import NOTHING, NUMBER, Table, misfit
from fxprune.emit.tensors import load_tensors, one_line
from fxprune.errors import RunError

FILE = "checkpoint.pt"
SCHEMA = "fxprune.checkpoint/1"
_PLAIN = (torch.Tensor, str, bool, int, float, type(None))
_RUN: dict[str, Any] = {
    "facts": dict, "phase": str, "at": dict, "net": dict, "optimizer": dict, "kept": dict, "method": (dict, NOTHING),
    "rows": int, "seconds": NUMBER,
}  # fmt: skip
_AT: dict[str, Any] = {"epoch": int, "batch": int, "total": NUMBER, "samples": int, "accuracy": (*NUMBER, NOTHING)}
_KEPT: dict[str, Any] = {
    "accuracy": Table((*NUMBER, NOTHING)), "teacher": dict, "hardened": dict, "reached": NUMBER, "statistics": int,
    "latency": str,
}  # fmt: skip


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
    """Runs no code of the file's; ``mapped`` leaves tensors on the disk until they are looked at."""
    try:
        state = load_tensors(file, mapped=mapped)
    except Exception as error:  # what a damaged file raises is not documented
        raise damaged(file, one_line(error)) from error
    if not isinstance(state, dict) or state.get("schema") != SCHEMA:
        raise damaged(file, f"it is not of the form {SCHEMA}")
    return state


def load_run(file: Path) -> dict[str, Any]:
    """The state of a run, with everything in it that a run goes on from."""
    state = load(file)
    wrong = misfit(state, _RUN) or misfit(state["at"], _AT)
    if wrong is None:
        kept = state["kept"]
        done = ("accuracy", "reached", "statistics") if "hardened" in kept else ()
        wrong = misfit(kept, {name: kind for name, kind in _KEPT.items() if name in (*kept, *done)})
    if wrong is not None:
        raise damaged(file, wrong)
    return state


def damaged(file: Path | None, why: str) -> RunError:
    return RunError(f"{file} cannot be read: {why}", fix="restore it, or start anew elsewhere")


def unfit(file: Path | None, what: str, error: BaseException) -> RunError:
    return RunError(
        f"{file} does not fit {what}: {one_line(error)}",
        fix="go on with the versions of fxprune and of the model that wrote it, or start in a new folder",
    )


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
