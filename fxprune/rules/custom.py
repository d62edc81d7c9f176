"""Custom autograd functions: their own backward is kept; what they do to channels is read off their forward."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx, nn

from fxprune.channels.ids import Ids, IdTable
from fxprune.count import batch_size
from fxprune.errors import FxPruneError
from fxprune.rules.registry import Flow, NoChannels, Notes, Op, find_rule, rule
from fxprune.trace import trace
from fxprune.trace.patches import AutogradFunction
from fxprune.trace.values import Values


class _Context:
    """What forward() may ask of its ``ctx``."""

    needs_input_grad = (False,) * 32

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class _Forward(nn.Module):
    def __init__(self, function: Any, rest: tuple[Any, ...]) -> None:
        super().__init__()
        self.function, self.rest = function, rest

    def forward(self, x: torch.Tensor) -> Any:
        apart = self.function.setup_context is not torch.autograd.Function.setup_context
        return self.function.forward(*(() if apart else (_Context(),)), x, *self.rest)


@rule(AutogradFunction)
def custom(op: Op) -> Flow | None:
    """A function of one tensor that works element by element (a swish that saves memory) keeps its channels."""
    assert isinstance(op.module, AutogradFunction)
    rest = op.node.args[1:]
    if op.node.kwargs or any(isinstance(argument, fx.Node) for argument in rest) or not _is_tensor(op.out):
        return None
    flow = op.flow()
    clean = _keeps_zero(_Forward(op.module.function, rest), op.value(), flow.ids.shape)
    return None if clean is None else Flow(flow.ids, clean=clean)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _keeps_zero(forward: nn.Module, value: torch.Tensor, shape: tuple[int, ...]) -> bool | None:
    """Does zero stay zero? None if an op inside is unknown, or does not work element by element."""
    try:
        traced = trace(forward, (value,))
    except FxPruneError:
        return None
    table = IdTable()
    ids: Ids = table.mix(np.zeros((1, 1), dtype=np.int64), rows=int(np.prod(shape)), owner="x").reshape(shape)
    notes = Notes(Values(traced.root, forward, torch.device("cpu")), batch_size((value,), {}))
    clean = True
    flows: dict[fx.Node, Any] = {}
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            flows[node] = Flow(ids)
        elif node.op == "output":
            returned = node.args[0]
            return clean if isinstance(returned, fx.Node) and returned in flows else None
        elif any(parent in flows for parent in node.all_input_nodes):
            module = traced.root.get_submodule(str(node.target)) if node.op == "call_module" else None
            own_rule = find_rule(node, module)
            try:
                answer = own_rule.relate(Op(node, module, table, flows, notes)) if own_rule is not None else None
            except NoChannels:
                return None
            if not isinstance(answer, Flow) or not np.array_equal(answer.ids, ids):
                return None
            flows[node], clean = answer, clean and answer.clean
    return None
