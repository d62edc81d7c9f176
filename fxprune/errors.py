"""Every error a user can cause: what happened, where, and the line to write next."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from numbers import Real
from typing import Any


class FxPruneError(Exception):
    """Base of all errors raised on purpose.

    >>> print(FxPruneError("the budget is 2", where="wrap()", fix="write budget=1/2"))
    the budget is 2
      at:  wrap()
      fix: write budget=1/2
    """

    def __init__(self, cause: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.cause, self.where, self.fix = cause, where, fix
        at, line = f"\n  at:  {where}" if where else "", f"\n  fix: {fix}" if fix else ""
        super().__init__(f"{cause}{at}{line}")


class TraceError(FxPruneError):
    """The model's Python code cannot be turned into a graph."""


class InputError(FxPruneError):
    """The model itself rejects the example inputs."""


class ModelError(FxPruneError):
    """The model cannot be pruned as it is: nothing to prune, NaN weights, wrapped already."""


class OptionError(FxPruneError):
    """An option is out of range, or names something that is not there."""


class TargetError(FxPruneError):
    """A command-line target or input string that leads to no model."""


class RuleError(FxPruneError):
    """A rule was registered twice, or does not fit the node it was asked about."""


class ExportError(FxPruneError):
    """The slim net is not what it should be."""


class RunError(FxPruneError):
    """A run folder that is none, is damaged, or does not hold yet what is asked of it."""


class DataError(FxPruneError):
    """A loader that is empty, or whose batches are not pairs of inputs and target."""


class TrainingError(FxPruneError):
    """Training cannot go on: the loss is not a number any more."""


def said(error: BaseException) -> list[str]:
    """The lines of an error that are not blank, each cut to 500 characters."""
    try:
        return [line.strip()[:500] for line in str(error).splitlines() if line.strip()]
    except Exception:  # its __str__ is broken
        return []


def first_line(error: BaseException) -> str:
    """
    >>> first_line(ValueError("no such width\\nin this net")), first_line(ValueError())
    ('no such width', 'ValueError')
    """
    return (said(error) or [type(error).__name__])[0]


def one_line(error: BaseException) -> str:
    """The first two lines as one: where weights do not fit, torch says only in the second one why."""
    return " ".join(said(error)[:2])[:200] or type(error).__name__


def named(error: BaseException) -> str:
    """
    >>> named(ValueError("no such width\\nin this net")), named(ValueError())
    ('ValueError: no such width', 'ValueError')
    """
    return ": ".join([type(error).__name__, *said(error)[:1]])


def check_choice(name: str, value: Any, known: Iterable[str]) -> None:
    """
    >>> check_choice("noise", "loud", ("batch", "none"))
    Traceback (most recent call last):
    fxprune.errors.OptionError: noise='loud' is unknown
      fix: write one of 'batch', 'none'
    """
    choices = tuple(known)
    if not isinstance(value, str) or value not in choices:
        raise OptionError(f"{name}={value!r} is unknown", fix=f"write one of {', '.join(map(repr, choices))}")


def check_number(name: str, value: Any, least: float, most: float = inf) -> float:
    """The value as a float, if it is a finite number of that range, its ends included.

    >>> check_number("ahead", 0.04, 0, 1), check_number("gain", 125, 0)
    (0.04, 125.0)
    >>> check_number("ahead", 2, 0, 1)
    Traceback (most recent call last):
    fxprune.errors.OptionError: ahead=2 is not a number from 0 to 1
      fix: leave ahead out, or write one of that range
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not least <= float(value) <= most or value == inf:
        wanted = f"from {least:g} to {most:g}" if most < inf else f"from {least:g} on"
        fix = f"leave {name} out, or write one of that range"
        raise OptionError(f"{name}={value!r} is not a number {wanted}", fix=fix)
    return float(value)


def check_switch(name: str, value: Any) -> None:
    """Refuse all but True and False, also what Python would take for one of them."""
    if not isinstance(value, bool):
        raise OptionError(f"{name}={value!r} is neither True nor False", fix=f"write {name}=True, or leave it out")


def several(name: str, given: Any, kinds: type | tuple[type, ...]) -> tuple[Any, ...]:
    """One value of a kind or several, as a tuple.

    >>> several("ignore", "stem.*", str), several("ignore", ["stem", "head"], str)
    (('stem.*',), ('stem', 'head'))
    """
    values = tuple(given) if isinstance(given, Iterable) and not isinstance(given, kinds) else (given,)
    for value in values:
        if not isinstance(value, kinds):
            raise OptionError(f"{name}: {value!r} is not the name of a layer", fix=f"write {name}=['stem.*', 'head']")
    return values
