"""Other people's code: what it raises, in one line with its place; and what it prints, which is no part of a report."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from fxprune.errors import FxPruneError

_NOT_THE_CAUSE = (str(Path(__file__).parent), str(importlib.__file__))


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


@contextlib.contextmanager
def blamed(explain: Callable[[BaseException], FxPruneError]) -> Iterator[None]:
    """Whatever the user's code raises, an exit included, is told as its fault; Ctrl-C is nobody's."""
    try:
        yield
    except (FxPruneError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise explain(error) from error


@contextlib.contextmanager
def unprinted() -> Iterator[None]:
    """What is printed meanwhile goes to stderr, also by child processes and by code that is not Python."""
    out = sys.__stdout__
    real = out is not None and out is sys.stdout
    with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as after:
        if out is not None and real:
            out.flush()
            with contextlib.suppress(OSError, ValueError, AttributeError):  # one of them may be closed
                kept = os.dup(out.fileno())
                after.callback(os.close, kept)
                os.dup2(sys.stderr.fileno(), out.fileno())
                after.callback(os.dup2, kept, out.fileno())
                after.callback(out.flush)
        yield
