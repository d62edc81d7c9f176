"""Mixed or regular, join by join and as a whole: what measures faster on this machine, for the example's shapes."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np
from torch import fx

from fxprune.core import Channels
from fxprune.ids import Join
from fxprune.latency.stopwatch import by_op, example_inputs, in_turns
from fxprune.passes.dense import Bools, regular_blocks
from fxprune.rules import Flow

ROUNDS = 15


def faster_joins(channels: Channels, present: Bools, compiled: Callable[[Bools], fx.GraphModule]) -> Bools:
    """Widen the layers that write to a join to the join's own channels where that costs less than it saves.

    Both networks run in turns; a join is charged with its own ops and with those of the layers that write to it. What
    these say is only taken if the whole net is faster by it; so is the net with regular blocks throughout.
    """
    throughout = regular_blocks(channels, present)
    if np.array_equal(throughout, present):
        return present
    joins = {join: node for join, node in joins_of(channels).items() if _changes(channels, present, join)}
    nets = [compiled(each).eval() for each in (present, regular_blocks(channels, present, list(joins)))]
    inputs = example_inputs(channels, nets[0])
    mixed, regular = by_op(nets, inputs, ROUNDS)
    chosen = []
    for join, node in joins.items():
        charged = {node.name, *_writers(channels, join)}
        if sum(regular[name] for name in charged) < sum(mixed[name] for name in charged):
            chosen.append(join)
    ways = [present, regular_blocks(channels, present, chosen), throughout]
    nets = [compiled(way).eval() for way in ways]
    rounds = in_turns(nets, inputs, 2 * ROUNDS)
    usual = [statistics.median(own / first for own, first in zip(taken, rounds[0], strict=True)) for taken in rounds]
    return ways[int(np.argmin(usual))]


def joins_of(channels: Channels) -> dict[Join, fx.Node]:
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
