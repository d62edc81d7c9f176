"""Which layers (convolutions and linear layers) get gates, at what grain, and why the others get none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt

from fxprune.analysis.heads import Attention, variables_of
from fxprune.channels import Channels, Freeze, Mixer, Role, by_name
from fxprune.channels.ids import FIXED, ONE, OPEN, Ids, IdTable, Join, Mix, immortal
from fxprune.errors import ModelError, OptionError

Bools = npt.NDArray[np.bool_]


class Ungated(Enum):
    """Why a layer has no gate, in the words that users read; the first reason that holds is given."""

    DEPTHWISE = "depthwise: dies with its input channel"
    IGNORED = "ignored on request"
    FROZEN = "frozen by {0.op}: {0.why}"
    OUTPUT = "writes a model output"
    SCALES = "scales other channels: dies with the channel that it scales"
    KEYS = "keys: die with the queries that they meet"


@dataclass(frozen=True, eq=False)
class Unit:
    """Gate variables of one kind: a layer's channels, its groups, the heads that it computes, the places in them."""

    name: str  # the layer's name; in attention with the role behind it: "attn.qkv.heads"
    calls: tuple[Mixer, ...]
    start: int  # the first of its variables
    variables: int
    grain: str  # what one of them closes: "channel", "group", "group norm", "head" or "width"
    rows: Ids  # the variable of each channel of the layer, counted from ``start``; OPEN for a channel that has none
    role: Role | None = None  # what attention makes of these channels

    @property
    def of_heads(self) -> bool:
        """Whether it gates heads, or places inside of them: then a channel depends on more than one unit."""
        return self.grain in ("head", "width")

    @property
    def of_scores(self) -> bool:
        """Whether it gates places where queries meet keys."""
        return self.role in (Role.QUERIES, Role.KEYS)

    @property
    def channels(self) -> int:
        """Of the layer."""
        return self.rows.size

    @property
    def part(self) -> slice:
        """Of all gate variables of the net."""
        return slice(self.start, self.start + self.variables)


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer (all calls of it) and its gates, or why it has none."""

    name: str
    calls: tuple[Mixer, ...]
    units: tuple[Unit, ...] = ()
    ungated: Ungated | None = None
    freezes: tuple[Freeze, ...] = ()  # every op that freezes some of its channels
    writes_output: bool = False  # alone

    @property
    def gated(self) -> bool:
        return bool(self.units)

    @property
    def variables(self) -> int:
        return sum(unit.variables for unit in self.units)

    @property
    def grain(self) -> str:
        """What its gates close, in one word; "" if there are none."""
        return self.units[0].grain if self.units else ""

    @property
    def why(self) -> str | None:
        """Why there is no gate."""
        return self.ungated and self.ungated.value.format(*self.freezes[:1])

    @property
    def channels(self) -> int:
        return int(self.calls[0].ids.size)


def place_gates(
    channels: Channels, ignore: tuple[str, ...] = (), places: Mapping[str, Sequence[int]] | None = None
) -> tuple[Layer, ...]:
    """Give gate variables to the rows of the id table, and report what every layer got.

    ``places``: the ``rows`` of units inside of heads, if they were decided earlier, by the weights of that time.
    """
    calls = by_name(channels.mixers)
    if not calls:
        raise ModelError(
            "the model has no convolution and no linear layer, so there is nothing to prune",
            fix="fxprune prunes Conv1d/2d/3d, their transposed kin, and Linear; check that this is the right model",
        )
    frozen = _frozen(channels)
    written = _written_alone(channels)
    scaling = _only_scale(channels)
    reasons: dict[str, Ungated | None] = {}
    freezes: dict[str, tuple[Freeze, ...]] = {}
    outputs: dict[str, bool] = {}
    for name, mixers in calls.items():
        ids = np.concatenate([mixer.ids.reshape(-1) for mixer in mixers])
        stopped = frozen[ids].any(0)
        freezes[name] = tuple(freeze for freeze, stops in zip(channels.freezes, stopped, strict=True) if stops)
        holds = {
            Ungated.DEPTHWISE: mixers[0].is_depthwise,
            Ungated.IGNORED: any(fnmatchcase(name, pattern) for pattern in ignore),
            Ungated.FROZEN: freezes[name],
            Ungated.OUTPUT: written[ids].any(),
            Ungated.SCALES: scaling[ids].all(),
        }
        reasons[name] = next((why for why, is_so in holds.items() if is_so), None)
        outputs[name] = bool(written[ids].any())
    attention = Attention(channels)
    gated = np.zeros(channels.table.size, dtype=bool)
    for name, mixers in calls.items():
        for mixer in mixers:
            gated[mixer.ids] = reasons[name] is None
    layers: list[Layer] = []
    names = list(calls)
    start = 0
    for name, mixers in calls.items():
        units: list[Unit] = []
        grains = [] if reasons[name] else _grains(channels, mixers, scaling, attention, gated)
        for role, grain, rows in grains:
            own = name if role is None else f"{name}.{'heads' if grain == 'head' else role.value}"
            names.append(own)
            if grain == "width" and own in (places or {}):
                rows = np.array(places[own], dtype=np.int64)  # type: ignore[index]
            if not any(fnmatchcase(own, pattern) for pattern in ignore):
                units.append(Unit(own, tuple(mixers), start, int(rows.max()) + 1, grain, rows, role))
                start += units[-1].variables
        _hang(channels, mixers, units)
        why = reasons[name] or (None if units else Ungated.IGNORED if grains else Ungated.KEYS)
        layers.append(Layer(name, tuple(mixers), tuple(units), why, freezes[name], outputs[name]))
    for pattern in ignore:
        if not any(fnmatchcase(name, pattern) for name in names):
            like = names_like(pattern, names)
            raise OptionError(
                f"ignore: {pattern!r} matches no layer",
                fix=f"use a name that inspect lists, such as {like}, or a pattern, such as 'layer1.*'",
            )
    return tuple(layers)


def names_like(name: str, known: Sequence[str]) -> str:
    """Suggestions for a wrong name: the gates of the same layer, if there are any.

    >>> names_like("qkv", ["stem", "qkv.heads", "qkv.values"]), names_like("qkv.head", ["stem", "qkv.heads"])
    ("'qkv.heads' or 'qkv.values'", "'qkv.heads'")
    """
    layer = name.rpartition(".")[0]
    of_layer = [other for other in known if other.startswith(f"{name}.")]
    beside = [other for other in known if layer and other.startswith(f"{layer}.")]
    return " or ".join(map(repr, of_layer or beside[:4] or known[:1])) or "None"


def _hang(channels: Channels, mixers: list[Mixer], units: list[Unit]) -> None:
    """Tell the id table on which variables each row depends."""
    count = mixers[0].ids.size
    slots = max(1, int(np.sum([unit.rows != OPEN for unit in units], axis=0).max())) if units else 1
    gate = np.full((slots, count), OPEN, dtype=np.int64)
    for unit in units:
        own = np.flatnonzero(unit.rows != OPEN)
        taken = (gate[:, own] != OPEN).sum(0)
        gate[taken, own] = unit.rows[own] + unit.start
    for mixer in mixers:
        source = channels.table.source(int(mixer.ids.flat[0]))
        assert source is not None and isinstance(source[0], Mix)
        source[0].gate = gate.reshape(slots, *mixer.ids.shape)


def _grains(
    channels: Channels, mixers: list[Mixer], scaling: Bools, attention: Attention, gated: Bools
) -> list[tuple[Role | None, str, Ids]]:
    """What a layer's gates close, each with the gate variable of every row: the row, its group or its norm group; of
    attention, with the role in it, heads and places inside of them. Rows that only scale others have none."""
    groups, rows = mixers[0].ids.shape
    if groups > 1:
        return [(None, "group", np.repeat(np.arange(groups), rows))]
    ids = mixers[0].ids.reshape(-1)
    for tied in channels.tied:
        if tied.size == ids.size and np.array_equal(tied.reshape(-1), ids):
            return [(None, "group norm", np.repeat(np.arange(tied.shape[0]), tied.shape[1]))]
    own = ~np.logical_and.reduce([scaling[mixer.ids.reshape(-1)] for mixer in mixers])
    read = attention.rows_of(mixers, gated) if attention.any else None
    if read is None:
        return [(None, "channel", np.where(own, np.cumsum(own) - 1, OPEN))]
    parts, rest = read
    grains: list[tuple[Role | None, str, Ids]] = []
    for part in parts:
        heads, width = part.counts
        if part.role is Role.VALUES and heads > 1:
            grains.append((part.role, "head", variables_of(ids.size, part.rows, part.head)))
        if width > 1:
            grains.append((part.role, "width", variables_of(ids.size, part.rows, part.place)))
    rest = rest[own[rest]]
    if rest.size:
        grains.append((None, "channel", variables_of(ids.size, rest, np.arange(rest.size))))
    return grains


def _frozen(channels: Channels) -> Bools:
    """Which freeze keeps which id (ids x freezes), followed back through joins to the rows of layers."""
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
    """Ids that reach a model output without anything prunable added to them."""
    alone, layers = np.zeros(channels.table.size, dtype=bool), {mixer.node.name for mixer in channels.mixers}
    for ids in channels.outputs:
        alone[ids] = True
    for block in reversed(channels.table.blocks):
        if not isinstance(block, Join) or not alone[block.out].any():
            continue
        prunable = [operand for operand in block.operands if not bool(immortal(operand).all())]
        others = [operand for operand in prunable if not _is_statistic(channels.table, layers, operand, prunable)]
        if len(others) == 1 and (block.kind == "any" or len(prunable) == 2):
            alone[others[0][alone[block.out]]] = True
    alone[[ONE, FIXED]] = False
    return alone


def _is_statistic(table: IdTable, layers: set[str], ids: Ids, operands: list[Ids]) -> bool:
    """Is it a value such as a variance or the sum of a softmax, computed from another operand and not by a layer? Or is
    it there for a size that is read of another tensor?"""
    read: list[Ids] = []
    for source in map(table.source, np.unique(ids).tolist()):
        if source is None or not isinstance(source[0], Mix) or source[0].owner in layers:
            return False
        if source[0].of_size:
            continue
        read.append(source[0].inputs)
    return any(operand is not ids and all(np.isin(part, operand).all() for part in read) for operand in operands)


def _only_scale(channels: Channels) -> Bools:
    """Ids that are only ever used to scale others: the logits of squeeze-and-excite, of attention maps, of GLU."""
    uses = np.zeros(channels.table.size, dtype=np.int64)
    scales = np.zeros(channels.table.size, dtype=np.int64)
    for ids in channels.outputs:
        np.add.at(uses, ids, 1)
    for block in reversed(channels.table.blocks):
        if isinstance(block, Mix):
            np.add.at(uses, block.inputs.reshape(-1), 1)
            continue
        # What depends on something else too (the size of another tensor) still scales what it scaled.
        passed = (uses[block.out] == scales[block.out]) & (uses[block.out] > 0) & (block.kind == "all")
        for position, operand in enumerate(block.operands):
            np.add.at(uses, operand, 1)
            np.add.at(scales, operand, passed | (position in block.scalers))
    only: Bools = (uses > 0) & (uses == scales)
    return only


def units_of(layers: Iterable[Layer]) -> tuple[Unit, ...]:
    """In the order of their gate variables."""
    return tuple(unit for layer in layers for unit in layer.units)
