"""Calls that tracing would miss: functions that do not ask their arguments what they are."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxprune.torch_private import VariableMeta, autograd_helpers, import_dynamo, marked_by_wrap, python_of
from fxprune.trace.proxy import ShapeProxy, proxies
from fxprune.trace.values import RANDOM

if TYPE_CHECKING:
    from fxprune.trace.tracer import Tracer

true_len = len  # while tracing, the builtin is ours


class Untraceable(Exception):
    """Python asked for something that only data can answer."""


_FACTORIES = (
    "arange", "as_tensor", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint", "randn",
    "randperm", "tensor", "zeros",
)  # fmt: skip


class AutogradFunction(nn.Module):
    """A custom autograd function as a module: opaque, with its own backward."""

    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function.apply(*args)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Another value for a while in a dict, a module or a class: afterwards the old one, or none if there was none."""
    scope = owner if isinstance(owner, dict) else vars(owner)
    put = scope.__setitem__ if isinstance(owner, dict) else functools.partial(setattr, owner)
    was_there, before = name in scope, scope.get(name)
    put(name, value)
    try:
        yield
    finally:
        put(name, before) if was_there else delattr(owner, name)


class Recorded:
    """Functions that do not ask their arguments what they are: record them when one is a proxy.

    These are torch's factories (``torch.zeros(x.shape[0])``; the random ones always, for one draw must not become a
    constant) and what the model's author marked with ``torch.fx.wrap``.
    """

    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.stack = tracer, ExitStack()
        self.unwrap_dead_wrappers: Callable[..., Any] = autograd_helpers.unwrap_dead_wrappers
        self.apply = vars(torch.autograd.Function)["apply"]
        self.script: Any = torch.jit.ScriptFunction.__call__

    def __enter__(self) -> None:
        import_dynamo()
        marked = dict(marked_by_wrap)
        marks = [(scope, name) for (_, name), scope in marked.items() if isinstance(scope.get(name), FunctionType)]
        with ExitStack() as stack:  # what fails in here leaves nothing behind
            stack.callback(marked_by_wrap.update, marked)
            marked_by_wrap.clear()  # fx would make them opaque; we look inside first
            for owner, name, ours in (
                (builtins, "len", self._length),
                (autograd_helpers, "unwrap_dead_wrappers", self._stored_apply),
                (VariableMeta, "__call__", lambda cls, data, *_, **__: data),
                (torch.autograd.Function, "apply", classmethod(self._apply)),
                (torch.jit.ScriptFunction, "__call__", self._unscripted()),
                *((torch, name, self._recording(vars(torch)[name])) for name in _FACTORIES),
                *((scope, name, self._recording(scope[name])) for scope, name in marks),
            ):
                stack.enter_context(replaced(owner, name, ours))
            self.stack = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def _length(self, thing: Any) -> Any:
        """``len(x)`` of a tensor is a size like any other: passed on, it stays symbolic."""
        if type(thing) is ShapeProxy and isinstance(thing.value, torch.Tensor) and not self.tracer.paused:
            return self.tracer.call_method(thing, "size", (0,), {})
        return true_len(thing)

    def _stored_apply(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """What ``apply`` does first, also one that the model bound to an attribute before tracing began."""
        if proxies(args):
            raise Untraceable("a custom autograd function")
        return tuple(self.unwrap_dead_wrappers(args))

    def _apply(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        if self.tracer.paused or not proxies((args, kwargs)):
            return self.apply.__get__(None, function)(*args, **kwargs)
        if any(isinstance(argument, nn.Module) for argument in args):
            raise Untraceable(f"a custom autograd function on modules, {function.__name__}")
        return self.tracer.create_proxy("call_module", self.tracer._path(AutogradFunction(function)), args, kwargs)

    def _unscripted(self) -> Callable[..., Any]:
        """A function under ``torch.jit.script`` only takes tensors: trace the Python that it was made of."""

        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            python = python_of(function)
            if python is None or self.tracer.paused or not proxies((args, kwargs)):
                return self.script(function, *args, **kwargs)
            return python(*args, **kwargs)

        return call

    def _recording(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.tracer.paused or not (function in RANDOM or proxies((args, kwargs))):
                return function(*args, **kwargs)
            return self.tracer.create_proxy("call_function", function, args, kwargs)

        return call
