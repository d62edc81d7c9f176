"""The generated ``forward`` looks a block up once, not in every statement that calls one of its layers.

``getattr(self.layer1, "0").conv1`` takes as long as a small op: three of torch's own lookups, each of them in Python.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class _Lookup:
    """An expression that stands for a block, and where: first and last byte in its line of the code."""

    path: tuple[str, ...]
    line: int
    start: int
    end: int


def share_lookups(body: list[str]) -> list[str]:
    """For ``Graph.on_generate_code``.

    >>> print("".join(share_lookups(['y = getattr(self.a, "0").one(x)\\n', 'return getattr(self.a, "0").two(y)\\n'])))
    a_0 = getattr(self.a, "0")
    y = a_0.one(x)
    return a_0.two(y)
    <BLANKLINE>
    """
    text = "".join(body)
    if "\x1b" in text:  # in colours, for a terminal
        return body
    tree = ast.parse(text)
    found = [each for node in ast.walk(tree) for each in _block_of(node)]
    often = Counter(each.path for each in found)
    shared = sorted((each for each in found if often[each.path] > 1), key=lambda each: (each.line, each.start))
    taken = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names = {path: _name(path, taken) for path in dict.fromkeys(each.path for each in shared)}
    first = {each.path: each for each in reversed(shared)}
    lines = [line.encode() for line in text.split("\n")]
    made: dict[int, list[bytes]] = {}
    for path, name in names.items():
        place = first[path]
        made.setdefault(place.line, []).append(f"{name} = ".encode() + lines[place.line][place.start : place.end])
    for each in reversed(shared):  # from the end, so that places stay what they are
        line = lines[each.line]
        lines[each.line] = line[: each.start] + names[each.path].encode() + line[each.end :]
    return [b"\n".join(part for number, line in enumerate(lines) for part in (*made.get(number, ()), line)).decode()]


def _block_of(node: ast.AST) -> list[_Lookup]:
    """What a call such as ``self.layer1.conv(x)`` looks the layer up in; not the net itself."""
    if not isinstance(node, ast.Call):
        return []
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    if isinstance(node.func, ast.Call) and _path(node.func) is not None:  # getattr(block, "0")(x)
        owner = node.func.args[0]
    path = _path(owner) if owner is not None else None
    if not path or owner is None or owner.end_col_offset is None or owner.lineno != owner.end_lineno:
        return []
    return [_Lookup(path, owner.lineno - 1, owner.col_offset, owner.end_col_offset)]


def _path(node: ast.AST) -> tuple[str, ...] | None:
    """Attribute names from ``self`` on; None for anything else."""
    if isinstance(node, ast.Name):
        return () if node.id == "self" else None
    if isinstance(node, ast.Attribute):
        owner = _path(node.value)
        return None if owner is None else (*owner, node.attr)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        owner = _path(node.args[0])
        name = node.args[1]
        return (*owner, str(name.value)) if owner is not None and isinstance(name, ast.Constant) else None
    return None


def _name(path: tuple[str, ...], taken: set[str]) -> str:
    """Unlike any other, and noted as taken."""
    name = re.sub(r"\W", "_", "_".join(path))
    name = name if name.isidentifier() else f"_{name}"
    while name in taken:
        name += "_"
    taken.add(name)
    return name
