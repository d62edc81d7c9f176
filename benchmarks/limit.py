"""The limit of a slim net: what its layers take on tensors that are there already, and one add per join."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

MOVES = ("narrow", "index_select", "clone", "type_as", "add_", "index_add_")  # of channels: parts of joins


def limit(slim: nn.Module, x: torch.Tensor, keep: bool = False) -> Callable[[torch.Tensor], list[Any]]:
    """A function that does the work of ``slim(x)`` without moving channels; it ignores its argument.

    Per join it adds two tensors of the smaller operand's width. With ``keep`` it returns all that it computes: what
    nobody reads a compiler leaves out.
    """
    assert isinstance(slim, fx.GraphModule)
    recorder = _Recorder(slim)
    with torch.no_grad():
        recorder.run(x)
    work = [*recorder.layers, *(_add(one, other) for one, other in recorder.joins())]

    def replay(_: torch.Tensor) -> list[Any]:
        kept = []
        for call in work:
            made = call()
            if keep:
                kept.append(made)
        return kept

    return replay


def _add(one: torch.Tensor, other: torch.Tensor) -> Callable[[], Any]:
    out = torch.empty_like(one)
    return lambda: torch.add(one, other, out=out)


class _Recorder(fx.Interpreter):
    """Notes every layer with its input, and what enters the ops that stand for one join."""

    def __init__(self, slim: fx.GraphModule) -> None:
        super().__init__(slim)
        self.layers: list[Callable[[], Any]] = []
        self.entering: dict[str, dict[fx.Node, torch.Tensor]] = {}  # join -> tensors from outside of it
        self.origins: dict[fx.Node, str] = {}

    def run_node(self, n: fx.Node) -> Any:
        made = super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if n.op == "call_module":
            module, kept = self.fetch_attr(str(n.target)), [_kept(a) for a in args]
            self.layers.append(lambda: module(*kept, **kwargs))
        elif n.op in ("call_function", "call_method") and isinstance(made, torch.Tensor):
            if self._joins(n):
                origin = self.origins[n] = str(n.meta["origin"])
                held = self.entering.setdefault(origin, {})
                for source in n.all_input_nodes:
                    value = self.env[source]
                    if (
                        self.origins.get(source) != origin
                        and isinstance(value, torch.Tensor)
                        and value.ndim == made.ndim
                    ):
                        held[source] = value
            else:
                function = getattr(torch.Tensor, str(n.target)) if n.op == "call_method" else n.target
                kept = [_kept(a) for a in args]
                self.layers.append(lambda: function(*kept, **kwargs))  # type: ignore[operator]
        return made

    @staticmethod
    def _joins(n: fx.Node) -> bool:
        name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
        return n.target in MOVES or name in ("add", "cat", "pad", "add_.Tensor")

    def joins(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        found = []
        for held in self.entering.values():
            operands = sorted(held.values(), key=lambda tensor: tensor.shape[1])
            if len(operands) > 1 and operands[0].ndim == 4:
                narrow = operands[0]
                found.append((torch.randn_like(narrow), torch.randn_like(narrow)))
        return found


def _kept(argument: Any) -> Any:
    return argument.clone() if isinstance(argument, torch.Tensor) else argument
