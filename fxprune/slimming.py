"""From a wrapped network to the slim one: which channels it computes, how it is compiled, and what is left, layer by
layer and join by join, as plain data that a report can keep."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn

from fxprune.analysis import Analysis
from fxprune.analysis.streams import node_kind
from fxprune.latency.auto import faster_joins
from fxprune.modules import copy_modes, evaluating
from fxprune.rules.registry import Flow
from fxprune.slim.compile import compile_slim
from fxprune.slim.connectivity import Bools, regular_blocks, revived

JOINS = ("add", "mul", "cat")


@dataclass(frozen=True)
class SlimReport:
    """What became of a net: ``slim.report``, which copies of the slim net keep.

    | attribute | |
    | --- | --- |
    | `before`, `after` | costs of the unpruned and of the slim net, by metric |
    | `removed` | layers that are gone |
    | `widths` | layer -> channels that are left |
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


def survivors(analysis: Analysis, present: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """``layers``: per convolution the ``mask`` of its channels (a text of 0 and 1) and its ``volume``, ``flops`` and
    ``params``. ``joins``: per add, multiply and concat (by its name in the graph) the mask of the channels it makes.
    """
    costs = analysis.costs.counter.by_layer(present)
    layers = {}
    for layer in analysis.layers:
        living = np.logical_or.reduce([present[call.ids.reshape(-1)] for call in layer.calls])
        volume, flops, params = costs[layer.name]
        layers[layer.name] = {"mask": _text(living), "volume": volume, "flops": flops, "params": params}
    channels = analysis.channels
    mixers = {mixer.node: mixer for mixer in channels.mixers}
    joins = {}
    for node, flow in channels.flows.items():
        if isinstance(flow, Flow) and flow.axis is not None and node_kind(node, channels, mixers) in JOINS:
            joins[node.name] = _text(present[flow.ids.reshape(-1)])
    return {"layers": layers, "joins": joins}


def _text(living: npt.NDArray[np.bool_]) -> str:
    """
    >>> _text(np.array([True, False, True]))
    '101'
    """
    return "".join("1" if alive else "0" for alive in living.tolist())


if TYPE_CHECKING:
    from fxprune.wrapped import Wrapped


def present_ids(
    wrapped: Wrapped, connectivity: str, prepare: Callable[[nn.Module], nn.Module] | None = None
) -> Bools:
    """The channels that the slim net computes."""
    analysis, mask = wrapped.analysis, torch.from_numpy(wrapped.masks()).double()
    present: Bools = analysis.costs.physical(mask).numpy() > 0
    if connectivity == "dense":
        return regular_blocks(analysis.channels, present)
    if connectivity == "auto":
        return faster_joins(analysis.channels, present, lambda present: compile_wrapped(wrapped, present)[0], prepare)
    return present


def compile_wrapped(wrapped: Wrapped, present: Bools) -> tuple[fx.GraphModule, dict[str, str]]:
    """The slim module of a hardened network, and how its adds were written (add -> kind)."""
    analysis, values, model = wrapped.analysis, wrapped.gate_values(), wrapped._original
    with evaluating(model):
        slim, joins = compile_slim(
            analysis.channels, model, present, values, in_place=wrapped._in_place,
            dead=revived(analysis, present, torch.from_numpy(wrapped.masks()), values),
        )  # fmt: skip
    copy_modes(wrapped, slim)
    return slim, joins


def report_on(
    slim: fx.GraphModule, analysis: Analysis, present: Bools, joined: dict[str, str], **found: Any
) -> SlimReport:
    """``found`` is what verifying and folding told."""
    params = sum(parameter.numel() for parameter in slim.parameters())  # counted, not estimated
    kept = {layer.name for layer in analysis.layers if any(present[call.ids].any() for call in layer.calls)}
    return SlimReport(
        before=analysis.full_cost.as_dict(),
        after={**analysis.costs.of_present(present).as_dict(), "network_params": params},
        removed=tuple(layer.name for layer in analysis.layers if layer.name not in kept),
        widths={layer.name: int(present[layer.calls[0].ids].sum()) for layer in analysis.layers},
        joins=dict(Counter(joined.values())),
        joined=joined,
        living=survivors(analysis, present),
        **found,
    )
