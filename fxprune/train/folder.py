"""The folder of a run that trains: started, or found and gone on with."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from fxprune.emit.files import as_path
from fxprune.errors import RunError
from fxprune.run import FACTS, NETWORK, Run
from fxprune.train.checkpoint import FILE, load_run
from fxprune.wrapped import Wrapped

# What can be there before the first checkpoint is.
_EARLY = (FACTS, NETWORK, "log.csv", "log.jsonl", "tensorboard")


def open_run(
    folder: str | os.PathLike[str], wrapped: Wrapped, facts: dict[str, Any], resume: bool
) -> tuple[Run, dict[str, Any] | None]:
    """The run, and its checkpoint if it has one."""
    path = as_path(folder, "run")
    try:
        return _open_run(path, wrapped, facts, resume)
    except OSError as error:
        raise RunError(
            f"run={str(path)!r} cannot be written: {error}", fix='name a folder: run="runs/first"'
        ) from error


def _open_run(path: Path, wrapped: Wrapped, facts: dict[str, Any], resume: bool) -> tuple[Run, dict[str, Any] | None]:
    if (path / FILE).is_file():
        if not resume:
            how = "resume=True, or fxprune prune --resume"
            raise RunError(f"{path} holds a run already", fix=f"name an empty folder, or go on with it: {how}")
        saved = load_run(path / FILE)
        if _trained(saved) or saved["facts"] == facts:
            _compare(path, saved["facts"], facts)
            return Run(path), saved
        (path / FILE).unlink()  # stopped before its first step, by a mistake that is mended now
    inside = list(path.iterdir()) if resume and path.is_dir() else []
    if any(FACTS in entry.name for entry in inside) and all(map(_is_early, inside)):
        for entry in inside:  # a run that was cut off before there was anything to keep
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return Run.create(path, wrapped), None


def _trained(saved: dict[str, Any]) -> bool:
    """Whether there is a step that could be lost."""
    at, kept = saved["at"], saved["kept"]
    return bool(at["epoch"] or at["batch"] or "teacher" in kept or "hardened" in kept)


def _is_early(entry: Path) -> bool:
    names = [name for known in (*_EARLY, FILE) for name in (known, f".{known}")]
    return entry.name in _EARLY or (entry.name.endswith(".tmp") and entry.name.startswith(tuple(names)))


def _compare(path: Path, then: dict[str, Any], now: dict[str, Any]) -> None:
    differ = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    if differ:
        said = "; ".join(f"{name} was {then.get(name)!r} and is {now.get(name)!r}" for name in differ)
        raise RunError(
            f"the run in {path} was started with other settings: {said}",
            fix="use the same settings to go on with it, or another folder to start anew"
            + ("; random weights are others in every process: load or seed them" if differ == ["teacher"] else ""),
        )
