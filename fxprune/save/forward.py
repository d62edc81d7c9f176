"""The graph as the body of ``forward``: one statement per op, for source that imports torch only. A name is used again
as soon as nobody needs its value.

Foreign code that does nothing in eval mode (stochastic depth, for example) is left out.
"""

from __future__ import annotations

import builtins
import copy
import inspect
import keyword
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain, count
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from fxprune.errors import ExportError, FxPruneError
from fxprune.rules.operands import ADD_TO
from fxprune.save.expressions import (
    Doc,
    Records,
    access,
    flat,
    group,
    is_data_class,
    is_named_tuple,
    literal,
    prefixed,
    quoted,
    render,
    sentence,
)
from fxprune.torch_private import InnerOps
from fxprune.trace import trace
from fxprune.trace.source_lines import short_source

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
    """Function -> its public name: the first module that has it, and its own name before aliases."""
    names: dict[int, str] = {}
    for prefix, place in _PLACES:
        functions = [
            (name.startswith("_"), getattr(value, "__name__", "") != name, name, value)
            for name, value in vars(place).items()
            if not name.startswith("__") and callable(value) and not isinstance(value, type)
        ]
        for _, _, name, function in sorted(functions, key=lambda entry: entry[:2]):
            names.setdefault(id(function), f"{prefix}.{name}")
    return names


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
    name = str(getattr(function, "__name__", type(function).__name__))
    if isinstance(function, (BuiltinFunctionType, type)) and getattr(builtins, name, None) is function:
        return name
    if isinstance(function, InnerOps) and str(function).startswith("aten."):
        return f"torch.ops.{function}"
    if isinstance(function, type) and getattr(torch, name, None) is function:
        return f"torch.{name}"
    owner = getattr(function, "__module__", None) or ""
    raise ExportError(
        f"{owner}.{name} is not torch's, so source that needs torch only cannot call it".lstrip("."),
        fix="write it with torch functions, or save the net with torch.save(slim, file), which needs your code to load",
    )


def without_defaults(function: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments without those that have their default.

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
        arguments = [
            prefixed(f"{node.target}=", self.value(node.args[0])) if node.args else str(node.target)
            for node in self.inputs
        ]
        lines = render(group("def forward(", ["self", *arguments], "):", call=True), indent)
        statements = [node for node in self.nodes if node.op != "placeholder" and node not in self.inlined]
        last = {read: node for node in statements for read in self._reads(node)}
        known: set[str] = set()
        for node in statements:
            block = str(node.target).rpartition(".")[0] if node.op == "call_module" else ""
            if block in self.blocks and block not in known:
                known.add(block)
                lines += render(f"{self.blocks[block]} = {access(block)}._modules", indent + 4)
            try:
                lines += render(self._statement(node, last), indent + 4)
            except ExportError as error:
                raise ExportError(error.cause, where=f"{node.name} in the graph of the net", fix=error.fix) from None
        return lines

    # ------------------------------------------------------------ names

    def _name_blocks(self) -> dict[str, str]:
        """Names for blocks of which several layers are called. Such a block is looked up once, and its layers in its
        dictionary, because ``block.conv`` takes as long as a small op."""
        owners = Counter(str(node.target).rpartition(".")[0] for node in self.nodes if node.op == "call_module")
        names: dict[str, str] = {}
        for path in (path for path, times in owners.items() if path and times > 1):
            stem = re.sub(r"\W", "_", path)
            stem = f"{stem}_" if keyword.iskeyword(stem) or re.fullmatch(r"[a-z]\d*", stem) else stem
            stem = stem if stem.isidentifier() else f"_{stem}"
            names[path] = next(name for name in _numbered(stem) if name not in self.reserved)
            self.reserved.add(names[path])
        return names

    def _reads(self, node: fx.Node) -> list[fx.Node]:
        """The variables that a statement reads, also through what is written inside of it."""
        read: dict[fx.Node, None] = {}  # a set that keeps its order
        for parent in node.all_input_nodes:
            read.update(dict.fromkeys(self._reads(parent) if parent in self.inlined else [parent]))
        return list(read)

    def _new_name(self, node: fx.Node, last: dict[fx.Node, fx.Node]) -> str:
        """The first name of an operand that nobody reads after this statement, or the first name that is free."""
        freed = self._forget(node, last)
        taken = set(self.names.values()) | self.reserved
        if node in self.numbers:
            return next(name for name in _numbered(_stem(node)) if name not in taken)
        again = [name for name in freed if re.fullmatch(r"[a-z]\d*", name) and name not in taken]
        if again:
            return min(again, key=lambda name: (len(name), (*_LETTERS, name).index(name), name))
        return next(name for name in chain(_LETTERS, (f"x{n}" for n in count(1))) if name not in taken)

    def _forget(self, node: fx.Node, last: dict[fx.Node, fx.Node]) -> list[str]:
        """Free the names whose value nobody reads after this statement, and return them."""
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
        """Attributes; and numbers whose only reader is the next statement, so that no tensor is kept longer."""
        inlined = {node for node in self.nodes if node.op == "get_attr"}
        position = {node: number for number, node in enumerate(self.nodes)}
        for node in self.numbers:
            if len(node.users) == 1:
                between = self.nodes[position[node] + 1 : position[next(iter(node.users))]]
                if all(other in self.numbers or other.op == "get_attr" for other in between):
                    inlined.add(node)
        # x.narrow(1, 0, 8).add_(y)
        return inlined | {node.all_input_nodes[0] for node in self.nodes if node.target is ADD_TO}

    # ------------------------------------------------------------ statements

    def _statement(self, node: fx.Node, last: dict[fx.Node, fx.Node]) -> Doc:
        if node.op == "output":
            return prefixed("return ", self.value(node.args[0]))
        if node.target is torch._assert:
            message = re.sub(r"\S*[\\/]\S+:\d+", lambda line: short_source(line[0]), str(node.args[1]))
            expression = group("torch._assert(", [self.value(node.args[0]), sentence(message)], ")", call=True)
        else:
            expression = self._expression(node)
            if node.users:
                self.names[node] = self._new_name(node, last)
                return prefixed(f"{self.names[node]} = ", expression)
        self._forget(node, last)
        return expression

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
            block, _, name = str(node.target).rpartition(".")
            layer = f"{self.blocks[block]}[{quoted(name)}]" if block in self.blocks else access(str(node.target))
            return self._call(layer, node.args, node.kwargs)
        if node.op == "call_method":
            return self._call(f"{self._operand(node.args[0])}.{node.target}", node.args[1:], node.kwargs)
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
        if function is ADD_TO:
            return self._call(f"{self._operand(node.args[0])}.add_", node.args[1:], node.kwargs)
        if is_named_tuple(function) or is_data_class(function):
            return self._call(self.records.name(function), node.args, node.kwargs)
        self.used.add(function_name(function))
        return self._call(function_name(function), node.args, without_defaults(function, node.kwargs))

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


def without_idle(slim: fx.GraphModule) -> tuple[fx.Graph, list[str]]:
    """A copy of the graph without calls that give back their first argument, and the names of what was called."""
    graph, names = copy.deepcopy(slim.graph), set()
    for node in list(graph.nodes):
        called = _foreign(node, slim)
        if called is None or not node.args or not isinstance(node.args[0], fx.Node):
            continue
        if _returns_its_argument(called, node):
            names.add(getattr(called, "__name__", type(called).__name__))
            node.replace_all_uses_with(node.args[0])
            flags = [argument for argument in node.all_input_nodes if argument.op == "get_attr"]
            graph.erase_node(node)
            for flag in flags:
                if not flag.users:
                    graph.erase_node(flag)
    return graph, sorted(names)


def _foreign(node: fx.Node, slim: fx.GraphModule) -> Callable[..., Any] | None:
    """A function or a module without weights that is not torch's."""
    if node.op == "call_function" and callable(node.target):
        owner = (getattr(node.target, "__module__", None) or "torch").partition(".")[0]
        known = owner in ("torch", "_operator", "builtins", "math") or isinstance(node.target, type)
        return None if known else node.target
    if node.op == "call_module":
        module = slim.get_submodule(str(node.target))
        return None if type(module).__module__.startswith("torch.nn.") or module.state_dict() else module
    return None


def _returns_its_argument(called: Callable[..., Any], node: fx.Node) -> bool:
    """Traced in eval mode, nothing happens on the way from the input to the output."""
    run = copy.deepcopy(called).eval().forward if isinstance(called, nn.Module) else called

    def value(argument: fx.Node) -> Any:
        return False if argument.op == "get_attr" and str(argument.target).endswith("training") else argument

    args: Any = fx.node.map_arg(node.args[1:], value)
    kwargs: Any = fx.node.map_arg(node.kwargs, value)

    class Call(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return run(x, *args, **kwargs)

    try:
        nodes = list(trace(Call(), torch.zeros(1, 1, 1, 1)).graph.nodes)
    except FxPruneError:
        return False
    return [node.op for node in nodes] == ["placeholder", "output"] and nodes[1].args[0] is nodes[0]
