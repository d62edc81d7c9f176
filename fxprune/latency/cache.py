"""Measured times are kept, so that a network is measured once on a machine, and resumed runs count as they did."""

from __future__ import annotations

import contextlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from fxprune.cost.latency import Latency, Line, Meeting, Table
from fxprune.files import write_atomically

PARTS = {"tables": Table, "lines": Line, "meetings": Meeting}
NUMBERS = ("scale", "rest", "power")


def as_json(latency: Latency, machine: dict[str, Any]) -> str:
    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, np.ndarray) else value

    found = {
        name: [{key: plain(value) for key, value in vars(part).items()} for part in getattr(latency, name)]
        for name in PARTS
    }
    return json.dumps({"machine": machine, **{name: getattr(latency, name) for name in NUMBERS}, **found})


def from_json(text: str) -> Latency:
    """``ValueError`` or its kin where the file is damaged."""
    held = json.loads(text)
    tables, lines, meetings = (tuple(_part(kind, entry) for entry in held[name]) for name, kind in PARTS.items())
    found = Latency(tables, lines, meetings)
    for name in NUMBERS:
        setattr(found, name, float(held[name]))
    return found


def _part(kind: Any, entry: dict[str, Any]) -> Any:
    made = {}
    for field in fields(kind):
        value = entry[field.name]
        whole = str(field.type) == "Ids"
        made[field.name] = (
            np.array(value, dtype=np.int64 if whole else np.float64) if isinstance(value, list) else value
        )
    return kind(**made)


def read(path: Path) -> Latency | None:
    """What was measured before; nothing if there is no such file, or it cannot be read."""
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(path: Path, latency: Latency, machine: dict[str, Any]) -> None:
    """Keep it; where nothing can be kept, it is measured again the next time."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, as_json(latency, machine))
