"""Whether what was read from a file is of the kinds that were written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NUMBER, NOTHING = (int, float), type(None)
Kind = Any  # a type, a tuple of types, or a Table


@dataclass(frozen=True)
class Table:
    """A dict with whatever keys, whose values are all of a kind."""

    of: Kind


def misfit(found: Mapping[Any, Any], kinds: Mapping[str, Kind]) -> str | None:
    """The first entry that is missing or of another kind.

    >>> misfit({"rows": 3, "cost": {"volume": 2.0}}, {"rows": int, "cost": Table(NUMBER)})
    >>> misfit({"rows": "3"}, {"rows": int}), misfit({}, {"rows": int}), misfit({"rows": True}, {"rows": int})
    ('rows is of type str', 'rows is missing', 'rows is of type bool')
    """
    for name, kind in kinds.items():
        if name not in found:
            return f"{name} is missing"
        value = found[name]
        if isinstance(kind, Table):
            inside = misfit(value, dict.fromkeys(value, kind.of)) if isinstance(value, Mapping) else ""
            if inside is not None:
                return f"{name}.{inside}" if inside else f"{name} is of type {type(value).__name__}"
        elif not isinstance(value, kind) or isinstance(value, bool):
            return f"{name} is of type {type(value).__name__}"
    return None
