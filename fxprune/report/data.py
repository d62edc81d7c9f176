"""An inspection as JSON; docs/reference/json.md explains every key."""

from __future__ import annotations

import json
import math
from typing import Any

from fxprune.inspection import Inspection
from fxprune.report.summary import METRICS, reachable

SCHEMA = "fxprune.inspect/1"


def as_json(seen: Inspection, budget: float | None = None) -> str:
    """One object: ``schema``, everything that the inspection holds, and ``budget`` (null if none was asked about)."""
    asked = None
    if budget is not None:
        asked = {"fraction": budget, "reachable": {metric: reachable(seen, metric, budget) for metric in METRICS}}
    return json.dumps({"schema": SCHEMA, **_plain(seen.as_dict()), "budget": asked}, indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    """What JSON has no word for (infinity, a dtype that a branch looked at) becomes text.

    >>> _plain({"a": (1, float("inf"), complex(1, 2))})
    {'a': [1, 'inf', '(1+2j)']}
    """
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return repr(value)
