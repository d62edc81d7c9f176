"""Values that stand in a graph as Python expressions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fxprune.emit.layout import Doc, flat, group, prefixed, quoted
from fxprune.emit.records import Records
from fxprune.errors import ExportError

_NAMED = (torch.dtype, torch.memory_format, torch.layout)  # these print as what they are called


def literal(value: Any, node: Callable[[fx.Node], Doc], records: Records) -> Doc:
    """The expression for an argument: numbers, texts, containers, torch's own constants, and nodes by their names."""
    if isinstance(value, fx.Node):
        return node(value)
    if value is None or value is Ellipsis or isinstance(value, (bool, int, float, complex)):
        return number(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, _NAMED):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({quoted(str(value))})"

    def inside(entry: Any) -> Doc:
        return literal(entry, node, records)

    if isinstance(value, slice):
        return group("slice(", map(inside, (value.start, value.stop, value.step)), ")", call=True)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        name = records.name(type(value))
        fields = zip(value._fields, value, strict=True)
        return group(f"{name}(", [prefixed(f"{key}=", inside(entry)) for key, entry in fields], ")", call=True)
    if isinstance(value, tuple):
        return group("(", map(inside, value), ",)" if len(value) == 1 else ")")
    if isinstance(value, list):
        return group("[", map(inside, value), "]")
    if isinstance(value, dict):
        return group("{", [prefixed(f"{flat(inside(key))}: ", inside(entry)) for key, entry in value.items()], "}")
    raise ExportError(
        f"a value of type {type(value).__module__}.{type(value).__qualname__} cannot be written as source",
        fix="keep it out of the model's forward, or save the net with torch.save(slim, file)",
    )


def number(value: Any) -> str:
    """
    >>> number(1), number(float("-inf")), number(True), number(...)
    ('1', 'float("-inf")', 'True', '...')
    """
    if value is Ellipsis:
        return "..."
    if isinstance(value, bool):
        return str(bool(value))
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{float(value)}")'
    return repr(float(value)) if isinstance(value, float) else repr(value)
