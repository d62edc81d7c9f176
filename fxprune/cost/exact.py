"""Exact counts: the two passes over the id table and the cost formula on bools, for many masks at once.

What ``IdTable`` and ``CostModel`` do with probabilities in torch, here without them: a search over masks asks hundreds
of times, and training asks every step. Arrays are ids x masks, one column per mask; a column costs little beside the
calls themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fxprune.channels.facts import Channels, Mixer
from fxprune.channels.ids import FIXED, ONE, OPEN, ZERO, Ids, IdTable, Mix

Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
Index = slice | Ids


class Logic:
    """Who is alive and who is computed, for masks over the gate variables (variables x masks)."""

    def __init__(self, table: IdTable, roots: Ids) -> None:
        self.size, self.roots = table.size, roots
        self.steps = [_MixStep.of(block) if isinstance(block, Mix) else _JoinStep.of(block) for block in table.blocks]

    def alive(self, opened: Bools) -> Bools:
        alive = np.zeros((self.size, opened.shape[1]), dtype=bool)
        alive[ONE] = alive[FIXED] = True
        gates = np.concatenate([opened, np.ones((1, opened.shape[1]), dtype=bool)])  # OPEN reads the last row
        for step in self.steps:
            step.forwards(alive, gates)
        return alive

    def present(self, opened: Bools) -> Bools:
        """What the pruned network computes: alive, and read by someone who leads to the outputs."""
        alive = self.alive(opened)
        needed = np.zeros_like(alive)
        needed[self.roots] = True
        for step in reversed(self.steps):
            step.backwards(alive, needed)
        return np.logical_and(alive, needed, out=alive)


@dataclass(frozen=True, eq=False)
class _MixStep:
    shape: tuple[int, int]  # groups x rows
    out: slice
    gate: Index | None
    inputs: Index
    reader: _Reader

    @classmethod
    def of(cls, block: Mix) -> _MixStep:
        groups, rows = block.out.shape
        start, gate = int(block.out.flat[0]), None
        if (block.gate != OPEN).any():
            gate = _index(block.gate)
        inputs = _index(block.inputs)
        return cls((groups, rows), slice(start, start + groups * rows), gate, inputs, _Reader(block.inputs))

    def forwards(self, alive: Bools, gates: Bools) -> None:
        groups, rows = self.shape
        masks = alive.shape[1]
        fed = alive[self.inputs]
        if fed.shape[0] > groups:
            fed = np.logical_or.reduce(fed.reshape(groups, -1, masks), axis=1)
        if rows > 1:
            fed = fed.reshape(groups, 1, masks)
        out = alive[self.out].reshape(groups, rows, masks) if rows > 1 else alive[self.out]
        if self.gate is None:
            out[...] = fed
        else:
            np.logical_and(gates[self.gate].reshape(out.shape), fed, out=out)

    def backwards(self, alive: Bools, needed: Bools) -> None:
        groups, rows = self.shape
        asked = needed[self.out]
        demand = alive[self.out] & asked
        if rows > 1:
            grid = demand.reshape(groups, rows, -1)
            demand = np.logical_or.reduce(grid, axis=1)
            if groups > 1:  # a grouped convolution computes the same rows in each surviving group
                asked.reshape(grid.shape)[...] = demand[:, None] & np.logical_or.reduce(grid, axis=0)
        self.reader.ask(needed, demand)


@dataclass(frozen=True, eq=False)
class _JoinStep:
    both: np.ufunc
    out: slice
    operands: tuple[Index, ...]
    readers: tuple[_Reader, ...]

    @classmethod
    def of(cls, block: Any) -> _JoinStep:
        start = int(block.out.flat[0])
        operands = tuple(_index(ids) for ids in block.operands)
        both = np.logical_or if block.kind == "any" else np.logical_and
        return cls(both, slice(start, start + block.out.size), operands, tuple(map(_Reader, block.operands)))

    def forwards(self, alive: Bools, gates: Bools) -> None:
        out = alive[self.out]
        out[...] = alive[self.operands[0]]
        for operand in self.operands[1:]:
            self.both(out, alive[operand], out=out)

    def backwards(self, alive: Bools, needed: Bools) -> None:
        demand = alive[self.out] & needed[self.out]
        for reader in self.readers:
            reader.ask(needed, demand)


class _Reader:
    """Hands the demand of rows (one per group) on to the ids that they read, which may repeat."""

    def __init__(self, ids: Ids) -> None:
        grid = ids.reshape(ids.shape[0], -1)
        flat = grid.reshape(-1)
        self.rows: Ids | None = None
        self.starts: Ids | None = None
        if grid.shape[0] == 1:
            flat = np.unique(flat)
        elif np.unique(flat).size < flat.size:
            order = np.argsort(flat, kind="stable")
            flat, self.starts = np.unique(flat[order], return_index=True)
            self.rows = order // grid.shape[1]
        elif grid.shape[1] > 1:
            self.rows = np.arange(flat.size) // grid.shape[1]
        self.index = _index(flat)

    def ask(self, needed: Bools, demand: Bools) -> None:
        if self.rows is not None:
            demand = demand[self.rows]
        if self.starts is not None:
            demand = np.logical_or.reduceat(demand, self.starts, axis=0)
        needed[self.index] |= demand


class Counter:
    """Volume, FLOPs and parameters of the networks that compute given ids (ids x masks)."""

    def __init__(self, channels: Channels) -> None:
        layers: dict[str, list[Mixer]] = {}
        for mixer in channels.mixers:
            layers.setdefault(mixer.name, []).append(mixer)
        affines: dict[str, list[Ids]] = {}
        for affine in channels.affines:
            affines.setdefault(affine.name, []).append(affine.ids.reshape(1, -1))
        self.names = list(layers)
        self.unions: list[list[Ids]] = []  # of layers that are called several times
        self.size = channels.table.size
        rows = [self._union([call.ids for call in calls]) for calls in layers.values()]
        columns = [self._union([call.inputs for call in calls]) for calls in layers.values()]
        self.rows = Segments([group for ids in rows for group in ids])
        self.columns = Segments([group for ids in columns for group in ids])
        self.groups = np.cumsum([0] + [len(ids) for ids in rows])[:-1]
        self.grouped = len(self.groups) < len(self.rows.starts)
        self.affines = Segments([self._union(ids)[0] for ids in affines.values()])
        counts = {affine.name: affine.count for affine in channels.affines}
        self.affine = np.array([counts[name] for name in affines], dtype=np.int64)
        first = [calls[0] for calls in layers.values()]
        self.kernel = np.array([call.kernel for call in first], dtype=np.int64)[:, None]
        self.bias = np.array([call.bias for call in first], dtype=np.int64)[:, None]
        self.conv = np.array([call.is_conv for call in first])
        self.area = np.array([sum(c.area for c in calls) for calls in layers.values()], dtype=np.int64)[:, None]
        self.sites = np.array([sum(c.sites for c in calls) for calls in layers.values()], dtype=np.int64)[:, None]
        self.repeated = [(n, calls) for n, calls in enumerate(layers.values()) if len(calls) > 1]

    def _union(self, calls: list[Ids]) -> Ids:
        """Ids that stand for what any of the calls computes or reads; they follow those of the table."""
        if len(calls) == 1:
            return calls[0]
        start = self.size
        self.unions.append([ids.reshape(-1) for ids in calls])
        self.size += calls[0].size
        return np.arange(start, self.size).reshape(calls[0].shape)

    def count(self, present: Bools) -> tuple[Counts, Counts, Counts, Counts, Counts]:
        """Volume, FLOPs and parameters of convolutions; FLOPs and parameters of everything else."""
        known, conv = self._known(present), self.conv
        volume, flops, size = self._by_layer(present, known)
        return (
            volume[conv].sum(0), flops[conv].sum(0), size[conv].sum(0), flops[~conv].sum(0),
            size[~conv].sum(0) + self.affine @ self.affines.count(known),
        )  # fmt: skip

    def by_layer(self, present: Bools) -> dict[str, tuple[int, int, int]]:
        """Volume, FLOPs and parameters of every convolution, for one mask."""
        mask = present.reshape(-1, 1)
        found = np.concatenate(self._by_layer(mask, self._known(mask)), axis=1).tolist()
        return {name: tuple(found[n]) for n, name in enumerate(self.names) if self.conv[n]}

    def _known(self, present: Bools) -> Bools:
        """With what any of several calls computes."""
        if not self.unions:
            return present
        joined = [np.logical_or.reduce([present[ids] for ids in calls]) for calls in self.unions]
        return np.concatenate([present, *joined])

    def _by_layer(self, present: Bools, known: Bools) -> tuple[Counts, Counts, Counts]:
        rows, columns = self.rows.count(known), self.columns.count(known)
        if self.grouped:
            columns = np.maximum.reduceat(columns * (rows > 0), self.groups, axis=0)
            rows = np.add.reduceat(rows, self.groups, axis=0)
        weights = rows * columns * self.kernel
        area, sites = self._places(present)
        return rows * area, 2 * weights * sites, weights + rows * self.bias

    def _places(self, present: Bools) -> tuple[Counts, Counts]:
        """Positions per layer. A call whose result nobody reads is not made."""
        if not self.repeated:
            return self.area, self.sites
        shape = (len(self.area), present.shape[1])
        area, sites = np.broadcast_to(self.area, shape).copy(), np.broadcast_to(self.sites, shape).copy()
        for number, calls in self.repeated:
            made = [present[call.ids.reshape(-1)].any(0) for call in calls]
            area[number] = sum(call.area * live for call, live in zip(calls, made, strict=True))
            sites[number] = sum(call.sites * live for call, live in zip(calls, made, strict=True))
        return area, sites


class Segments:
    """Many lists of ids, counted at once."""

    def __init__(self, lists: Sequence[Ids]) -> None:
        full = [ids if ids.size else np.array([ZERO]) for ids in lists]  # reduceat knows no empty list
        self.index = _concatenated(full)
        self.starts = np.cumsum([0] + [ids.size for ids in full])[:-1]

    def count(self, present: Bools) -> Counts:
        if not self.starts.size:
            return np.zeros((0, present.shape[1]), dtype=np.int64)
        # The sum converts as it goes, which is several times faster to 32 bits than to 64.
        return np.add.reduceat(present.take(self.index, 0), self.starts, axis=0, dtype=np.int32).astype(np.int64)

    def expected(self, present: torch.Tensor) -> torch.Tensor:
        """How many of each list, where ids are there with some probability."""
        sizes = np.diff(np.append(self.starts, self.index.size))
        owners = torch.from_numpy(np.repeat(np.arange(sizes.size), sizes))
        return present.new_zeros(sizes.size).index_add(0, owners, present[torch.from_numpy(self.index)])


def _concatenated(lists: Iterable[Ids]) -> Ids:
    return np.concatenate([np.zeros(0, dtype=np.int64), *lists])


def _index(ids: Ids) -> Index:
    """A slice if possible: it is read and written in place."""
    flat = np.ascontiguousarray(ids).reshape(-1)
    start = int(flat[0])
    if start >= 0 and np.array_equal(flat, np.arange(start, start + flat.size)):
        return slice(start, start + flat.size)
    return flat
