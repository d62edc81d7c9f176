"""An inspection as JSON; docs/reference/json.md explains every key."""

from __future__ import annotations

import json

from fxprune.inspection import Inspection, plain
from fxprune.report.summary import METRICS, reachable

SCHEMA = "fxprune.inspect/1"


def as_json(seen: Inspection, budget: float | None = None) -> str:
    """One object: ``schema``, everything that the inspection holds, and ``budget`` (null if none was asked about)."""
    asked = None
    if budget is not None:
        asked = {"fraction": budget, "reachable": {metric: reachable(seen, metric, budget) for metric in METRICS}}
    return json.dumps({"schema": SCHEMA, **plain(seen.as_dict()), "budget": asked}, indent=2, allow_nan=False)
