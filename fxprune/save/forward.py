"""The graph as the body of ``forward``: one statement per op, with functions called as a source calls them that imports
torch only; names are used again as soon as nobody needs their values."""

from __future__ import annotations

import builtins
import inspect
import keyword
import math
import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import count
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from fxprune.errors import ExportError
from fxprune.rules.operands import ADD_TO
from fxprune.save.layout import Doc, flat, group, prefixed, quoted, render, sentence
from fxprune.save.literal import Records, is_data_class, is_named_tuple, literal
from fxprune.save.tree import access
from fxprune.torch_private import InnerOps
from fxprune.trace.frames import short_source

INFIX = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//",
    operator.mod: "%", operator.pow: "**", operator.matmul: "@", operator.and_: "&", operator.or_: "|",
    operator.xor: "^", operator.lshift: "<<", operator.rshift: ">>", operator.eq: "==", operator.ne: "!=",
    operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
}  # fmt: skip
PREFIX = {operator.neg: "-", operator.pos: "+", operator.invert: "~", operator.not_: "not "}

_PLACES: tuple[tuple[str, ModuleType], ...] = (
    ("F", F), ("torch", torch), ("torch.linalg", torch.linalg), ("torch.special", torch.special),
    ("torch.fft", torch.fft), ("torch.nn.utils.rnn", torch.nn.utils.rnn), ("math", math), ("operator", operator),
)  # fmt: skip


@cache
def _public_names() -> dict[int, str]:
    """Where a function can be reached; the first place that has it wins, its own name before its aliases."""
    found: dict[int, str] = {}
    for prefix, place in _PLACES:
        names = [name for name in vars(place) if not name.startswith("__")]
        for name in sorted(names, key=lambda name: (name.startswith("_"), _own_name(place, name) != name)):
            value = getattr(place, name)
            if callable(value) and not isinstance(value, type):
                found.setdefault(id(value), f"{prefix}.{name}")
    return found


def _own_name(place: ModuleType, name: str) -> str:
    return str(getattr(getattr(place, name), "__name__", ""))


def function_name(function: Any) -> str:
    """
    >>> [function_name(f) for f in (torch.sigmoid, F.relu, torch._C._nn.gelu, F.max_pool2d, math.sqrt, len)]
    ['torch.sigmoid', 'F.relu', 'F.gelu', 'F.max_pool2d', 'math.sqrt', 'len']
    >>> function_name(torch.ops.aten.relu.default), function_name(torch.linalg.vector_norm)
    ('torch.ops.aten.relu.default', 'torch.linalg.vector_norm')
    """
    known = _public_names().get(id(function))
    if known is not None:
        return known
    name = getattr(function, "__name__", type(function).__name__)
    if isinstance(function, (BuiltinFunctionType, type)) and getattr(builtins, name, None) is function:
        return str(name)
    if isinstance(function, InnerOps):
        if str(function).startswith("aten."):
            return f"torch.ops.{function}"
    elif isinstance(function, type) and getattr(torch, name, None) is function:
        return f"torch.{name}"
    owner = getattr(function, "__module__", None) or ""
    raise ExportError(
        f"{owner}.{name} is not torch's, so source that needs torch only cannot call it".lstrip("."),
        fix="write it with torch functions, or save the net with torch.save(slim, file), which needs your code to load",
    )


def without_defaults(function: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments that say something.

    >>> without_defaults(F.relu, {"inplace": False}), without_defaults(F.dropout, {"p": 0.1, "training": True})
    ({}, {'p': 0.1})
    """
    if not isinstance(function, FunctionType) or not kwargs:
        return kwargs
    known = inspect.signature(function).parameters

    def is_default(name: str, value: Any) -> bool:
        default = known[name].default if name in known else inspect.Parameter.empty
        plain = isinstance(value, (int, float, str)) and type(value) is type(default)
        return value is default or (plain and bool(value == default))

    return {name: value for name, value in kwargs.items() if not is_default(name, value)}


_SIZES = ("dim", "size", "numel")
_FACTS = ("shape", "ndim", "dtype", "device")
_ARITHMETIC = {*INFIX, *PREFIX} - {operator.matmul}
_LETTERS = ["x", "y", "z", "u", "v", "w", "a", "b", "c", "d", "e"]


class Forward:
    """Turns one graph into lines; ``reserved`` are names that no variable may have."""

    def __init__(self, graph: fx.Graph, records: Records, reserved: Iterable[str]) -> None:
        self.records = records
        self.nodes: list[fx.Node] = list(graph.nodes)
        self.inputs = [node for node in self.nodes if node.op == "placeholder"]
        self.names: dict[fx.Node, str] = {node: str(node.target).lstrip("*") for node in self.inputs}
        for name in set(reserved) & set(self.names.values()):
            raise ExportError(f"an input of the net is called {name!r}", fix="rename it: the source needs this name")
        self.reserved = {*reserved, *self.names.values()} - set(_LETTERS)
        self.blocks = self._name_blocks()
        self.numbers = {node for node in self.nodes if self._is_number(node)}
        self.inlined = self._choose_inlined()
        self.used: set[str] = set()  # functions that were called, for the imports

    def lines(self, indent: int) -> list[str]:
        """Signature and body."""
        arguments = [self._argument(node) for node in self.inputs]
        made = render(group("def forward(", ["self", *arguments], "):", call=True), indent)
        statements = [node for node in self.nodes if node.op != "placeholder" and node not in self.inlined]
        last = {read: node for node in statements for read in self._reads(node)}
        known: set[str] = set()
        for node in statements:
            block = str(node.target).rpartition(".")[0] if node.op == "call_module" else ""
            if block in self.blocks and block not in known:
                known.add(block)
                made += render(f"{self.blocks[block]} = {access(block)}._modules", indent + 4)
            made += render(self._statement(node, last), indent + 4)
        return made

    # ------------------------------------------------------------ names

    def _name_blocks(self) -> dict[str, str]:
        """Blocks of which several layers are called: each is looked up once, and its layers in its dictionary, since
        ``block.conv`` takes as long as a small op."""
        owners = Counter(str(node.target).rpartition(".")[0] for node in self.nodes if node.op == "call_module")
        found: dict[str, str] = {}
        for path in (path for path, times in owners.items() if path and times > 1):
            stem = re.sub(r"\W", "_", path)
            stem = f"{stem}_" if keyword.iskeyword(stem) or re.fullmatch(r"[a-z]\d*", stem) else stem
            stem = stem if stem.isidentifier() else f"_{stem}"
            found[path] = next(name for name in _numbered(stem) if name not in self.reserved)
            self.reserved.add(found[path])
        return found

    def _layer(self, path: str) -> str:
        block, _, name = path.rpartition(".")
        return f"{self.blocks[block]}[{quoted(name)}]" if block in self.blocks else access(path)

    def _argument(self, node: fx.Node) -> Doc:
        name = str(node.target)
        return prefixed(f"{name}=", self.value(node.args[0])) if node.args else name

    def _reads(self, node: fx.Node) -> list[fx.Node]:
        """The variables that a statement reads, also through what is written inside of it."""
        found: dict[fx.Node, None] = {}
        for parent in node.all_input_nodes:
            if parent in self.inlined:
                found.update(dict.fromkeys(self._reads(parent)))
            else:
                found[parent] = None
        return list(found)

    def _new_name(self, node: fx.Node, last: dict[fx.Node, fx.Node]) -> str:
        """The first name of an operand that dies here, or the first one that is free."""
        dying = self._forget(node, last)
        taken = set(self.names.values()) | self.reserved
        if node in self.numbers:
            return next(name for name in _numbered(_stem(node)) if name not in taken)
        again = [name for name in dying if re.fullmatch(r"[a-z]\d*", name) and name not in taken]
        if again:
            return min(again, key=lambda name: (len(name), (*_LETTERS, name).index(name), name))
        return next(name for name in _letters() if name not in taken)

    def _forget(self, node: fx.Node, last: dict[fx.Node, fx.Node]) -> list[str]:
        """Names whose value nobody reads after this statement are free; which?"""
        return [self.names.pop(read) for read in self._reads(node) if last[read] is node]

    # ------------------------------------------------------------ what is written inside other statements

    def _is_number(self, node: fx.Node) -> bool:
        """Sizes and what is computed from them."""
        if node.op == "call_method":
            return node.target in _SIZES and (node.target != "size" or len(node.args) + len(node.kwargs) > 1)
        if node.target is getattr:
            return len(node.args) == 2 and node.args[1] in _FACTS
        arithmetic = node.op == "call_function" and node.target in _ARITHMETIC
        return arithmetic and bool(node.all_input_nodes) and all(self._is_number(n) for n in node.all_input_nodes)

    def _choose_inlined(self) -> set[fx.Node]:
        """Attributes; and numbers with one reader that follows at once, so that no tensor waits for it."""
        found = {node for node in self.nodes if node.op == "get_attr"}
        position = {node: number for number, node in enumerate(self.nodes)}
        for node in self.numbers:
            if len(node.users) == 1:
                between = self.nodes[position[node] + 1 : position[next(iter(node.users))]]
                if all(other in self.numbers or other.op == "get_attr" for other in between):
                    found.add(node)
        found.update(
            node.all_input_nodes[0] for node in self.nodes if node.target is ADD_TO
        )  # x.narrow(1, 0, 8).add_(y)
        return found

    # ------------------------------------------------------------ statements

    def _statement(self, node: fx.Node, last: dict[fx.Node, fx.Node]) -> Doc:
        try:
            return self._written(node, last)
        except ExportError as error:
            raise ExportError(error.cause, where=f"{node.name} in the graph of the net", fix=error.fix) from None

    def _written(self, node: fx.Node, last: dict[fx.Node, fx.Node]) -> Doc:
        if node.op == "output":
            return prefixed("return ", self.value(node.args[0]))
        if node.target is torch._assert:
            message = re.sub(r"(\S*[\\/]\S+:\d+)", lambda found: short_source(found[1]), str(node.args[1]))
            made = group("torch._assert(", [self.value(node.args[0]), sentence(message)], ")", call=True)
        else:
            made = self._expression(node)
            if node.users:
                name = self._new_name(node, last)
                self.names[node] = name
                return prefixed(f"{name} = ", made)
        self._forget(node, last)
        return made

    def value(self, argument: Any) -> Doc:
        return literal(argument, self._read, self.records)

    def _read(self, node: fx.Node) -> Doc:
        return self._expression(node) if node in self.inlined else self.names[node]

    def _operand(self, argument: Any) -> str:
        """In front of or behind an operator."""
        text = flat(self.value(argument))
        compound = isinstance(argument, fx.Node) and argument in self.inlined and argument.target in _ARITHMETIC
        return f"({text})" if compound or text.startswith("-") else text

    def _expression(self, node: fx.Node) -> Doc:
        if node.op == "get_attr":
            return access(str(node.target))
        if node.op == "call_module":
            return self._call(self._layer(str(node.target)), node.args, node.kwargs)
        if node.op == "call_method":
            return self._call(f"{self._operand(node.args[0])}.{node.target}", node.args[1:], node.kwargs)
        return self._function(node)

    def _function(self, node: fx.Node) -> Doc:
        function: Any = node.target
        if not node.kwargs and function in INFIX and len(node.args) == 2:
            left, right = (self._operand(argument) for argument in node.args)
            return f"{left} {INFIX[function]} {right}"
        if not node.kwargs and function in PREFIX:
            return PREFIX[function] + self._operand(node.args[0])
        if function is operator.getitem:
            return f"{self._operand(node.args[0])}[{self._index(node.args[1])}]"
        if function is getattr and len(node.args) == 2 and str(node.args[1]).isidentifier():
            return f"{self._operand(node.args[0])}.{node.args[1]}"
        if is_named_tuple(function) or is_data_class(function):
            return self._call(self.records.name(function), node.args, node.kwargs)
        if function is ADD_TO:
            return self._call(f"{self._operand(node.args[0])}.add_", node.args[1:], node.kwargs)
        name = function_name(function)
        self.used.add(name)
        return self._call(name, node.args, without_defaults(function, node.kwargs))

    def _call(self, name: str, args: Iterable[Any], kwargs: dict[str, Any]) -> Doc:
        items = [self.value(argument) for argument in args]
        for key, argument in kwargs.items():
            if not key.isidentifier():
                raise ExportError(f"{name} has an argument called {key!r}", fix="rename it")
            items.append(prefixed(f"{key}=", self.value(argument)))
        return group(f"{name}(", items, ")", call=True)

    def _index(self, index: Any) -> str:
        if isinstance(index, tuple) and index:
            return ", ".join(map(self._index, index)) + ("," if len(index) == 1 else "")
        if not isinstance(index, slice):
            return flat(self.value(index))
        parts = ["" if part is None else flat(self.value(part)) for part in (index.start, index.stop, index.step)]
        colon = ":" if all(re.fullmatch(r"-?\w*", part) for part in parts) else " : "
        text = colon.join(parts[:2] if not parts[2] else parts)
        return text.strip() if parts[0] else text.lstrip()


def _stem(node: fx.Node) -> str:
    if node.target is getattr:
        return str(node.args[1])
    return str(node.target) if node.op == "call_method" else "number"


def _numbered(stem: str) -> Iterator[str]:
    yield stem
    for number in count(1):
        yield f"{stem}_{number}"


def _letters() -> Iterator[str]:
    yield from _LETTERS
    for number in count(1):
        yield f"x{number}"
