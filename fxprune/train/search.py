"""The strength of a penalty that has no budget: tried out until a run ends where the budget is."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fxprune.errors import OptionError
from fxprune.methods import METHODS
from fxprune.train.loop import Pruned
from fxprune.train.settings import Settings

SEARCH = "search"
CLOSE = 1.15  # times the budget, or less by as much: near enough for hardening to do the rest
FACTOR = (2.0, 8.0)  # by which the strength changes at least and at most, until the budget lies between two
TRIES = 6


def find_strength(reached: Callable[[float], float], first: float, tries: int = TRIES) -> float:
    """``reached`` tells what a run of this strength costs at its end, as a multiple of the budget.

    Costs fall with the strength, roughly like a power of it: between two tries the next is where that meets the budget.

    >>> asked = []
    >>> round(find_strength(lambda strength: asked.append(strength) or 30 / strength**1.5, first=1.0), 6)
    9.654894
    >>> [round(strength, 2) for strength in asked]
    [1.0, 8.0, 16.0, 9.65]
    """
    seen: dict[float, float] = {}
    strength = first
    while len(seen) < tries and strength not in seen:
        seen[strength] = max(reached(strength), 1e-3)
        if 1 / CLOSE <= seen[strength] <= CLOSE:
            break
        strength = _next(seen)
    return min(seen, key=lambda tried: (abs(math.log(seen[tried])), -tried))


def _next(seen: dict[float, float]) -> float:
    weak = max((tried for tried, cost in seen.items() if cost > 1), default=None)
    strong = min((tried for tried, cost in seen.items() if cost <= 1), default=None)
    if weak is not None and strong is not None:
        part = math.log(seen[weak]) / math.log(seen[weak] / seen[strong])  # of the way, if it were a straight line
        part = min(max(part, 0.1), 0.9)
        return math.exp((1 - part) * math.log(weak) + part * math.log(strong))
    if weak is not None:
        return weak * min(max(seen[weak], FACTOR[0]), FACTOR[1])
    assert strong is not None
    return strong / min(max(1 / seen[strong], FACTOR[0]), FACTOR[1])


def with_strength(
    settings: Settings, folder: str | os.PathLike[str] | None, go: Callable[[Settings, Any], Pruned],
    note: Callable[[str], None],
) -> Settings:  # fmt: skip
    """The settings as they are; or, where they ask for a search, with what it found. Tries are runs of their own."""
    settings.check()
    options = settings.method_options
    if options.get("strength") != SEARCH:
        return settings
    if not METHODS[settings.method].searchable:
        known = ", ".join(name for name, method in METHODS.items() if method.searchable)
        raise OptionError(f"method {settings.method!r} has no strength to search for", fix=f"{known} have one")
    if settings.teacher == "train":
        raise OptionError(
            'teacher="train" would train a teacher for every strength that is tried',
            fix='train the model first, and write teacher="self"',
        )

    def reached(strength: float) -> float:
        place = None if folder is None else searches(Path(folder)) / f"{strength:.6g}"
        tried = replace(settings, epochs=(settings.epochs[0], 0, 0), method_options={**options, "strength": strength})
        found = float(go(tried, place).report["reached"])
        note(f"strength {strength:.4g}: {found:.3f} of the budget")
        return found

    strength = find_strength(reached, inspect.signature(METHODS[settings.method]).parameters["strength"].default)
    note(f"the strength is {strength:.4g}")
    return replace(settings, method_options={**options, "strength": strength})


def searches(run: Path) -> Path:
    """Where the tries of a run are kept, beside its folder."""
    return run.with_name(f"{run.name}-search")
