"""Values that stand in a graph as Python expressions. Named tuples and data classes that a net returns are written into
the source, so that it needs nobody else's code."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from fxprune.errors import ExportError
from fxprune.save.layout import Doc, flat, group, prefixed, quoted, render


class Records:
    """The classes met so far and the names that they have in the source."""

    def __init__(self, reserved: Iterable[str]) -> None:
        self.names: dict[type, str] = {}
        self.reserved = set(reserved)

    def name(self, kind: type) -> str:
        """The name of a named tuple, whose methods are left out, or of a data class without any; others are refused."""
        if kind not in self.names:
            if not (is_named_tuple(kind) or is_data_class(kind)):
                raise ExportError(
                    f"the net returns a {kind.__module__}.{kind.__qualname__}, which cannot be written as source",
                    fix="return a dict, a tuple, a named tuple or a data class without methods",
                )
            name, count = kind.__name__, 1
            while name in self.reserved:
                count += 1
                name = f"{kind.__name__}{count}"
            self.names[kind] = name
            self.reserved.add(name)
        return self.names[kind]

    def imports(self) -> list[str]:
        found = []
        if any(is_named_tuple(kind) for kind in self.names):
            found.append("from collections import namedtuple")
        if any(is_data_class(kind) for kind in self.names):
            found += ["from dataclasses import dataclass", "from typing import Any"]
        return found

    def definitions(self) -> list[list[str]]:
        """A block of lines per class."""
        return [self._definition(kind, name) for kind, name in self.names.items()]

    def _definition(self, kind: Any, name: str) -> list[str]:
        if is_named_tuple(kind):
            names = group("[", [quoted(field) for field in kind._fields], "]")
            return render(group(f"{name} = namedtuple(", [quoted(name), names], ")", call=True), 0)
        fields = [f"    {field.name}: Any" for field in dataclasses.fields(kind)]
        return ["@dataclass", f"class {name}:", *fields]


def is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and kind.__bases__ == (tuple,) and hasattr(kind, "_fields")


_GENERATED = set(vars(dataclasses.make_dataclass("Empty", [], order=True, frozen=True)))


def is_data_class(kind: Any) -> bool:
    """Made by ``@dataclass`` and nothing else: no base, no method, only fields that __init__ takes."""
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind) or kind.__bases__ != (object,):
        return False
    code = (types.FunctionType, property, classmethod, staticmethod)
    own = [name for name, value in vars(kind).items() if isinstance(value, code) and name not in _GENERATED]
    return not own and all(field.init for field in dataclasses.fields(kind))


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
