"""The limit of a slim net: what its layers take on tensors that are there already, and one add per join."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

MOVES = (  # of channels: parts of joins
    "narrow", "index_select", "clone", "type_as", "add_", "index_add_", "permute", "expand_as", "scatter_add_",
)  # fmt: skip


def limit(slim: nn.Module, x: torch.Tensor) -> Callable[[torch.Tensor], list[Any]]:
    """A function that does the work of ``slim(x)`` without moving channels; it ignores its argument.

    Every layer gets an input of its own. Per join two tensors of the smaller operand's width are added.
    """
    recorder = _recorded(slim, x)
    adds = [_add(join.narrow) for join in recorder.joins.values() if join.counts]
    work = [*recorder.layers, *adds]

    def replay(_: torch.Tensor) -> list[Any]:
        for call in work:
            call()
        return []

    return replay


def cut_at_joins(slim: nn.Module, x: torch.Tensor) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """The same for a compiler, which may fuse what lies between two joins: one graph, and its inputs.

    Behind a join everybody reads an input instead of its result; the smaller operand is added to another one. All that
    enters a join is a result of the graph, so that nothing of it can be left out.
    """
    recorder = _recorded(slim, x)
    graph, copied, inputs = fx.Graph(), {}, [x]  # type: fx.Graph, dict[fx.Node, fx.Node], list[torch.Tensor]
    behind: dict[fx.Node, fx.Node] = {}
    results: list[fx.Node] = []
    copied[next(node for node in recorder.graph.nodes if node.op == "placeholder")] = graph.placeholder("x")

    def given(value: torch.Tensor) -> fx.Node:
        inputs.append(torch.randn_like(value))
        last = next(node for node in reversed(graph.nodes) if node.op == "placeholder")
        with graph.inserting_after(last):
            return graph.placeholder(f"given_{len(inputs)}")

    def read(node: fx.Node) -> fx.Node:
        return behind.get(node) or copied[node]

    for node in recorder.graph.nodes:
        if node in recorder.ends:
            join = recorder.joins[recorder.ends[node]]
            results += [read(node) for node in join.entering if node is not join.narrowest or not join.counts]
            if join.counts:
                results.append(graph.call_function(torch.add, (read(join.narrowest), given(join.narrow))))
            behind[join.result] = given(recorder.values[join.result])
        elif node.op == "output":
            graph.output((*results, *(read(each) for each in node.all_input_nodes)))
        elif node not in recorder.origins and node.op != "placeholder" and node.target is not torch._assert:
            copied[node] = graph.node_copy(node, read)
    module = fx.GraphModule(slim, graph, "Limit")
    module.graph.eliminate_dead_code()
    module.recompile()
    return module, inputs


class _Join:
    """What enters the ops that stand for one join, and the tensor that leaves it."""

    def __init__(self) -> None:
        self.entering: dict[fx.Node, torch.Tensor] = {}
        self.result: fx.Node

    @property
    def counts(self) -> bool:
        """Two maps meet."""
        return len(self.entering) > 1 and self.narrow.ndim == 4

    @property
    def narrowest(self) -> fx.Node:
        return min(self.entering, key=lambda node: self.entering[node].numel())

    @property
    def narrow(self) -> torch.Tensor:
        return self.entering[self.narrowest]


class _Recorder(fx.Interpreter):
    """Notes every layer with its input, the ops of each join, and every tensor."""

    def __init__(self, slim: fx.GraphModule) -> None:
        super().__init__(slim, garbage_collect_values=False)
        self.graph = slim.graph
        self.layers: list[Callable[[], Any]] = []
        self.joins: dict[str, _Join] = {}
        self.origins: dict[fx.Node, str] = {}
        self.values: dict[fx.Node, Any] = {}

    @property
    def ends(self) -> dict[fx.Node, str]:
        """The last op of each join."""
        return {node: origin for origin, node in {origin: node for node, origin in self.origins.items()}.items()}

    def run_node(self, n: fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        kept = [_kept(argument) for argument in args]  # before anything is written to them
        result = self.values[n] = super().run_node(n)
        if n.op == "call_module":
            module = self.fetch_attr(str(n.target))
            self.layers.append(lambda: module(*kept, **kwargs))
        elif n.op in ("call_function", "call_method") and isinstance(result, torch.Tensor):
            if self._joins(n):
                self._enter(n, result)
            else:
                function = getattr(torch.Tensor, str(n.target)) if n.op == "call_method" else n.target
                self.layers.append(lambda: function(*kept, **kwargs))  # type: ignore[operator]
        return result

    def _enter(self, n: fx.Node, result: torch.Tensor) -> None:
        origin = self.origins[n] = str(n.meta["origin"])
        join = self.joins.setdefault(origin, _Join())
        for source in n.all_input_nodes:
            before = self.origins.get(source)
            if before == origin:
                continue
            entered = source if before is None else self.joins[before].result  # it may be a view of the source
            value = self.env[entered]
            if isinstance(value, torch.Tensor) and value.ndim == result.ndim:
                join.entering[entered] = value
        if n.target is torch.ops.aten.add_.Tensor:  # a slice of the result was written
            under: Any = n.args[0]
            join.result = under.args[0]
        elif not hasattr(join, "result") or n.target not in ("narrow", "index_select", "expand_as", "type_as"):
            join.result = n

    @staticmethod
    def _joins(n: fx.Node) -> bool:
        name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
        return n.target in MOVES or name in ("add", "cat", "pad", "add_.Tensor")


def _recorded(slim: nn.Module, x: torch.Tensor) -> _Recorder:
    assert isinstance(slim, fx.GraphModule)
    recorder = _Recorder(slim)
    with torch.no_grad():
        recorder.run(x)
    return recorder


def _add(like: torch.Tensor) -> Callable[[], Any]:
    one, other, out = torch.randn_like(like), torch.randn_like(like), torch.empty_like(like)
    return lambda: torch.add(one, other, out=out)


def _kept(argument: Any) -> Any:
    return argument.clone() if isinstance(argument, torch.Tensor) else argument
