"""Other people's exceptions in one line: what happened, and in whose code."""

from __future__ import annotations

import importlib
from pathlib import Path

_NOT_THE_CAUSE = (str(Path(__file__).parent), str(importlib.__file__))


def told(error: BaseException) -> str:
    """
    >>> told(ValueError("no such width"))
    'ValueError: no such width'
    """
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def where_of(error: BaseException) -> str | None:
    """``file:line`` of the innermost frame that is somebody's code and not ours or the import machinery's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    where, step = None, error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        if not name.startswith("<") and not name.startswith(_NOT_THE_CAUSE):
            where = f"{name}:{step.tb_lineno}"
        step = step.tb_next
    return where
