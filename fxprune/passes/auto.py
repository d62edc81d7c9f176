"""Mixed or regular, join by join: whichever measures faster on this machine, for the example's shapes."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx

from fxprune.core import Channels
from fxprune.ids import Join
from fxprune.passes.dense import Bools, regular_blocks
from fxprune.passes.verify import batch_size, noise
from fxprune.rules import Flow

ROUNDS = 15


def faster_joins(channels: Channels, present: Bools, compiled: Callable[[Bools], fx.GraphModule]) -> Bools:
    """Widen the layers that write to a join to the join's own channels where that costs less than it saves.

    Both networks run in turns; a join is charged with its own ops and with those of the layers that write to it.
    """
    joins = {join: node for join, node in _joins(channels).items() if _changes(channels, present, join)}
    if not joins:
        return present
    nets = [compiled(each).eval() for each in (present, regular_blocks(channels, present, list(joins)))]
    mixed, regular = _times(nets, channels.trace.example)
    chosen = []
    for join, node in joins.items():
        charged = {node.name, *_writers(channels, join)}
        if sum(regular[name] for name in charged) < sum(mixed[name] for name in charged):
            chosen.append(join)
    return regular_blocks(channels, present, chosen)


def _joins(channels: Channels) -> dict[Join, fx.Node]:
    """The id table's joins and the ops that make them."""
    made = {int(join.out[0]): join for join in channels.table.blocks if isinstance(join, Join)}
    found: dict[Join, fx.Node] = {}
    for node, flow in channels.flows.items():
        first = int(flow.ids.min()) if isinstance(flow, Flow) and flow.ids.size else -1
        if first in made:
            found.setdefault(made[first], node)
    return found


def _changes(channels: Channels, present: Bools, join: Join) -> bool:
    return not np.array_equal(regular_blocks(channels, present, [join]), present)


def _writers(channels: Channels, join: Join) -> list[str]:
    ids = np.concatenate(join.operands)
    layers = [mixer.node for mixer in channels.mixers if np.isin(mixer.ids, ids).any()]
    return [node.name for layer in layers for node in (layer, channels.anchors.get(layer, layer))]


class _Stopwatch(fx.Interpreter):
    """Runs a slim net op by op and notes how long each takes, by the op of the original that it stands for."""

    def __init__(self, net: fx.GraphModule) -> None:
        super().__init__(net)
        self.device = next((parameter.device for parameter in net.parameters()), torch.device("cpu"))
        self.spent: dict[str, float] = defaultdict(float)

    def run_node(self, n: fx.Node) -> Any:
        start = self._now()
        result = super().run_node(n)
        self.spent[n.meta.get("origin", "")] += self._now() - start
        return result

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def _times(nets: list[fx.GraphModule], example: tuple[tuple[Any, ...], dict[str, Any]]) -> list[dict[str, float]]:
    """Per net and op of the original the median time."""
    like = next(nets[0].parameters())
    args, kwargs = noise(*example, batch_size(*example), like.device, like.dtype)
    rounds: list[list[dict[str, float]]] = [[] for _ in nets]
    names = [str(node.target) for node in nets[0].graph.nodes if node.op == "placeholder"]
    given = (*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs))
    for number in range(ROUNDS + 2):
        for net, found in zip(nets, rounds, strict=True):
            watch = _Stopwatch(net)
            with torch.no_grad():
                watch.run(*given)
            if number >= 2:  # the first ones warm up
                found.append(watch.spent)
    return [
        defaultdict(float, {name: statistics.median(each[name] for each in found) for name in found[0]})
        for found in rounds
    ]
