"""Mixed or regular connectivity, join by join and as a whole: whatever is faster on this machine for the example."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import numpy as np
from torch import fx, nn

from fxprune.channels import Channels, Mixer
from fxprune.channels.ids import Ids, Join
from fxprune.latency.stopwatch import by_op, example_inputs, in_turns, usual_ratio
from fxprune.rules import Flow
from fxprune.slim.connectivity import Bools, regular_blocks

ROUNDS = 15
WORTH_IT = 0.98  # of the mixed net's time: a smaller gain may be noise, and the net would compute more for it


def faster_joins(
    channels: Channels,
    present: Bools,
    compiled: Callable[[Bools], fx.GraphModule],
    prepare: Callable[[nn.Module], nn.Module] | None = None,
) -> Bools:
    """Widen layers that write to a join to the join's own channels where that costs less than it saves.

    Per join there are three choices: widen no layer, all layers, or the cheapest one (a shortcut's 1x1 convolution, to
    whose output the block is then added in place). Nets with each choice run in turns; the time of a join is that of
    its own ops and of the layers that write to it. The best choices make one net, which is only taken if it is faster
    as a whole. Two more nets compete as a whole: every join with its cheapest layer widened, and regular blocks
    throughout. Of nets that are to be ``prepare``d (compiled) single ops cannot be timed: they are compared as a whole.
    """

    def widened(joins: Mapping[Join, list[int]]) -> Bools:
        return regular_blocks(channels, present, joins)

    @functools.cache
    def net_of(way: bytes) -> fx.GraphModule:
        return compiled(np.frombuffer(way, dtype=bool)).eval()

    throughout = regular_blocks(channels, present)
    if np.array_equal(throughout, present):
        return present
    nodes = joins_of(channels)
    written = {join: _written(channels, present, join) for join in nodes}
    every = {join: own for join, own in written.items() if not np.array_equal(widened({join: own}), present)}
    cheapest = {join: own[:1] for join, own in every.items()}
    ways = [present, widened(cheapest), throughout]
    if prepare is None:
        nets = [net_of(way.tobytes()) for way in (present, widened(cheapest), widened(every))]
        spent = by_op(nets, example_inputs(channels, nets[0]), ROUNDS)
        chosen = {}
        for join, own in every.items():
            charged = {nodes[join].name, *_ops(channels, np.concatenate(join.operands))}
            best = int(np.argmin([sum(times[name] for name in charged) for times in spent]))
            chosen[join] = ([], own[:1], own)[best]
        ways.insert(1, widened(chosen))
    ways = list({way.tobytes(): way for way in ways}.values())
    slim = [net_of(way.tobytes()) for way in ways]
    inputs = example_inputs(channels, slim[0])
    rounds = in_turns([prepare(net) for net in slim] if prepare is not None else slim, inputs, 2 * ROUNDS)
    usual = [usual_ratio(taken, rounds[0]) for taken in rounds]
    best = int(np.argmin(usual))
    return ways[best] if usual[best] < WORTH_IT else present


def joins_of(channels: Channels) -> dict[Join, fx.Node]:
    """The id table's joins and the ops that make them."""
    joins = {int(join.out[0]): join for join in channels.table.blocks if isinstance(join, Join)}
    nodes: dict[Join, fx.Node] = {}
    for node, flow in channels.flows.items():
        first = int(flow.ids.min()) if isinstance(flow, Flow) and flow.ids.size else -1
        if first in joins:
            nodes.setdefault(joins[first], node)
    return nodes


def _written(channels: Channels, present: Bools, join: Join) -> list[int]:
    """The living operands that layers write (so that no other join changes), cheapest first."""
    cost = {}
    for number, ids in enumerate(join.operands):
        writers = _writers(channels, ids)
        written = np.concatenate([ids[:0], *(mixer.ids.reshape(-1) for mixer in writers)])
        if present[ids].any() and np.isin(ids, written).all():
            cost[number] = sum(present[each.inputs].sum() / each.groups * each.kernel * each.sites for each in writers)
    return sorted(cost, key=cost.__getitem__)


def _writers(channels: Channels, ids: Ids) -> list[Mixer]:
    return [mixer for mixer in channels.mixers if np.isin(mixer.ids, ids).any()]


def _ops(channels: Channels, ids: Ids) -> list[str]:
    """The layers that write these, each with the op that ends it."""
    layers = [mixer.node for mixer in _writers(channels, ids)]
    return [node.name for layer in layers for node in (layer, channels.anchors.get(layer, layer))]
