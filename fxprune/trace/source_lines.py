"""Which line of the model's own code is being executed, or failed."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path, PureWindowsPath
from traceback import walk_stack, walk_tb
from typing import Any

import torch

_TRACE = str(Path(__file__).parent) + os.sep
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_LIBRARY = (str(torch.__path__[0]) + os.sep, _TRACE)


def user_line() -> str | None:
    """``file:line`` of the innermost frame that is neither in torch nor in fxprune."""
    for frame, line in walk_stack(sys._getframe(1)):
        name = frame.f_code.co_filename
        if not name.startswith((*_LIBRARY, "<")):
            return None if name.startswith(_PACKAGE) else f"{name}:{line}"
    return None


def call_site() -> tuple[int, int]:
    """The instruction of the model's code that is being executed."""
    frames = (frame for frame, _ in walk_stack(sys._getframe(1)))
    own = next((frame for frame in frames if not frame.f_code.co_filename.startswith(_LIBRARY)), None)
    return (id(own), own.f_lasti) if own is not None else (0, 0)


def error_line(error: BaseException) -> str | None:
    """``file:line`` of the innermost frame in the error's traceback that is neither in torch nor in the tracer."""
    lines = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    return next((f"{name}:{line}" for name, line in reversed(lines) if not name.startswith(_LIBRARY)), None)


def short_source(source: str | None) -> str:
    """``file:line`` with the last two parts of the path, so that it reads the same on every machine.

    >>> short_source("/usr/lib/python3/site-packages/torchvision/models/resnet.py:268")
    'models/resnet.py:268'
    """
    if not source:
        return ""
    path = Path(source)
    if path.is_absolute() and path.parent == Path.cwd():
        return path.name
    parts = PureWindowsPath(source).parts if "\\" in source else path.parts
    return "/".join(part.strip("\\/") for part in parts[-2:])


def is_user_function(target: Any) -> bool:
    """Is it written in Python, and neither in torch nor in ``math``?"""
    return isinstance(target, types.FunctionType) and (target.__module__ or "").split(".")[0] not in ("torch", "math")
