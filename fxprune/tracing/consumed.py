"""What Python code takes out of the graph: a branch, a loop count, an index. The graph asserts that it stays so."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from fxprune.core import Specialisation
from fxprune.tracing.frames import call_site, is_user_function, user_line
from fxprune.tracing.proxy import ShapeProxy
from fxprune.tracing.recorded import Untraceable, true_len

if TYPE_CHECKING:
    from fxprune.tracing.tracer import Tracer


def specialise(tracer: Tracer, proxy: ShapeProxy, convert: Callable[[Any], Any], *, final: bool = False) -> Any:
    """The example's value, handed to Python; the graph checks from now on that it is still the same.

    Torch's argument parser asks a number for its index too, before it hands the call to us with the number as it
    was: an index is only taken as consumed when no node of the same call follows.
    """
    if isinstance(proxy.value, torch.Tensor):
        return convert(constant(tracer, proxy, convert.__name__))
    if convert is operator.index and not final:
        tracer.pending.append((proxy, call_site()))
        return operator.index(proxy.value)
    value, source = convert(proxy.value), user_line()
    kind = "branch" if convert is bool else "value"
    tracer.specialisations.append(Specialisation(proxy.node.name, kind, value, source))
    check(tracer, proxy.node, convert, value, source)
    return value


def settle(tracer: Tracer) -> None:
    """A node follows: an index that another call has asked for was consumed."""
    pending, tracer.pending = tracer.pending, []
    here = call_site()
    for proxy, site in pending:
        if site != here:
            specialise(tracer, proxy, operator.index, final=True)


def length(tracer: Tracer, proxy: ShapeProxy) -> int:
    """How many entries a tuple or list has: known, unless code that was not looked into made it."""
    count, node = true_len(proxy.value), proxy.node
    maker = node
    while maker.target is operator.getitem and isinstance(maker.args[0], fx.Node):
        maker = maker.args[0]
    known = maker.op in ("call_method", "get_attr", "call_function") and not is_user_function(maker.target)
    if maker.op == "call_module":
        known = type(tracer.root.get_submodule(str(maker.target))).__module__.startswith("torch.nn.")
    if not known:
        check(tracer, node, true_len, count, user_line())
    return count


def constant(tracer: Tracer, proxy: ShapeProxy, what: str) -> Any:
    try:
        return tracer.values.constant(proxy.node)
    except ValueError:
        raise Untraceable(f"{what}() of a tensor that depends on the input") from None


def check(tracer: Tracer, node: fx.Node, convert: Callable[[Any], Any] | None, value: Any, source: str | None) -> None:
    """Let the graph assert that ``convert(node)`` is still ``value``."""
    if (node, convert, repr(value)) in tracer.checked:
        return
    tracer.checked.add((node, convert, repr(value)))

    def call(function: Callable[..., Any], *args: Any, result: Any) -> fx.Node:
        made = tracer.graph.call_function(function, args)
        made.meta.update(value=result, source=node.meta["source"], module=node.meta.get("module"))
        return made

    held: Any = node
    if convert is not None and (convert is true_len or type(node.meta["value"]) is not type(value)):
        held = call(convert, node, result=value)
    if value is True:
        same = held
    elif value is False:
        same = call(torch.sym_not, held, result=True)
    else:
        same = call(operator.eq, held, value, result=True)
    way = "this input would take another way through the model than the example did"
    said = f"fxprune: {way} ({value!r} at {source or node.name}); wrap the model with an example of this shape"
    call(torch._assert, same, said, result=None)
