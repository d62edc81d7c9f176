"""The strength of a penalty without a budget of its own, searched by runs until one ends near the budget."""

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
CLOSE = 1.15  # up to this factor above or below the budget: hardening does the rest
FACTOR = (2.0, 8.0)  # the least and the largest change of the strength, until the budget lies between two tries
TRIES = 6


def find_strength(reached: Callable[[float], float], first: float, tries: int = TRIES) -> float:
    """``reached`` returns the cost at the end of a run with this strength, as a multiple of the budget.

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
        part = math.log(seen[weak]) / math.log(seen[weak] / seen[strong])  # of the way, in logarithms
        part = min(max(part, 0.1), 0.9)
        return math.exp((1 - part) * math.log(weak) + part * math.log(strong))
    if weak is not None:
        return weak * min(max(seen[weak], FACTOR[0]), FACTOR[1])
    assert strong is not None
    return strong / min(max(1 / seen[strong], FACTOR[0]), FACTOR[1])


def with_strength(
    settings: Settings, folder: str | os.PathLike[str] | None, run: Callable[[Settings, Any], Pruned],
    note: Callable[[str], None],
) -> Settings:  # fmt: skip
    """The settings themselves, or with the strength found if they ask for a search. Each try is a run of its own."""
    options = settings.method_options
    if options.get("strength") != SEARCH:
        return settings
    method = METHODS[settings.method]
    if not method.searchable:
        known = ", ".join(name for name, each in METHODS.items() if each.searchable)
        raise OptionError(f"method {settings.method!r} has no strength to search for", fix=f"{known} have one")
    if settings.teacher == "train":
        raise OptionError(
            'teacher="train" would train a teacher for every strength that is tried',
            fix='train the model first, and write teacher="self"',
        )

    def reached(strength: float) -> float:
        place = None if folder is None else searches(Path(folder)) / f"{strength:.6g}"
        tried = replace(settings, epochs=(settings.epochs[0], 0, 0), method_options={**options, "strength": strength})
        share = float(run(tried, place).report["reached"])
        note(f"strength {strength:.4g}: {share:.3f} of the budget")
        return share

    strength = find_strength(reached, inspect.signature(method).parameters["strength"].default)
    note(f"the strength is {strength:.4g}")
    return replace(settings, method_options={**options, "strength": strength})


def searches(run: Path) -> Path:
    """The folder for the tries of a run, beside its own."""
    return run.with_name(f"{run.name}-search")
