"""Python expressions as text, made from the values in a graph and laid out within 120 columns as ruff and black would.

Named tuples and data classes that a net returns are written into the source, so that it needs nobody else's code.
"""

from __future__ import annotations

import dataclasses
import keyword
import math
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from fxprune.errors import ExportError

WIDTH = 120
_FILLED = 9  # a list of that many names is written several to a line


@dataclass(frozen=True)
class Group:
    """A bracket that can be broken into lines. Arguments of a call may share a line, entries of a literal not."""

    open: str
    items: tuple[Doc, ...]
    close: str
    call: bool = False
    separator: str = ","


Doc = str | Group


def group(opening: str, items: Iterable[Doc], closing: str, *, call: bool = False) -> Doc:
    """
    >>> flat(group("f(", ["x", group("[", ["1", "2"], "]")], ")"))
    'f(x, [1, 2])'
    """
    parts = tuple(items)
    return Group(opening, parts, closing, call) if parts else opening + closing


def prefixed(text: str, doc: Doc, end: str = "") -> Doc:
    """
    >>> flat(prefixed("x = ", group("(", ["1", "2"], ")"))), prefixed("x = ", "y", ",")
    ('x = (1, 2)', 'x = y,')
    """
    return text + doc + end if isinstance(doc, str) else replace(doc, open=text + doc.open, close=doc.close + end)


def flat(doc: Doc) -> str:
    """On one line."""
    if isinstance(doc, str):
        return doc
    return doc.open + f"{doc.separator} ".join(flat(item) for item in doc.items) + doc.close


def render(doc: Doc, indent: int) -> list[str]:
    """One statement as lines.

    >>> print("\\n".join(render(group("f(", ["a" * 70, "b" * 50], ")", call=True), 4)[::2]))
        f(
            bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb,
    """
    lines, filled = _render(doc, indent)
    if filled:
        lines[-1] += "  # fmt: skip"
    return lines


def _render(doc: Doc, indent: int) -> tuple[list[str], bool]:
    line = " " * indent + flat(doc)
    if isinstance(doc, str) or len(line) <= WIDTH:
        return [line], False
    inner = " " * (indent + 4)
    body = f"{doc.separator} ".join(flat(item) for item in doc.items)
    opening, closing = " " * indent + doc.open, " " * indent + doc.close.removeprefix(",")
    if doc.call and len(inner + body) <= WIDTH:
        return [opening, inner + body, closing], False
    words = [item for item in doc.items if isinstance(item, str)]
    if len(words) == len(doc.items) >= _FILLED and doc.separator == ",":
        return [opening, *_fill(words, inner), closing], True
    lines, filled = [opening], False
    for item in doc.items:
        part, fills = _render(prefixed("", item, doc.separator), indent + 4)
        lines, filled = lines + part, filled or fills
    return [*lines, closing], filled


def _fill(words: list[str], indent: str) -> list[str]:
    lines = [indent]
    for word in words:
        if len(lines[-1]) + len(word) + 1 > WIDTH:
            lines.append(indent)
        lines[-1] += f"{word}, "
    return [line.rstrip() for line in lines]


def sentence(text: str, width: int = 90) -> Doc:
    """A string literal, in several pieces if it is long.

    >>> flat(sentence("it's"))
    '"it\\'s"'
    """
    if len(text) <= width:
        return quoted(text)
    pieces, line = [], ""
    for word in text.split(" "):
        if line and len(line) + len(word) > width:
            pieces.append(line)
            line = ""
        line += word + " "
    pieces.append(line[:-1])
    return Group("(", tuple(quoted(piece) for piece in pieces), ")", separator="")


def quoted(text: str) -> str:
    """A string literal with double quotes, unless that takes more escapes."""
    plain = repr(text)
    if plain[0] == '"' or '"' in text:
        return plain
    return '"' + plain[1:-1] + '"'


def access(path: str, owner: str = "self") -> str:
    """
    >>> access("layer1.0.conv1"), access("stem.in")
    ('self.layer1[0].conv1', 'self.stem["in"]')
    """
    for name in path.split("."):
        if name.isidentifier() and not keyword.iskeyword(name):
            owner += f".{name}"
        elif name.isdecimal() and str(int(name)) == name:
            owner += f"[{name}]"
        else:
            owner += f"[{quoted(name)}]"
    return owner


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


_TEXTS: dict[type, Callable[[Any], str]] = {
    type(None): repr, type(...): lambda _: "...", bool: repr, int: lambda value: str(int(value)), complex: repr,
    float: lambda value: repr(float(value)) if math.isfinite(value) else f'float("{float(value)}")', str: quoted,
    torch.dtype: str, torch.memory_format: str, torch.layout: str,  # str gives the name that torch has for them
    torch.device: lambda value: f"torch.device({quoted(str(value))})",
}  # fmt: skip


def literal(value: Any, node: Callable[[fx.Node], Doc], records: Records) -> Doc:
    """The expression for an argument: numbers, texts, containers, torch's own constants, and nodes by their names.

    >>> [literal(value, str, Records(())) for value in (1, float("-inf"), True, ..., torch.float64)]
    ['1', 'float("-inf")', 'True', '...', 'torch.float64']
    """
    if isinstance(value, fx.Node):
        return node(value)
    text = next((_TEXTS[kind] for kind in type(value).__mro__ if kind in _TEXTS), None)
    if text is not None:
        return text(value)

    def inside(entries: Iterable[Any], names: Iterable[str] = ()) -> list[Doc]:
        docs = [literal(entry, node, records) for entry in entries]
        return [prefixed(name, doc) for name, doc in zip(names, docs, strict=True)] if names else docs

    if isinstance(value, slice):
        return group("slice(", inside((value.start, value.stop, value.step)), ")", call=True)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        name = records.name(type(value))
        return group(f"{name}(", inside(value, [f"{field}=" for field in value._fields]), ")", call=True)
    if isinstance(value, tuple):
        return group("(", inside(value), ",)" if len(value) == 1 else ")")
    if isinstance(value, list):
        return group("[", inside(value), "]")
    if isinstance(value, dict):
        return group("{", inside(value.values(), [f"{flat(key)}: " for key in inside(value)]), "}")
    raise ExportError(
        f"a value of type {type(value).__module__}.{type(value).__qualname__} cannot be written as source",
        fix="keep it out of the model's forward, or save the net with torch.save(slim, file)",
    )
