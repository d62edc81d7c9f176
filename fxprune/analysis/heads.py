"""Gates for attention: one per head, and one per place inside of the heads.

The slim net is narrow only if all heads have the same width. So the rows of a projection are not gated one by one: the
j-th place of all heads has one gate, and each head decides which of its channels that is (the j-th strongest, when the
net is wrapped). Queries and keys meet channel by channel, so that the queries' gates decide for both; a head is gated
where its values are written, since queries and keys whose values are gone are read by nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn

from fxprune.channels import Channels, Mixer, Role
from fxprune.channels.ids import OPEN, Ids, Join
from fxprune.torch_private import AnyTransposedConv
from fxprune.trace.values import Values, attribute, has_attribute

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Sums = npt.NDArray[np.uint64]
NO_ROLE, MIXED = -1, -2
ROLES = tuple(Role)
COLUMNS_FIRST = AnyTransposedConv, nn.Embedding  # layers whose weights begin with what they read


@dataclass(frozen=True, eq=False)
class HeadRows:
    """Rows of a layer that are computed for attention: their head and their place in it."""

    role: Role
    rows: Ids
    head: Ids  # of each row
    place: Ids

    @property
    def counts(self) -> tuple[int, int]:
        return int(self.head.max()) + 1, int(self.place.max()) + 1


class Attention:
    """What is known about the products of attention, asked layer by layer. Arrays have one entry per id."""

    def __init__(self, channels: Channels) -> None:
        self.channels, size = channels, channels.table.size
        products = [heads for heads in channels.heads if heads.role is not Role.RESULTS]
        self.any = bool(products)
        self.role = np.full(size, NO_ROLE)  # of a row: its number in ROLES
        self.strength: Floats = np.ones(size)  # the sum of its squared weights
        # A row is computed for a set of heads, and of channels in them: a sum of random numbers stands for each set.
        self.head, self.channel = np.zeros(size, dtype=np.uint64), np.zeros(size, dtype=np.uint64)
        if not products:
            return
        uses: list[Ids] = []
        meetings = [np.zeros((2, 0), dtype=np.int64)]
        first = 0
        for heads in products:
            count, width = heads.ids.shape
            at, rows = self._rows(heads.ids.reshape(-1))
            number = ROLES.index(heads.role)
            self.role[rows] = np.where(np.isin(self.role[rows], (NO_ROLE, number)), number, MIXED)
            uses.append(np.stack([rows, first + at // width, at % width]))
            first += count
            if heads.partners is not None:
                other_at, keys = self._rows(heads.partners.reshape(-1))
                meetings.append(_matched(at, rows, other_at, keys))
        used, head, channel = np.concatenate(uses, 1)
        _add_numbers(self.head, used, head)
        _add_numbers(self.channel, used, channel)
        self.meetings = _once(*np.concatenate(meetings, 1))  # rows of queries, rows of keys
        self._weigh()
        self.role[self._read_elsewhere()] = NO_ROLE

    def _rows(self, ids: Ids) -> tuple[Ids, Ids]:
        """The rows of layers that joins make these ids of, each with its place among them."""
        table = self.channels.table
        at, ids = np.arange(ids.size), np.array(ids)
        done, starts = [np.zeros((2, 0), dtype=np.int64)], np.array(table.starts)
        while ids.size:
            numbers = np.searchsorted(starts, ids, side="right") - 1
            further = [np.zeros((2, 0), dtype=np.int64)]
            for number in np.unique(numbers[numbers >= 0]).tolist():
                block, own = table.blocks[number], numbers == number
                if isinstance(block, Join):
                    places = ids[own] - starts[number]
                    further += [np.stack([at[own], operand[places]]) for operand in block.operands]
                else:
                    done.append(np.stack([at[own], ids[own]]))
            at, ids = _once(*np.concatenate(further, 1))
        return _once(*np.concatenate(done, 1))

    def _read_elsewhere(self) -> Bools:
        """Ids that layers or outputs read without attention between them: a stream, whose channels have gates of their
        own whatever else becomes of them."""
        read, results = (np.zeros(self.channels.table.size, dtype=bool) for _ in range(2))
        for heads in self.channels.heads:
            results[heads.ids] |= heads.role is Role.RESULTS
        for ids in (*(mixer.inputs for mixer in self.channels.mixers), *self.channels.outputs):
            read[ids] = True
        for block in reversed(self.channels.table.blocks):
            if isinstance(block, Join):
                on = read[block.out] & ~results[block.out]
                for operand in block.operands:
                    read[operand[on]] = True
        return read & ~results

    def _weigh(self) -> None:
        values = Values(self.channels.trace.root, self.channels.trace.model, torch.device("cpu"))
        for mixer in self.channels.mixers:
            rows = mixer.ids.reshape(-1)
            if (self.role[rows] == NO_ROLE).all():
                continue
            weight = weight_of(mixer, values)
            if weight is not None and weight.shape[0] == rows.size and not weight.is_meta:
                norms = torch.linalg.vector_norm(weight.detach().flatten(1), dim=1, dtype=torch.float64)
                self.strength[rows] = norms.square().cpu().numpy()
        met = np.zeros(self.strength.size)
        queries, keys = self.meetings
        np.add.at(met, queries, self.strength[keys])
        asked = self.role == ROLES.index(Role.QUERIES)
        self.strength[asked] *= met[asked]  # of a query, with the keys that it meets

    # ------------------------------------------------------------ of one layer

    def rows_of(self, calls: Sequence[Mixer], gated: Bools) -> tuple[list[HeadRows], Ids] | None:
        """The parts of a layer that attention reads, and the rows of it that are not for attention; None where heads
        cannot be told. ``gated`` tells which ids may have gates."""
        parts: list[HeadRows] = []
        ids = [call.ids.reshape(-1) for call in calls]
        roles = self.role[ids[0]]
        if (roles == MIXED).any() or any(not np.array_equal(self.role[other], roles) for other in ids[1:]):
            return None
        for number, role in enumerate(ROLES):
            rows = np.flatnonzero(roles == number)
            if not rows.size:
                continue
            arranged = [self._arranged(role, rows, each[rows]) for each in ids]
            first = arranged[0]
            if first is None or any(
                other is None or not np.array_equal(other.head, first.head) for other in arranged[1:]
            ):
                return None
            if role is Role.KEYS and self._decided_by_queries(np.concatenate([each[rows] for each in ids]), gated):
                continue
            parts.append(first)
        return parts, np.flatnonzero(roles == NO_ROLE)

    def _decided_by_queries(self, keys: Ids, gated: Bools) -> bool:
        """Whether all keys meet queries that have gates."""
        queries, met = self.meetings
        return bool(np.isin(keys, met[gated[queries]]).all())

    def _arranged(self, role: Role, rows: Ids, ids: Ids) -> HeadRows | None:
        """The rows sorted into heads, and in each head by strength; None where heads have different widths."""
        head = _in_order(self.head[ids])
        heads = int(head.max()) + 1
        channel = _in_order(self.channel[ids])
        cell = _in_order(head * ids.size + channel)  # a channel of a head
        sizes = np.bincount(cell)
        owner = np.zeros(sizes.size, dtype=np.int64)  # the head of each cell
        owner[cell] = head
        if sizes.min() < sizes.max() or np.unique(np.bincount(owner)).size > 1:
            return None
        by_head = np.argsort(owner, kind="stable").reshape(heads, -1)
        strength = np.bincount(cell, self.strength[ids])[by_head]
        if role is Role.QUERIES:
            same = self._shared_keys(head, ids)
            strength = np.stack([strength[same == own].sum(0) for own in same])
        place = np.zeros(sizes.size, dtype=np.int64)
        order = np.argsort(-strength, axis=1, kind="stable")
        place[np.take_along_axis(by_head, order, 1)] = np.arange(by_head.shape[1])
        return HeadRows(role, rows, head, place[cell])

    def _shared_keys(self, head: Ids, ids: Ids) -> Ids:
        """A number per head: heads that share their keys have the same one, and one order of their channels."""
        head_of = np.full(self.role.size, -1)
        head_of[ids] = head
        queries, keys = self.meetings
        own = head_of[queries] >= 0
        sets = np.zeros(int(head.max()) + 1, dtype=np.uint64)
        _add_numbers(sets, head_of[queries[own]], keys[own])
        return _in_order(sets)


def _matched(at: Ids, rows: Ids, other_at: Ids, others: Ids) -> Ids:
    """Pairs of ``rows`` and ``others`` at the same place; both are sorted by place."""
    first, last = np.searchsorted(other_at, at, side="left"), np.searchsorted(other_at, at, side="right")
    count = last - first
    which = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    return np.stack([np.repeat(rows, count), others[which]])


def _once(left: Ids, right: Ids) -> tuple[Ids, Ids]:
    """The different pairs, sorted."""
    factor = int(right.max(initial=0)) + 1
    return np.divmod(np.unique(left * factor + right), factor)


def _add_numbers(sums: Sums, left: Ids, right: Ids) -> None:
    """To the sum of each id on the left, the random numbers of all those that it is paired with."""
    left, right = _once(left, right)
    numbers = np.random.default_rng(0).integers(1 << 63, size=int(right.max(initial=0)) + 1, dtype=np.uint64)
    np.add.at(sums, left, numbers[right])


def _in_order(values: npt.NDArray[Any]) -> Ids:
    """Equal values get equal numbers, in the order in which they come first.

    >>> _in_order(np.array([7, 3, 7, 9])).tolist()
    [0, 1, 0, 2]
    """
    _, first, which = np.unique(values, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[which.reshape(-1)]


def weight_of(mixer: Mixer, values: Values) -> torch.Tensor | None:
    """Of a module, or what a function is called with: a parameter, or rows of one; of a table its columns."""
    node = mixer.node
    if node.op == "call_module":
        owner = values.real if has_attribute(values.real, str(node.target)) else values.root
        module = attribute(owner, str(node.target))
        weight = getattr(module, "weight", None)
        if not isinstance(weight, torch.Tensor):
            return None
        return weight.t() if isinstance(module, nn.Embedding) else weight
    raw = node.args[1] if len(node.args) > 1 else node.kwargs.get("weight")
    try:
        weight = values.constant(raw) if isinstance(raw, fx.Node) else None
    except ValueError:
        return None
    return weight if isinstance(weight, torch.Tensor) else None


def variables_of(count: int, rows: Ids, which: Ids) -> Ids:
    """Per channel of a layer of ``count`` channels, its variable: ``which`` for ``rows``, none for all others."""
    variables = np.full(count, OPEN, dtype=np.int64)
    variables[rows] = which
    return variables
