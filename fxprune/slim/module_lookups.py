"""The generated ``forward`` takes layers from their blocks' dictionaries, and looks up each block once.

``getattr(self.layer1, "0").conv1`` takes as long as a small op: three of torch's own lookups, each of them in Python.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class _Lookup:
    """An expression that stands for a layer, and where: first and last byte in its line of the code."""

    block: tuple[str, ...]
    name: str
    line: int
    start: int
    end: int


def share_lookups(body: list[str]) -> list[str]:
    """For ``Graph.on_generate_code``, which writes a statement per node: a layer is called by a whole statement.

    >>> print("".join(share_lookups(['y = getattr(self.a, "0").one(x)\\n', 'return getattr(self.a, "0").two(y)\\n'])))
    a_0 = self._modules["a"]._modules["0"]._modules
    y = a_0["one"](x)
    return a_0["two"](y)
    <BLANKLINE>
    """
    text = "".join(body)
    if "\x1b" in text:  # in colours, for a terminal
        return body
    lookups = [each for statement in ast.parse(text).body for each in _layer_of(getattr(statement, "value", None))]
    taken = set(_NAME.findall(text))
    lines = [line.encode() for line in text.split("\n")]
    names: dict[tuple[str, ...], str] = {}
    blocks: dict[int, list[bytes]] = {}
    for each in lookups:
        if each.block not in names:
            names[each.block] = _name(each.block, taken)
            blocks.setdefault(each.line, []).append(f"{names[each.block]} = {_dictionary(each.block)}".encode())
    for each in reversed(lookups):  # from the end, so that places stay what they are
        line, layer = lines[each.line], f'{names[each.block]}["{each.name}"]'
        lines[each.line] = line[: each.start] + layer.encode() + line[each.end :]
    return [b"\n".join(part for number, line in enumerate(lines) for part in (*blocks.get(number, ()), line)).decode()]


_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*")  # some of these are names of arguments, or words in a message


def _layer_of(node: ast.AST | None) -> list[_Lookup]:
    """What a call such as ``self.layer1.conv(x)`` calls."""
    if not isinstance(node, ast.Call):
        return []
    func = node.func
    path = _path(func)
    if not path:
        return []
    assert func.end_col_offset is not None and func.lineno == func.end_lineno
    return [_Lookup(path[:-1], path[-1], func.lineno - 1, func.col_offset, func.end_col_offset)]


def _dictionary(block: tuple[str, ...]) -> str:
    """
    >>> _dictionary(()), _dictionary(("a",))
    ('self._modules', 'self._modules["a"]._modules')
    """
    return "self._modules" + "".join(f'["{name}"]._modules' for name in block)


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
    name = re.sub(r"\W", "_", "_".join(path)) or "layers"
    name = name if name.isidentifier() else f"_{name}"
    while name in taken:
        name += "_"
    taken.add(name)
    return name
