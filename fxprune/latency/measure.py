"""Measure a network on this machine, and make a cost of its time.

A dozen pruned versions of it run op by op: all widths cut alike, and each cut at random. Convolutions and linear layers
are measured by themselves over their widths, then scaled to what they took inside of these nets, where caches are not
theirs alone; what any other op takes is a straight line through its times. Whole nets, which have no stopwatch in them,
scale it all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn

from fxprune.budget.latency import Latency, Line, Meeting, Table, not_negative
from fxprune.core import Mixer
from fxprune.ids import FIXED, ONE, ZERO, Ids
from fxprune.latency.auto import joins_of
from fxprune.latency.layers import KINDS, READ, WRITTEN, key, measure_layer
from fxprune.latency.stopwatch import by_op, device_of, example_inputs, in_turns
from fxprune.passes.analysis import Analysis
from fxprune.rules import Flow

UNIFORM, RANDOM, ROUNDS = (1.0, 0.5, 0.25, 0.125), 6, 9
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Compiled = Callable[[Bools], fx.GraphModule]


@dataclass(frozen=True, eq=False)
class Samples:
    """What pruned versions of the network took: who is present in each (ids x nets), and seconds per op and net."""

    present: Bools
    spent: list[dict[str, float]]
    whole: Floats

    def times(self, node: fx.Node) -> Floats:
        return np.array([1e9 * spent.get(node.name, 0.0) for spent in self.spent])

    def widths(self, ids: Ids) -> Floats:
        return np.asarray(self.present[ids].sum(0), dtype=np.float64)


def measure(
    analysis: Analysis, model: nn.Module, compiled: Compiled, step: Callable[[str], None] = lambda text: None
) -> Latency:
    """The time of the network as a function of its channels; ``step`` is told before each piece of work."""
    step("sampling pruned nets")
    samples = sample(analysis, compiled)
    tables, lines, meetings = [], [], []
    known: dict[str, Any] = {}
    joins = {node: join for join, node in joins_of(analysis.channels).items() if len(join.operands) == 2}
    mixers = {mixer.node: mixer for mixer in analysis.channels.mixers}
    rest = 0.0
    for node, flow in analysis.channels.flows.items():
        taken = samples.times(node)
        if not taken.any():
            continue
        module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        if node in mixers and isinstance(module, KINDS):
            shape = tuple(node.all_input_nodes[0].meta["value"].shape)
            name = key(module, shape)
            if name not in known:
                step(f"timing {node.target}")
                known[name] = measure_layer(module, shape, device_of(model))
            tables.append(fitted_table(mixers[node], known[name], taken, samples))
        elif node in joins:
            meetings.append(fitted_meeting(joins[node].operands, joins[node].out, taken, samples))
        else:
            ids = mixers[node].inputs if node in mixers else flow.ids if isinstance(flow, Flow) else np.zeros(0, int)
            ids = np.setdiff1d(ids, [ONE, ZERO, FIXED])
            if ids.size:
                lines.append(fitted_line(ids, taken, samples))
            else:
                rest += float(np.median(taken))
    found = Latency(tuple(tables), merged(lines), tuple(meetings), 1.0, rest)
    found.scale = scale(found.exact(samples.present), 1e9 * samples.whole)
    return found


def sample(analysis: Analysis, compiled: Compiled) -> Samples:
    generator = np.random.default_rng(0)
    layers = [layer for layer in analysis.layers if layer.gated]
    masks = [] if layers else [np.ones(0, dtype=bool)]
    for share in UNIFORM if layers else ():
        masks.append(np.concatenate([np.arange(n.variables) < max(1, round(share * n.variables)) for n in layers]))
    for _ in range(RANDOM if layers else 0):
        shares = np.exp(generator.uniform(np.log(1 / 12), 0, len(layers)))
        masks.append(np.concatenate([generator.random(n.variables) < s for n, s in zip(layers, shares, strict=True)]))
    alive = [analysis.guards.hold(mask, np.zeros(mask.size)) for mask in masks]
    present = analysis.costs.logic.present(np.stack(alive, 1))
    nets = [compiled(present[:, number]).eval() for number in range(len(masks))]
    inputs = example_inputs(analysis.channels, nets[0])
    spent = by_op(nets, inputs, ROUNDS)
    whole = np.median(np.array(in_turns(nets, inputs, 2 * ROUNDS)), 1)
    return Samples(present, spent, whole)


def fitted_table(mixer: Mixer, measured: Any, taken: Floats, samples: Samples) -> Table:
    at_rows, at_columns, times = measured
    rows = mixer.ids.reshape(-1)
    columns = np.array([ONE]) if mixer.groups > 1 else mixer.inputs.reshape(-1)  # grouped: a matter of rows alone
    table = Table(rows, columns, at_rows, at_columns, times)
    alone = np.array(Latency((table,)).exact(samples.present))
    there = alone > 0
    factor = float(np.median(taken[there] / alone[there])) if there.any() else 1.0
    return Table(rows, columns, at_rows, at_columns, factor * times)


def fitted_line(ids: Ids, taken: Floats, samples: Samples) -> Line:
    widths = samples.widths(ids)
    return Line(ids, *not_negative(np.stack([np.minimum(widths, 1), widths], 1), taken))


def fitted_meeting(operands: tuple[Ids, ...], result: Ids, taken: Floats, samples: Samples) -> Meeting:
    one, other, together = (samples.widths(ids) for ids in (*operands, result))
    narrow, new = np.minimum(one, other), np.clip(together - np.maximum(one, other), 0, 1)
    found = not_negative(np.stack([np.minimum(narrow, 1), narrow, together * new], 1), taken)
    return Meeting(operands[0], operands[1], result, *found)


def merged(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Ops on the same channels, such as a norm and its activation, are one line."""
    found: dict[bytes, Line] = {}
    for line in lines:
        before = found.get(line.ids.tobytes(), Line(line.ids, 0.0, 0.0))
        found[line.ids.tobytes()] = Line(line.ids, before.once + line.once, before.each + line.each)
    return tuple(found.values())


def scale(predicted: Floats, measured: Floats) -> float:
    """What makes the relative errors smallest."""
    shares = predicted / measured
    return float(shares.sum() / np.square(shares).sum())


def network_key(analysis: Analysis, model: nn.Module) -> str:
    """Networks with the same one take the same time."""
    from fxprune import __version__

    lines = []
    for node in analysis.channels.trace.graph.nodes:
        value = node.meta.get("value")
        shape = (tuple(value.shape), str(value.dtype)) if isinstance(value, torch.Tensor) else ""
        module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        what = "" if module is None else f"{type(module).__name__}({module.extra_repr()})"
        target = node.target if isinstance(node.target, str) else node.name
        lines.append(f"{node.op} {node.name} {target} {what} {shape}")
    strides = [(name, tuple(p.shape), tuple(p.stride()), str(p.dtype)) for name, p in model.named_parameters()]
    gates = [(layer.name, layer.variables) for layer in analysis.layers if layer.gated]
    ids = analysis.channels.table.size  # what is kept names channels by them
    return json.dumps([lines, strides, gates, ids, WRITTEN, READ, __version__])
