"""The checkpoint: a file that is always complete and holds the state of a run as plain tensors, numbers and texts. And
the start of a run, in an empty folder or from the checkpoint in it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from fxprune.errors import RunError, first_line, one_line
from fxprune.files import NOTHING, NUMBER, Table, as_path, load_tensors, misfit, of_schema, reason, replacing
from fxprune.gated.wrapped import Wrapped
from fxprune.run.folder import Run
from fxprune.run.layout import CHECKPOINT, CHECKPOINT_SCHEMA, EARLY, FACTS

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


def save(file: Path, state: dict[str, Any], *, alone: bool = True) -> None:
    """Replace ``file``. If this is interrupted, either the old file or the new one is there, never a part of one."""
    _check_plain(state, "the checkpoint")
    try:
        with replacing(file, alone=alone) as opened:
            torch.save({"schema": CHECKPOINT_SCHEMA, **state}, opened)
        if os.name == "posix":  # the rename itself, too, must survive a power cut
            descriptor = os.open(file.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except (OSError, RuntimeError) as error:  # the writer of torch raises RuntimeError
        why = reason(error) if isinstance(error, OSError) else first_line(error)
        left = "the one before is intact" if file.exists() else "there is none yet"
        raise RunError(
            f"the checkpoint {file} cannot be written ({why}); {left}",
            fix="make room on the disk, then start the same run again: it goes on from that checkpoint",
        ) from error


def load(file: Path, *, mapped: bool = False) -> dict[str, Any]:
    """Read without running code from the file; ``mapped`` leaves tensors on the disk until they are used."""
    try:
        return of_schema(load_tensors(file, mapped=mapped), CHECKPOINT_SCHEMA)
    except Exception as error:  # what a damaged file raises is not documented
        raise damaged(file, one_line(error)) from error


def load_run(file: Path) -> dict[str, Any]:
    """The state of a run, checked to be complete."""
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


def _check_plain(value: Any, where: str) -> None:
    """Refuse now what ``weights_only`` would refuse when the checkpoint is read."""
    if isinstance(value, (dict, list, tuple)):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            _check_plain(key, where)
            _check_plain(entry, f"{where}[{key!r}]")
    elif not isinstance(value, _PLAIN) or type(value).__module__.startswith("numpy"):
        raise RunError(
            f"{where} is of type {type(value).__module__}.{type(value).__qualname__}, which a checkpoint cannot hold",
            fix="keep tensors, numbers and texts in the states of modules and optimizers",
        )


def open_run(
    folder: str | os.PathLike[str], wrapped: Wrapped, facts: dict[str, Any], resume: bool
) -> tuple[Run, dict[str, Any] | None]:
    """The run, and its checkpoint if it has one."""
    path = as_path(folder, "run")
    try:
        if (path / CHECKPOINT).is_file():
            if not resume:
                how = "resume=True, or fxprune prune --resume"
                raise RunError(f"{path} holds a run already", fix=f"name an empty folder, or go on with it: {how}")
            saved = load_run(path / CHECKPOINT)
            at, kept = saved["at"], saved["kept"]
            is_trained = at["epoch"] or at["batch"] or "teacher" in kept or "hardened" in kept
            if is_trained or saved["facts"] == facts:
                _compare(path, saved["facts"], facts)
                return Run(path), saved
            (path / CHECKPOINT).unlink()  # stopped before its first step, with other settings: nothing is lost
        inside = list(path.iterdir()) if resume and path.is_dir() else []
        if any(FACTS in entry.name for entry in inside) and all(map(_is_early, inside)):
            for entry in inside:  # of a run that was cut off before its first checkpoint
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        return Run.create(path, wrapped), None
    except OSError as error:
        raise RunError(
            f"run={str(path)!r} cannot be written: {error}", fix='name a folder: run="runs/first"'
        ) from error


def _is_early(entry: Path) -> bool:
    names = [name for known in (*EARLY, CHECKPOINT) for name in (known, f".{known}")]
    return entry.name in EARLY or (entry.name.endswith(".tmp") and entry.name.startswith(tuple(names)))


def _compare(path: Path, then: dict[str, Any], now: dict[str, Any]) -> None:
    differ = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    if differ:
        said = "; ".join(f"{name} was {then.get(name)!r} and is {now.get(name)!r}" for name in differ)
        hint = "; random weights are others in every process: load or seed them" if differ == ["teacher"] else ""
        raise RunError(
            f"the run in {path} was started with other settings: {said}",
            fix=f"use the same settings to go on with it, or another folder to start anew{hint}",
        )
