"""What became of a net: layer by layer and join by join, as plain data that a report can keep."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch import fx

from fxprune.analysis import Analysis
from fxprune.analysis.gates import Layer, Unit
from fxprune.analysis.streams import node_kind
from fxprune.channels.ids import OPEN
from fxprune.rules import Flow
from fxprune.slim.connectivity import Bools

JOINS = ("add", "mul", "cat")


@dataclass(frozen=True)
class SlimReport:
    """What became of a net: ``slim.report``, which copies of the slim net keep.

    | attribute | |
    | --- | --- |
    | `before`, `after` | costs of the unpruned and of the slim net, by metric |
    | `removed` | layers that are gone |
    | `widths` | layer -> channels that are left |
    | `heads` | of attention: gates (by their names in `.gates`) -> how many heads, or channels of each, are left |
    | `joins`, `joined` | how many joins of each kind there are; add -> kind (docs/explanation/connectivity.md) |
    | `living` | layer by layer and join by join, which channels live: a text of 0 and 1 |
    | `fused` | batch norms that were folded |
    | `error` | largest difference from the gated net in float64, relative to its output; None without `verify` |
    | `batches` | the batch sizes compared |

    A pickle of the slim net needs torch only, so what it brings along is a namespace with the same attributes.
    """

    before: dict[str, float]
    after: dict[str, float]
    removed: tuple[str, ...]
    widths: dict[str, int] = field(repr=False)
    heads: dict[str, int] = field(repr=False)
    joins: dict[str, int]
    joined: dict[str, str] = field(repr=False)
    living: dict[str, Any] = field(repr=False)
    fused: int
    error: float | None
    batches: list[int]

    def as_dict(self) -> dict[str, Any]:
        """Ready for ``json.dumps``."""
        return asdict(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return SimpleNamespace, (), vars(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> SlimReport:
        return replace(self, **copy.deepcopy(vars(self), memo))


def survivors(analysis: Analysis, present: Bools) -> dict[str, Any]:
    """``layers``: per layer the ``mask`` of its channels (a text of 0 and 1) and its ``volume``, ``flops`` and
    ``params``. ``joins``: per add, multiply and concat (by its name in the graph) the mask of the channels it makes.
    """
    costs = analysis.costs.counter.by_layer(present)
    layers = {}
    for layer in analysis.layers:
        living = _living(layer, present)
        volume, flops, params = costs[layer.name]
        layers[layer.name] = {"mask": _text(living), "volume": volume, "flops": flops, "params": params}
    channels = analysis.channels
    mixers = {mixer.node: mixer for mixer in channels.mixers}
    joins = {}
    for node, flow in channels.flows.items():
        if isinstance(flow, Flow) and flow.axis is not None and node_kind(node, channels, mixers) in JOINS:
            joins[node.name] = _text(present[flow.ids.reshape(-1)])
    return {"layers": layers, "joins": joins}


def _living(part: Layer | Unit, present: Bools) -> Bools:
    """The channels of a layer that any of its calls computes."""
    living: Bools = np.logical_or.reduce([present[call.ids.reshape(-1)] for call in part.calls])
    return living


def _text(living: Bools) -> str:
    """
    >>> _text(np.array([True, False, True]))
    '101'
    """
    return "".join("1" if alive else "0" for alive in living.tolist())


def _left(unit: Unit, present: Bools) -> int:
    """How many gates of a unit let something through that the slim net computes."""
    return int(np.unique(unit.rows[_living(unit, present) & (unit.rows != OPEN)]).size)


def report_on(
    slim: fx.GraphModule,
    analysis: Analysis,
    present: Bools,
    joined: dict[str, str],
    *,
    fused: int,
    error: float | None,
    batches: list[int],
) -> SlimReport:
    """``joined`` is what compiling returned, the rest what folding and verifying did."""
    params = sum(parameter.numel() for parameter in slim.parameters())  # folded batch norms have none any more
    widths = {layer.name: int(_living(layer, present).sum()) for layer in analysis.layers}
    return SlimReport(
        before=analysis.full_cost.as_dict(),
        after={**analysis.costs.of_present(present).as_dict(), "params": params},
        removed=tuple(name for name, width in widths.items() if not width),
        widths=widths,
        heads={unit.name: _left(unit, present) for unit in analysis.units if unit.of_heads},
        joins=dict(Counter(joined.values())),
        joined=joined,
        living=survivors(analysis, present),
        fused=fused,
        error=error,
        batches=batches,
    )
