"""Measure a network on this machine, and make a cost of its time.

Layers are timed at several numbers of channels read and written; all other ops as they run in random pruned nets.
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

from fxprune.analysis import Analysis
from fxprune.channels import Mixer
from fxprune.channels.ids import FIXED, ONE, ZERO, Ids
from fxprune.cost.latency import Latency, Line, Meeting, Table, not_negative
from fxprune.latency.auto import joins_of
from fxprune.latency.stopwatch import by_op, device_of, example_inputs, in_turns, typical
from fxprune.rules import Flow

KINDS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)
# Machines compute with vectors of 4 to 32 channels: times jump behind multiples of that, and up to the next one more
# channels take no more time. Both sides of the large jumps are measured, so that such channels are found.
_JUMPS = (1, 4, 8, 9, 16, 17, 32, 33, 48, 64)
WRITTEN = (*_JUMPS, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
READ = (*_JUMPS, 128, 256, 512, 1024, 2048)
Floats = npt.NDArray[np.float64]


def key(layer: Any, shape: tuple[int, ...]) -> str:
    """Layers with the same key take the same time."""
    weight, last = layer.weight, channels_last(layer.weight)
    parts = (*widths(layer), settings(layer), layer.bias is not None, weight.dtype, last)
    return f"{kind_of(layer).__name__} {parts} on {tuple(shape)}"


def kind_of(layer: nn.Module) -> type[nn.Module]:
    return next(kind for kind in KINDS if isinstance(layer, kind))


def widths(layer: Any) -> tuple[int, int, int]:
    """Channels that it writes and reads, and its groups."""
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features, 1
    return layer.out_channels, layer.in_channels, layer.groups


def settings(layer: Any) -> dict[str, Any]:
    if isinstance(layer, nn.Linear):
        return {}
    names = ("kernel_size", "stride", "padding", "dilation", "padding_mode", "output_padding")
    return {name: getattr(layer, name) for name in names[: None if layer.transposed else -1]}


def channels_last(weight: torch.Tensor) -> bool:
    last = weight.ndim == 4 and weight.is_contiguous(memory_format=torch.channels_last)
    return last and not weight.is_contiguous()


def grid(full: int, points: tuple[int, ...]) -> list[int]:
    """The widths to measure at, and all channels.

    >>> grid(64, WRITTEN), grid(3, READ)
    ([1, 4, 8, 9, 16, 17, 32, 33, 48, 64], [1, 3])
    """
    return [*(width for width in points if width < full), full]


def measure_layer(layer: Any, shape: tuple[int, ...], device: torch.device) -> tuple[Floats, Floats, Floats]:
    """Widths written, widths read, and nanoseconds at each pair of them; both axes start at 0.

    ``shape`` is that of the input. Grouped convolutions keep the width of their groups: fewer channels, fewer groups.
    """
    writes, reads, groups = widths(layer)
    if groups > 1:
        per_group = writes // groups
        counts = sorted({max(1, width // per_group) for width in grid(writes, WRITTEN)})
        sizes = [(count * per_group, count * (reads // groups), count) for count in counts]
        taken = [_time(layer, rows, columns, count, shape, device) for rows, columns, count in sizes]
        at = np.array([0.0, *(rows for rows, _, _ in sizes)])
        times = np.array([[0.0, 0.0], *([0.0, seconds] for seconds in taken)]) * 1e9
        return at, np.array([0.0, 1.0]), times
    at_rows, at_columns = grid(writes, WRITTEN), grid(reads, READ)
    times = np.zeros((len(at_rows) + 1, len(at_columns) + 1))
    for i, rows in enumerate(at_rows, 1):
        for j, columns in enumerate(at_columns, 1):
            times[i, j] = 1e9 * _time(layer, rows, columns, 1, shape, device)
        times[i, 0] = max(times[i, 1] - (times[i, -1] - times[i, 1]) * at_columns[0] / at_columns[-1], 0.0)
    return np.array([0.0, *at_rows]), np.array([0.0, *at_columns]), times


def _time(layer: Any, rows: int, columns: int, groups: int, shape: tuple[int, ...], device: torch.device) -> float:
    kind, more = kind_of(layer), settings(layer)  # type: Any, dict[str, Any]
    if groups > 1:
        more["groups"] = groups
    resized = kind(columns, rows, bias=layer.bias is not None, dtype=layer.weight.dtype, device=device, **more)
    sizes = (*shape[:-1], columns) if kind is nn.Linear else (shape[0], columns, *shape[2:])
    x = torch.randn(sizes, dtype=layer.weight.dtype, device=device)
    if channels_last(layer.weight):
        resized, x = resized.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        return typical(lambda: resized(x), device)


UNIFORM, RANDOM, ROUNDS = (1.0, 0.5, 0.25, 0.125), 6, 9
Bools = npt.NDArray[np.bool_]
Compiled = Callable[[Bools], fx.GraphModule]


@dataclass(frozen=True, eq=False)
class Samples:
    """Times of pruned versions of the network: which ids each one computes (ids x nets), and seconds per op and net."""

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
            own = flow.ids if isinstance(flow, Flow) else np.zeros(0, int)
            read = mixers[node].inputs if node in mixers and mixers[node].sites else own  # a table writes alone
            ids = np.setdiff1d(read, [ONE, ZERO, FIXED])
            if ids.size:
                lines.append(fitted_line(ids, taken, samples))
            else:
                rest += float(np.median(taken))
    latency = Latency(tuple(tables), merged(lines), tuple(meetings), 1.0, rest)
    latency.scale = scale(latency.exact(samples.present), 1e9 * samples.whole)
    return latency


def sample(analysis: Analysis, compiled: Compiled) -> Samples:
    generator = np.random.default_rng(0)
    counts = [unit.variables for unit in analysis.units]
    masks = [] if counts else [np.ones(0, dtype=bool)]
    for share in UNIFORM if counts else ():
        masks.append(np.concatenate([np.arange(count) < max(1, round(share * count)) for count in counts]))
    for _ in range(RANDOM if counts else 0):
        shares = np.exp(generator.uniform(np.log(1 / 12), 0, len(counts)))
        masks.append(np.concatenate([generator.random(n) < share for n, share in zip(counts, shares, strict=True)]))
    alive = [analysis.guards.hold(mask, np.zeros(mask.size)) for mask in masks]
    present = analysis.costs.logic.present(np.stack(alive, 1))
    nets = [compiled(column) for column in present.T]
    inputs = example_inputs(analysis.channels, nets[0])
    spent = by_op(nets, inputs, ROUNDS)
    whole = np.median(np.array(in_turns(nets, inputs, 2 * ROUNDS)), 1)
    return Samples(present, spent, whole)


def fitted_table(mixer: Mixer, measured: Any, taken: Floats, samples: Samples) -> Table:
    at_rows, at_columns, times = measured
    rows = mixer.ids.reshape(-1)
    columns = np.array([ONE]) if mixer.groups > 1 else mixer.inputs.reshape(-1)  # grouped: rows alone decide
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
    features = np.stack([np.minimum(narrow, 1), narrow, together * new], 1)
    return Meeting(operands[0], operands[1], result, *not_negative(features, taken))


def merged(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Ops on the same channels, such as a norm and its activation, are taken together."""
    sums: dict[bytes, Line] = {}
    for line in lines:
        before = sums.get(line.ids.tobytes(), Line(line.ids, 0.0, 0.0))
        sums[line.ids.tobytes()] = Line(line.ids, before.once + line.once, before.each + line.each)
    return tuple(sums.values())


def scale(predicted: Floats, measured: Floats) -> float:
    """The factor that makes the relative errors smallest."""
    shares = predicted / measured
    return float(shares.sum() / np.square(shares).sum())


def network_key(analysis: Analysis, model: nn.Module) -> str:
    """Networks with the same key take the same time."""
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
    gates = [(unit.name, unit.variables) for unit in analysis.units]
    ids = analysis.channels.table.size  # the file names channels by them
    return json.dumps([lines, strides, gates, ids, WRITTEN, READ, __version__])
