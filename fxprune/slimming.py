"""From a wrapped network to the slim one: which channels it computes, and how it is compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch import fx, nn

from fxprune.latency.auto import faster_joins
from fxprune.passes.compile import compile_slim
from fxprune.passes.dense import Bools, regular_blocks, revived
from fxprune.tracing.copies import copy_modes, evaluating

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


def compile_wrapped(wrapped: Wrapped, present: Bools) -> tuple[fx.GraphModule, SimpleNamespace]:
    """The slim module of a hardened network and what there is to say about it."""
    analysis, values, model = wrapped.analysis, wrapped.gate_values(), wrapped._original
    with evaluating(model):
        slim, joins = compile_slim(
            analysis.channels, model, present, values, in_place=wrapped._in_place,
            dead=revived(analysis, present, torch.from_numpy(wrapped.masks()), values),
        )  # fmt: skip
    copy_modes(wrapped, slim)
    kept = {layer.name for layer in analysis.layers if any(present[call.ids].any() for call in layer.calls)}
    report = SimpleNamespace(
        before=analysis.full_cost.as_dict(),
        after=analysis.costs.of_present(present).as_dict(),
        removed=tuple(layer.name for layer in analysis.layers if layer.name not in kept),
        widths={layer.name: int(present[layer.calls[0].ids].sum()) for layer in analysis.layers},
        joins=dict(Counter(joins.values())),
        joined=joins,  # add -> kind
        living={},  # set by export: what passes.survivors tells
        error=None,
        batches=[],
        fused=0,
    )
    return slim, report
