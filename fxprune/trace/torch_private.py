"""Calls that tracing would miss: functions that do not ask their arguments what they are."""

from __future__ import annotations

import builtins
import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.autograd.variable import VariableMeta

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


class Recorded:
    """Functions that do not ask their arguments what they are: record them when one is a proxy.

    These are torch's factories (``torch.zeros(x.shape[0])``; the random ones always, for one draw must not become a
    constant) and what the model's author marked with ``torch.fx.wrap``.
    """

    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.saved = tracer, []  # type: tuple[Tracer, list[tuple[dict[str, Any], str, Any]]]
        self.unwrap_dead_wrappers: Callable[..., Any] = torch._functorch.utils.unwrap_dead_wrappers
        self.marked = dict(fx._symbolic_trace._wrapped_fns_to_patch)

    def __enter__(self) -> None:
        import torch._dynamo  # it remembers torch's functions; imported below, by torch itself, it would see ours

        fx._symbolic_trace._wrapped_fns_to_patch.clear()  # fx would make them opaque; we look inside first
        self._put(vars(builtins), "len", self._length)
        self._put(vars(torch._functorch.utils), "unwrap_dead_wrappers", self._stored_apply)
        VariableMeta.__call__ = lambda cls, data, *_, **__: data  # type: ignore[method-assign]
        self.apply = torch.autograd.Function.__dict__["apply"]
        torch.autograd.Function.apply = classmethod(self._apply)  # type: ignore[assignment, method-assign]
        self.script: Any = torch.jit.ScriptFunction.__call__
        torch.jit.ScriptFunction.__call__ = self._unscripted()  # type: ignore[method-assign]
        places = [(torch.__dict__, name) for name in _FACTORIES]
        places += [
            (scope, name) for (_, name), scope in self.marked.items() if isinstance(scope.get(name), types.FunctionType)
        ]
        for scope, name in places:
            self._put(scope, name, self._recording(scope[name]))

    def _put(self, scope: dict[str, Any], name: str, function: Callable[..., Any]) -> None:
        self.saved.append((scope, name, scope[name]))
        scope[name] = function

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
            python = getattr(function, "_torchdynamo_inline", None)
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

    def __exit__(self, *_: object) -> None:
        for scope, name, function in reversed(self.saved):
            scope[name] = function
        torch.autograd.Function.apply = self.apply  # type: ignore[method-assign]
        torch.jit.ScriptFunction.__call__ = self.script  # type: ignore[method-assign]
        del VariableMeta.__call__
        fx._symbolic_trace._wrapped_fns_to_patch.update(self.marked)
