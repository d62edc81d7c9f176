"""Which convolutions get gates, at what grain, and why the others get none.

A linear layer on a map is one of them: see ``Mixer.is_conv``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt

from fxprune.channels.facts import Channels, Freeze, Mixer, by_name
from fxprune.channels.ids import FIXED, ONE, OPEN, Ids, Join, Mix, immortal
from fxprune.errors import ModelError, OptionError

Bools = npt.NDArray[np.bool_]


class Ungated(Enum):
    """Why a convolution has no gate, as it is told; of those that hold the first counts."""

    DEPTHWISE = "depthwise: dies with its input channel"
    IGNORED = "ignored on request"
    FROZEN = "frozen by {0.op}: {0.why}"
    OUTPUT = "writes a model output"
    SCALES = "scales other channels: dies with the channel that it scales"


@dataclass(frozen=True, eq=False)
class Layer:
    """A convolution (all calls of it) and its gate: ``variables`` gate variables from ``start``, or none and why."""

    name: str
    calls: tuple[Mixer, ...]
    start: int
    variables: int
    grain: str  # "channel", "group", "group norm" or "" without a gate
    rows: Ids  # the gate variable of each channel, counted from ``start``; OPEN for a channel that has none
    ungated: Ungated | None = None
    freezes: tuple[Freeze, ...] = ()  # every op that keeps its channels

    @property
    def gated(self) -> bool:
        return self.variables > 0

    @property
    def why(self) -> str | None:
        """Why there is no gate."""
        return self.ungated and self.ungated.value.format(*self.freezes[:1])

    @property
    def channels(self) -> int:
        return int(self.calls[0].ids.size)


def place_gates(channels: Channels, ignore: tuple[str, ...] = ()) -> tuple[Layer, ...]:
    """Hang gate variables on the rows of the id table and report what every convolution got."""
    calls = by_name(mixer for mixer in channels.mixers if mixer.is_conv)
    if not calls:
        raise ModelError(
            "the model has no convolution, so there is nothing to prune",
            fix="fxprune prunes Conv1d/2d/3d, their transposed kin, and linear layers on maps or tokens; check that "
            "this is the right model",
        )
    for pattern in ignore:
        if not any(fnmatchcase(name, pattern) for name in calls):
            raise OptionError(
                f"ignore: {pattern!r} matches no convolution",
                fix=f"use a name that inspect lists, such as {next(iter(calls))!r}, or a pattern, such as 'layer1.*'",
            )
    frozen = _frozen(channels)
    written = _written_alone(channels)
    scaling = _only_scale(channels)
    layers: list[Layer] = []
    start = 0
    for name, mixers in calls.items():
        ids = np.concatenate([mixer.ids.reshape(-1) for mixer in mixers])
        stopped = frozen[ids].any(0)
        freezes = tuple(freeze for freeze, stops in zip(channels.freezes, stopped, strict=True) if stops)
        holds = {
            Ungated.DEPTHWISE: mixers[0].is_depthwise,
            Ungated.IGNORED: any(fnmatchcase(name, pattern) for pattern in ignore),
            Ungated.FROZEN: freezes,
            Ungated.OUTPUT: written[ids].any(),
            Ungated.SCALES: scaling[ids].all(),
        }
        ungated = next((why for why in Ungated if holds[why]), None)
        variable, grain = (np.full(mixers[0].ids.size, OPEN), "") if ungated else _grain(channels, mixers, scaling)
        count = int(variable.max()) + 1
        for mixer in mixers:
            source = channels.table.source(int(mixer.ids.flat[0]))
            assert source is not None and isinstance(source[0], Mix)
            source[0].gate = np.where(variable == OPEN, OPEN, variable + start).reshape(mixer.ids.shape)
        layers.append(Layer(name, tuple(mixers), start, count, grain, variable, ungated, freezes))
        start += count
    return tuple(layers)


def _grain(channels: Channels, mixers: list[Mixer], scaling: Bools) -> tuple[Ids, str]:
    """The gate variable of each row: its own, its group's, its norm group's; none for rows that only scale others."""
    groups, rows = mixers[0].ids.shape
    if groups > 1:
        return np.repeat(np.arange(groups), rows), "group"
    ids = mixers[0].ids.reshape(-1)
    for tied in channels.tied:
        if tied.size == ids.size and np.array_equal(tied.reshape(-1), ids):
            return np.repeat(np.arange(tied.shape[0]), tied.shape[1]), "group norm"
    gated = ~np.logical_and.reduce([scaling[mixer.ids.reshape(-1)] for mixer in mixers])
    return np.where(gated, np.cumsum(gated) - 1, OPEN), "channel"


def _frozen(channels: Channels) -> Bools:
    """Which freeze keeps which id (ids x freezes): backwards through joins, up to the rows that write it."""
    kept = np.zeros((channels.table.size, len(channels.freezes)), dtype=bool)
    if not channels.freezes:
        return kept
    for number, freeze in enumerate(channels.freezes):
        kept[freeze.ids, number] = True
    for block in reversed(channels.table.blocks):
        if not kept[block.out].any():
            continue
        if isinstance(block, Join):
            for operand in block.operands:
                np.logical_or.at(kept, operand, kept[block.out])
        elif block.inputs.shape[1] == 1:  # a depthwise row lives exactly as long as its only input
            np.logical_or.at(kept, block.inputs[:, 0], kept[block.out].any(1))
    return kept


def _written_alone(channels: Channels) -> Bools:
    """Ids that a model output shows as they are: nothing prunable is added to them on the way."""
    alone = np.zeros(channels.table.size, dtype=bool)
    for ids in channels.outputs:
        alone[ids] = True
    for block in reversed(channels.table.blocks):
        if isinstance(block, Join) and block.kind == "any":
            prunable = [operand for operand in block.operands if not bool(immortal(operand).all())]
            if len(prunable) == 1:
                alone[prunable[0][alone[block.out]]] = True
    alone[[ONE, FIXED]] = False
    return alone


def _only_scale(channels: Channels) -> Bools:
    """Ids that are only ever used to scale others: the logits of squeeze-and-excite, of attention maps, of GLU."""
    uses = np.zeros(channels.table.size, dtype=np.int64)
    scales = np.zeros(channels.table.size, dtype=np.int64)
    for block in channels.table.blocks:
        for position, operand in enumerate(block.operands if isinstance(block, Join) else (block.inputs.reshape(-1),)):
            np.add.at(uses, operand, 1)
            if isinstance(block, Join) and position in block.scalers:
                np.add.at(scales, operand, 1)
    for ids in channels.outputs:
        np.add.at(uses, ids, 1)
    only: Bools = (uses > 0) & (uses == scales)
    return only


def gate_count(layers: tuple[Layer, ...]) -> int:
    return sum(layer.variables for layer in layers)
