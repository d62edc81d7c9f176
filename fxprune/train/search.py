"""The strength of a penalty that has no budget: tried out until a run ends where the budget is."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fxprune.methods import METHODS
from fxprune.train.loop import Pruned
from fxprune.train.settings import Settings

SEARCH = "search"
CLOSE = 1.15  # times the budget, or less by as much: near enough for hardening to do the rest
STEP = 4.0  # times the strength, until the budget lies between two
TRIES = 6


def find_strength(reached: Callable[[float], float], first: float, tries: int = TRIES) -> float:
    """``reached`` tells what a run of this strength costs at its end, as a multiple of the budget.

    >>> asked = []
    >>> find_strength(lambda strength: asked.append(strength) or 3 / strength, first=1.0)
    2.8284271247461903
    >>> asked
    [1.0, 4.0, 2.0, 2.8284271247461903]
    """
    seen: dict[float, float] = {}
    strength = first
    while len(seen) < tries:
        seen[strength] = reached(strength)
        if 1 / CLOSE <= seen[strength] <= CLOSE:
            break
        weak = [tried for tried, cost in seen.items() if cost > 1]
        strong = [tried for tried, cost in seen.items() if cost <= 1]
        if not weak:
            strength = min(strong) / STEP
        elif not strong:
            strength = max(weak) * STEP
        else:
            strength = math.sqrt(max(weak) * min(strong))
            if strength in seen:
                break
    return min(seen, key=lambda tried: abs(math.log(max(seen[tried], 1e-9))))


def with_strength(
    settings: Settings, folder: str | os.PathLike[str] | None, go: Callable[[Settings, Any], Pruned]
) -> Settings:
    """The settings as they are; or, where they ask for a search, with what it found. Tries are runs of their own."""
    options = settings.method_options
    if not isinstance(options, Mapping) or options.get("strength") != SEARCH or settings.method not in METHODS:
        return settings

    def reached(strength: float) -> float:
        place = None if folder is None else Path(f"{os.fspath(folder)}-search") / f"{strength:.4g}"
        tried = replace(settings, epochs=(settings.epochs[0], 0, 0), method_options={**options, "strength": strength})
        return float(go(tried, place).report["reached"])

    first = inspect.signature(METHODS[settings.method]).parameters["strength"].default
    return replace(settings, method_options={**options, "strength": find_strength(reached, first)})
