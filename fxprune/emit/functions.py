"""What the functions of a graph are called in source that imports torch only."""

from __future__ import annotations

import builtins
import inspect
import math
import operator
from functools import cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F

from fxprune.errors import ExportError

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
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
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
