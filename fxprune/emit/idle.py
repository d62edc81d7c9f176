"""Other people's code that does nothing in eval mode (stochastic depth and its kind) need not be written."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from fxprune.errors import FxPruneError
from fxprune.tracing import trace


def without_idle(slim: fx.GraphModule) -> tuple[fx.Graph, list[str]]:
    """A copy of the graph without calls that give back their first argument, and the names of what was called."""
    graph, names = copy.deepcopy(slim.graph), set()
    for node in list(graph.nodes):
        called = _foreign(node, slim)
        if called is None or not node.args or not isinstance(node.args[0], fx.Node):
            continue
        if _returns_its_argument(called, *_settings(node)):
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
        owner = getattr(node.target, "__module__", None) or "torch"
        known = owner.partition(".")[0] in ("torch", "_operator", "builtins", "math")
        return None if known or isinstance(node.target, type) else node.target
    if node.op == "call_module":
        module = slim.get_submodule(str(node.target))
        known = type(module).__module__.startswith("torch.nn.")
        return None if known or module.state_dict() else module
    return None


def _settings(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The other arguments; ``self.training`` is False."""

    def put(argument: fx.Node) -> Any:
        return False if argument.op == "get_attr" and str(argument.target).endswith("training") else argument

    args: Any = fx.node.map_arg(node.args[1:], put)
    kwargs: Any = fx.node.map_arg(node.kwargs, put)
    return args, kwargs


class _Call(nn.Module):
    def __init__(self, called: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.called, self.args, self.kwargs = called, args, kwargs

    def forward(self, x: torch.Tensor) -> Any:
        return self.called(x, *self.args, **self.kwargs)


def _returns_its_argument(called: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Traced in eval mode, nothing happens on the way from the input to the output."""
    run = copy.deepcopy(called).eval().forward if isinstance(called, nn.Module) else called
    call = _Call(run, args, kwargs)
    try:
        nodes = list(trace(call, torch.zeros(1, 1, 1, 1)).graph.nodes)
    except FxPruneError:
        return False
    return [node.op for node in nodes] == ["placeholder", "output"] and nodes[1].args[0] is nodes[0]
