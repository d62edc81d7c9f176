"""A proxy that knows what it stands for.

Python code that looks at a shape (``if h > 7``, ``for d in x.shape``, ``assert c % 8 == 0``) gets the answer of the
example. Passing a size on (``x.view(x.size(0), -1)``) records a node and stays symbolic; only what Python really
consumes (a branch, a loop count) is handed out as a constant, and the tracer notes it down as a specialisation.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from fxprune.torch_private import ASKING_FOR_USERS, tree_flatten

if TYPE_CHECKING:
    from fxprune.trace.tracer import Tracer


_TORCH = str(torch.__path__[0])


class ShapeProxy(fx.Proxy):
    """An ``fx.Proxy`` whose node carries the example's value: a meta tensor, a size, a tuple ..."""

    tracer: Tracer
    node: fx.Node
    part: tuple[ShapeProxy, list[tuple[int, slice | int]]] | None = None  # of which tensor this is a view
    views: tuple[ShapeProxy, ...] = ()  # those of this one

    @property
    def value(self) -> Any:
        return self.node.meta["value"]

    # isinstance(x, torch.Tensor), isinstance(size, int): answered by the value, as the model's author meant it. Torch's
    # own C++ code asks the same question before it looks into memory, so only Python code that says isinstance is told.
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        asking = sys._getframe(1).f_code
        outside = not asking.co_filename.startswith(_TORCH) or asking.co_name in ASKING_FOR_USERS
        python = "isinstance" in asking.co_names or "__class__" in asking.co_names  # as functools.singledispatch
        return type(self.value) if outside and python else ShapeProxy

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.value, name)  # raises AttributeError exactly where the value would
        if isinstance(self.value, dict) and name in ("values", "items", "get"):
            return getattr(self, f"_{name}")
        if name in ("T", "mT") and isinstance(self.value, torch.Tensor):
            return self.permute(*range(self.value.ndim)[::-1]) if name == "T" else self.transpose(-2, -1)
        if callable(found):
            return lambda *args, **kwargs: self.tracer.call_method(self, name, args, kwargs)
        if name in ("ndim", "itemsize") or isinstance(self.value, torch.device):  # x.device.type: a name for Python
            return found
        return self.tracer.create_proxy("call_function", getattr, (self, name), {})

    def __getitem__(self, index: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.getitem, (self, index), {})

    def __bool__(self) -> bool:
        return bool(self.tracer.specialise(self, bool))

    def __int__(self) -> int:
        return int(self.tracer.specialise(self, int))

    def __float__(self) -> float:
        return float(self.tracer.specialise(self, float))

    def __index__(self) -> int:
        return int(self.tracer.specialise(self, operator.index))

    def __len__(self) -> int:
        if isinstance(self.value, torch.Tensor):
            return operator.index(self.tracer.call_method(self, "size", (0,), {}))
        return self.tracer.length(self)

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.value, dict):
            return iter(self.value)
        return (self[position] for position in range(len(self)))

    def __contains__(self, item: object) -> bool:
        if isinstance(self.value, dict):
            return item in self.value
        return any(bool(entry == item) for entry in self)

    def reshape_as(self, other: Any) -> Any:  # sizes can be followed, what a tensor is asked as a whole cannot
        return self.reshape(other.shape)

    def view_as(self, other: Any) -> Any:
        return self.view(other.shape)

    def keys(self) -> Any:  # a proxied dict has the example's keys
        return self.value.keys()

    def _values(self) -> Any:
        return [self[key] for key in self.value]

    def _items(self) -> Any:
        return [(key, self[key]) for key in self.value]

    def _get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self.value else default

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def __str__(self) -> str:
        return str(self.value)

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __setitem__(self, index: Any, item: Any) -> None:
        self.tracer.assign(self, index, item)


def _rounding(name: str, function: Callable[..., Any]) -> None:
    def method(self: ShapeProxy, *digits: int) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, *digits), {})

    setattr(ShapeProxy, name, method)


def _in_place(name: str, function: Callable[..., Any]) -> None:
    def method(self: ShapeProxy, other: Any) -> Any:
        return self.tracer.update(self, self.tracer.create_proxy("call_function", function, (self, other), {}))

    setattr(ShapeProxy, name, method)


for _name, _function in (
    ("__round__", round),
    ("__floor__", math.floor),
    ("__ceil__", math.ceil),
    ("__trunc__", math.trunc),
):
    _rounding(_name, _function)
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"):
    _in_place(f"__i{_name}__", getattr(operator, f"__{_name}__"))


def proxies(tree: Any) -> list[ShapeProxy]:
    return [leaf for leaf in tree_flatten(tree)[0] if type(leaf) is ShapeProxy]
