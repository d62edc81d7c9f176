"""Calls that tracing would miss: functions that never ask whether an argument is a proxy."""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxprune.torch_private import (
    VariableMeta,
    autograd_helpers,
    canonical_mask,
    detect_is_causal_mask,
    import_dynamo,
    marked_by_wrap,
    none_or_dtype,
    python_of,
)
from fxprune.trace.proxy import ShapeProxy, proxies
from fxprune.trace.values import RANDOM

if TYPE_CHECKING:
    from fxprune.trace.tracer import Tracer

true_len = len  # while a model is traced, the builtin is replaced

_FACTORIES = (
    "arange", "as_tensor", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint", "randn",
    "randperm", "tensor", "zeros",
)  # fmt: skip


# Torch asks questions about each mask, and the graph would assert the answers. multi_head.py takes any mask.
_ABOUT_MASKS: dict[Any, Callable[..., Any]] = {
    canonical_mask: lambda mask, *_, **__: mask,
    none_or_dtype: lambda _: None,
    detect_is_causal_mask: lambda mask, is_causal=None, size=None: is_causal is True,
}


class Untraceable(Exception):
    """Python asked for something that only data can answer."""


def _of_example(limits: Callable[..., Any]) -> Callable[..., Any]:
    """The lowest number of ``x.dtype`` is that of the example's: no other way of asking for it can be pickled."""
    return lambda *dtype: limits(*(each.value if type(each) is ShapeProxy else each for each in dtype))


class AutogradFunction(nn.Module):
    """A custom autograd function as a module: opaque, with its own backward."""

    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function.apply(*args)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace a value in a dict, a module or a class for a while; afterwards the old state is restored."""
    scope = owner if isinstance(owner, dict) else vars(owner)
    put = scope.__setitem__ if isinstance(owner, dict) else functools.partial(setattr, owner)
    was_there, before = name in scope, scope.get(name)
    put(name, value)
    try:
        yield
    finally:
        put(name, before) if was_there else delattr(owner, name)


@contextmanager
def recording(tracer: Tracer) -> Iterator[None]:
    """For a while, functions that never ask whether an argument is a proxy are recorded if one is.

    These are torch's factories (``torch.zeros(x.shape[0])``; random ones always, because one draw must not become a
    constant), custom autograd functions, and what the model's author marked with ``torch.fx.wrap``.
    """
    import_dynamo()
    marked = dict(marked_by_wrap)
    apply, script = vars(torch.autograd.Function)["apply"], torch.jit.ScriptFunction.__call__
    unwrap_dead_wrappers = autograd_helpers.unwrap_dead_wrappers

    def is_traced(*given: Any) -> bool:
        return not tracer.paused and bool(proxies(given))

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_traced(args, kwargs) or (function in RANDOM and not tracer.paused):
                return tracer.create_proxy("call_function", function, args, kwargs)
            return function(*args, **kwargs)

        return call

    def length(thing: Any) -> Any:
        """``len(x)`` of a tensor is a size like any other, which stays symbolic when it is passed on."""
        if type(thing) is ShapeProxy and isinstance(thing.value, torch.Tensor) and not tracer.paused:
            return tracer.call_method(thing, "size", (0,), {})
        return true_len(thing)

    def stored_apply(args: tuple[Any, ...]) -> tuple[Any, ...]:
        """What ``apply`` does first, also one that the model bound to an attribute before tracing began."""
        if proxies(args):
            raise Untraceable("a custom autograd function")
        return tuple(unwrap_dead_wrappers(args))

    def traced_apply(function: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_traced(args, kwargs):
            return apply.__get__(None, function)(*args, **kwargs)
        if any(isinstance(argument, nn.Module) for argument in args):
            raise Untraceable(f"a custom autograd function on modules, {function.__name__}")
        return tracer.create_proxy("call_module", tracer.path_of(AutogradFunction(function)), args, kwargs)

    def unscripted(function: Any, *args: Any, **kwargs: Any) -> Any:
        """A function under ``torch.jit.script`` only takes tensors: trace the Python that it was made of."""
        python = python_of(function)
        if python is None or not is_traced(args, kwargs):
            return script(function, *args, **kwargs)
        return python(*args, **kwargs)

    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)  # it would make an encoder of transformers one op
        stack.callback(marked_by_wrap.update, marked)
        marked_by_wrap.clear()  # fx would make them opaque; we look inside first
        for owner, name, ours in (
            (builtins, "len", length),
            (autograd_helpers, "unwrap_dead_wrappers", stored_apply),
            *((sys.modules[asked.__module__], asked.__name__, answer) for asked, answer in _ABOUT_MASKS.items()),
            (VariableMeta, "__call__", lambda cls, data, *_, **__: data),
            (torch.autograd.Function, "apply", classmethod(traced_apply)),
            (torch.jit.ScriptFunction, "__call__", unscripted),
            *((torch, name, recorded(vars(torch)[name])) for name in _FACTORIES),
            *((torch, limits.__name__, _of_example(limits)) for limits in (torch.finfo, torch.iinfo)),
            *(
                (scope, name, recorded(scope[name]))
                for (_, name), scope in marked.items()
                if isinstance(scope.get(name), FunctionType)
            ),
        ):
            stack.enter_context(replaced(owner, name, ours))
        yield
