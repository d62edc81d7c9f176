"""A proxy that knows the value that it stands for.

Python code that looks at a shape (``if h > 7``, ``for d in x.shape``, ``assert c % 8 == 0``) gets the answer of the
example. A size that is passed on (``x.view(x.size(0), -1)``) becomes a node and stays symbolic. Only what Python really
consumes (in a branch or as a loop count) becomes a constant, which the tracer records as a specialisation.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterator
from functools import partial, partialmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from fxprune.torch_private import ASKING_FOR_USERS, tree_leaves

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

    # isinstance(x, torch.Tensor) and isinstance(size, int) are answered for the value, as the model's author meant it.
    # Torch's C++ code asks the same before it reads memory, and must see a proxy: only Python code that contains
    # isinstance gets the type of the value.
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        asking = sys._getframe(1).f_code
        outside = not asking.co_filename.startswith(_TORCH) or asking.co_name in ASKING_FOR_USERS
        python = "isinstance" in asking.co_names or "__class__" in asking.co_names  # as functools.singledispatch
        return type(self.value) if outside and python else ShapeProxy

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.value, name)  # raises AttributeError exactly where the value would
        if isinstance(self.value, dict) and name in _OF_DICTS:
            return partial(_OF_DICTS[name], self)
        if name in ("T", "mT") and isinstance(self.value, torch.Tensor):
            return self.permute(*range(self.value.ndim)[::-1]) if name == "T" else self.transpose(-2, -1)
        if callable(attribute):
            return lambda *args, **kwargs: self.tracer.call_method(self, name, args, kwargs)
        if name in ("ndim", "itemsize", "is_nested") or isinstance(self.value, torch.device):  # names for Python
            return attribute
        return _recorded(self, getattr, name)

    def __getitem__(self, index: Any) -> Any:
        return _recorded(self, operator.getitem, index)

    def __setitem__(self, index: Any, item: Any) -> None:
        self.tracer.assign(self, index, item)

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

    def reshape_as(self, other: Any) -> Any:  # sizes can be followed one by one, a shape as a whole cannot
        return self.reshape(other.shape)

    def view_as(self, other: Any) -> Any:
        return self.view(other.shape)

    def keys(self) -> Any:
        return self.value.keys()

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def __str__(self) -> str:
        return str(self.value)

    def __hash__(self) -> int:
        return object.__hash__(self)


def _recorded(proxy: ShapeProxy, function: Callable[..., Any], *args: Any) -> Any:
    return proxy.tracer.create_proxy("call_function", function, (proxy, *args), {})


def _updated(proxy: ShapeProxy, function: Callable[..., Any], other: Any) -> Any:
    return proxy.tracer.update(proxy, _recorded(proxy, function, other))


def _consumed(proxy: ShapeProxy, convert: Callable[..., Any]) -> Any:
    return convert(proxy.tracer.specialise(proxy, convert))


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"):
    setattr(ShapeProxy, f"__i{_name}__", partialmethod(_updated, getattr(operator, f"__{_name}__")))
for _name, _convert in (("bool", bool), ("int", int), ("float", float), ("index", operator.index)):
    setattr(ShapeProxy, f"__{_name}__", partialmethod(_consumed, _convert))
for _name, _function in (("round", round), ("floor", math.floor), ("ceil", math.ceil), ("trunc", math.trunc)):
    setattr(ShapeProxy, f"__{_name}__", partialmethod(_recorded, _function))

_OF_DICTS: dict[str, Callable[..., Any]] = {  # a proxy of a dict has the example's keys
    "values": lambda proxy: [proxy[key] for key in proxy.value],
    "items": lambda proxy: [(key, proxy[key]) for key in proxy.value],
    "get": lambda proxy, key, default=None: proxy[key] if key in proxy.value else default,
}


def proxies(tree: Any) -> list[ShapeProxy]:
    return [leaf for leaf in tree_leaves(tree) if type(leaf) is ShapeProxy]
