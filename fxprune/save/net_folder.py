"""The folder of a saved net: ``model.py`` and ``weights.pt``, both complete, or no folder at all."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from fxprune.errors import ExportError, FxPruneError, OptionError, one_line
from fxprune.files import as_path, damage, file_above, flush, told
from fxprune.save.source import MARK, class_name, source, whole

MODEL, WEIGHTS = "model.py", "weights.pt"
_number = itertools.count(1)  # makes names of modules and of temporary folders unique in this process


def write(slim: nn.Module, folder: str | os.PathLike[str], version: str) -> Path:
    """See ``fxprune.save``."""
    path = as_path(folder, "folder")
    with told("written", path, ExportError):
        return write_net(slim, path, version)


def write_net(slim: nn.Module, folder: Path, version: str) -> Path:
    """``write``, but an ``OSError`` is left to the caller."""
    if hasattr(slim, "_fxprune_wrapped"):
        raise ExportError("a wrapped net was given to save()", fix="save what fxprune.export(wrapped) returns")
    if not isinstance(slim, fx.GraphModule):
        raise ExportError(
            f"save() takes what fxprune.export returns, not a {type(slim).__name__}",
            fix="wrap and export the model first, or use torch.save",
        )
    path = Path(os.path.realpath(folder))
    check_replaceable(path)
    text = text_of(slim, version)
    tensors = {**dict(slim.named_buffers(remove_duplicate=False)), **slim.state_dict()}
    weights = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}

    def fill(new: Path) -> None:
        (new / MODEL).write_text(text, encoding="utf-8")
        torch.save(weights, new / WEIGHTS)

    _install(path, fill)
    return path


def text_of(slim: fx.GraphModule, version: str) -> str:
    """The source of a net. It is run once: ``ExportError`` if it does not make a net with the same tensors."""
    text = source(slim, version)
    module = _run(text, f"<{MODEL}>", f"fxprune_checked_{next(_number)}")
    del sys.modules[module.__name__]
    with torch.device("meta"):
        net = getattr(module, class_name(slim))()
    if _shapes(net) != _shapes(slim):
        raise ExportError(
            "the source that was written does not hold what the net holds",
            fix="please report this model: it is a bug; torch.save(slim, file) works in the meantime",
        )
    return text


def _shapes(net: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(tensor.shape)) for name, tensor in net.state_dict().items()]


def duplicate(folder: Path, target: str | os.PathLike[str]) -> Path:
    """A copy of a saved net in another folder, which has to be one that ``write`` accepts."""
    path = Path(os.path.realpath(target))
    check_replaceable(path)

    def fill(new: Path) -> None:
        for name in (MODEL, WEIGHTS):
            shutil.copyfile(folder / name, new / name)

    if not (path.exists() and path.samefile(folder)):
        _install(path, fill)
    return path


def _install(path: Path, fill: Callable[[Path], None]) -> None:
    """Let ``fill`` write into a new folder beside ``path`` that then takes its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = f".{path.name}.{os.getpid()}.{next(_number)}"
    new, old = path.with_name(f"{name}.new"), path.with_name(f"{name}.old")
    try:
        new.mkdir()
        fill(new)
        for file in new.iterdir():
            flush(file)
        if path.exists():  # a folder that is not empty cannot be replaced at once
            os.replace(path, old)
        os.replace(new, path)
    except BaseException:
        if old.exists():
            os.replace(old, path)
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def check_replaceable(path: Path) -> None:
    """Refuse to replace anything but an empty folder or one that fxprune wrote."""
    file = path if path.is_file() else file_above(path)
    if file is not None:
        raise ExportError(f"{file} is a file", fix="name a folder that does not exist yet")
    inside = sorted(entry.name for entry in path.iterdir() if entry.name != "__pycache__") if path.exists() else []
    ours = [name for name in inside if name == MODEL and _is_ours(path / MODEL)]
    foreign = [name for name in inside if name != WEIGHTS and name not in ours]
    if foreign or (inside and not ours):  # a folder with weights only may be somebody else's
        raise ExportError(
            f"{path} holds files that fxprune did not write: {', '.join(foreign[:4] or inside)}",
            fix="name a folder that does not exist yet, or empty this one",
        )


def _is_ours(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(MARK)) == MARK.encode()


def read(folder: str | os.PathLike[str], device: str | torch.device) -> nn.Module:
    """See ``fxprune.load``."""
    path = Path(os.path.realpath(as_path(folder, "folder")))
    try:
        torch.empty(0, device=device)
    except Exception as error:
        raise OptionError(
            f"the device {str(device)!r} cannot be used: {one_line(error)}", fix='use "cpu", or a device that is there'
        ) from error
    with told("read", path):
        text = _checked_source(path)
    try:
        load = _run(text, str(path / MODEL), f"fxprune_saved_{path.name}_{next(_number)}").load
    except Exception as error:
        raise _unfit(path / MODEL, "is damaged", one_line(error)) from error
    try:
        net: nn.Module = load(device)
    except Exception as error:
        raise _unfit(path / WEIGHTS, f"does not belong to {MODEL}", one_line(error)) from error
    return net


def _unfit(file: Path, what: str, why: str) -> FxPruneError:
    return FxPruneError(f"{file} {what}: {why}", fix="save the net again")


def _checked_source(path: Path) -> str:
    """The source in a folder, after checks that the folder is complete, undamaged and fxprune's. Nothing is run yet."""
    fix = "name a folder that fxprune.save wrote"
    if not path.is_dir():
        raise FxPruneError(f"there is no folder {path}", fix=fix)
    for name in (MODEL, WEIGHTS):
        if not (path / name).is_file():
            inside = path / "slim"
            is_run = (inside / MODEL).is_file()
            fix = (
                f"it is the folder of a run: name {inside}"
                if is_run
                else "name a complete folder that fxprune.save wrote"
            )
            raise FxPruneError(f"{path} has no {name}", fix=fix)
    if not _is_ours(path / MODEL):
        raise FxPruneError(f"{path / MODEL} was not written by fxprune, so it is not run", fix=fix)
    try:
        text = whole((path / MODEL).read_text(encoding="utf-8"))
    except (ValueError, EOFError) as error:
        raise _unfit(path / MODEL, "is damaged", one_line(error)) from error
    why = damage(path / WEIGHTS)
    if why is not None:
        raise _unfit(path / WEIGHTS, "is damaged", why)
    return text


def _run(text: str, file: str, name: str) -> Any:
    """Import source under a name that no other module has, without leaving compiled files beside it."""
    module = types.ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module
    try:
        exec(compile(text, file, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module
