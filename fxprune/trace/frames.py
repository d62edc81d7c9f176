"""Which line of the model's own code is being executed, or failed."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path, PureWindowsPath
from typing import Any

import torch

_TRACE = str(Path(__file__).parent) + os.sep
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_LIBRARY = (str(torch.__path__[0]) + os.sep, _TRACE)


def user_line() -> str | None:
    """``file:line`` of the innermost frame that is neither torch's nor ours."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((*_LIBRARY, "<")):
            return None if name.startswith(_PACKAGE) else f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def call_site() -> tuple[int, int]:
    """The instruction of the model's code that is being executed."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        frame = frame.f_back
    return (id(frame), frame.f_lasti) if frame is not None else (0, 0)


def error_line(error: BaseException) -> str | None:
    where, step = None, error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        if not name.startswith(_LIBRARY):
            where = f"{name}:{step.tb_lineno}"
        step = step.tb_next
    return where


def short_source(source: str | None) -> str:
    """``file:line`` with the last two parts of the path, so that it reads the same on every machine.

    >>> short_source("/usr/lib/python3/site-packages/torchvision/models/resnet.py:268")
    'models/resnet.py:268'
    """
    if not source:
        return ""
    inside = Path(source)
    if inside.is_absolute() and inside.parent == Path.cwd():
        return inside.name
    parts = PureWindowsPath(source).parts if "\\" in source else inside.parts
    return "/".join(part.strip("\\/") for part in parts[-2:])


def is_user_function(target: Any) -> bool:
    """Python code that is neither torch's nor the standard library's."""
    return isinstance(target, types.FunctionType) and (target.__module__ or "").split(".")[0] not in ("torch", "math")
