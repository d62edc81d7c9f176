"""Which channels a slim net computes: those that live and are read, or those of regular residual blocks.

In a regular block whoever meets at an add computes the union of their channels, so that adds are plain.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import fx

from fxprune.analysis import Analysis
from fxprune.channels import Channels
from fxprune.channels.ids import Join, Mix
from fxprune.rules import Flow

Bools = npt.NDArray[np.bool_]


def present_ids(analysis: Analysis, opened: Bools) -> Bools:
    """The ids that a network with these open gates computes: alive, and read by somebody."""
    present: Bools = analysis.costs.logic.present(opened[:, None])[:, 0]
    return present


def regular_blocks(
    channels: Channels, present: Bools, joins: Mapping[Join, Collection[int]] | None = None
) -> Bools:
    """Every operand of a join gets the channels of the result, unless nothing of it lives: a dead block stays away.

    With ``joins``, only these of their operands. If layers write them, no other join is affected.
    """
    before, present = present, present.copy()
    for block in reversed(channels.table.blocks):
        if isinstance(block, Mix):
            _close(block, present)
        else:
            for number, operand in enumerate(block.operands):
                if present[operand].any() and (joins is None or number in joins.get(block, ())):
                    present[operand[present[block.out]]] = True
    present[:2] = (True, False)
    for block in channels.table.blocks:  # what would be computed of nothing is not computed
        if isinstance(block, Mix):
            fed = present[block.inputs].any(1, keepdims=True)
        else:
            fed = (np.logical_or if block.kind == "any" else np.logical_and).reduce(
                [present[i] for i in block.operands]
            )
        present[block.out] &= fed | before[block.out]
    return present


def _close(block: Mix, present: Bools) -> None:
    """What else a layer computes when it computes these channels."""
    rows = present[block.out]
    if block.out.shape[0] > 1 and block.out.shape[1] > 1:  # a grouped one: the same rows in each of its groups
        present[block.out] = rows.any(1, keepdims=True) & rows.any(0, keepdims=True)
    if block.inputs.shape[1] == 1:  # a depthwise one: the channel that it filters
        present[block.inputs[:, 0][rows.any(1)]] = True


def revived(
    analysis: Analysis, present: Bools, opened: Bools, gate_values: dict[str, torch.Tensor]
) -> dict[fx.Node, Bools]:
    """Where the gated net masks a dead channel that this network computes, and no closed gate makes it zero."""
    channels = analysis.channels
    dead = present & ~analysis.costs.logic.alive(opened[:, None])[:, 0]
    if not dead.any():
        return {}
    layer_at = {channels.anchors.get(mixer.node, mixer.node): mixer.name for mixer in channels.mixers}
    coming_to_life = {}
    for node in (*layer_at, *(node for node in channels.masks if node not in layer_at)):
        flow = channels.flows[node]
        if not isinstance(flow, Flow):
            continue
        here = dead[flow.ids]
        gate = gate_values.get(layer_at.get(node, ""))
        if gate is not None:
            here &= gate.numpy(force=True).reshape(here.shape) != 0
        if here.any():
            coming_to_life[node] = here
    return coming_to_life
