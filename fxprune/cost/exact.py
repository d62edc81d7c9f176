"""The two passes over the id table on bools, for many masks at once.

What ``Expectation`` does with probabilities, here without them: a search over masks asks hundreds of times, and
training asks every step. Arrays are ids x masks, a column per mask; one more costs little beside the calls themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fxprune.channels.ids import FIXED, ONE, OPEN, Ids, IdTable, Mix

Bools = npt.NDArray[np.bool_]
Index = slice | Ids


class Logic:
    """Who is alive and who is computed, for masks over the gate variables (variables x masks)."""

    def __init__(self, table: IdTable, roots: Ids) -> None:
        self.size, self.roots = table.size, roots
        self.steps = [_MixStep.of(block) if isinstance(block, Mix) else _JoinStep.of(block) for block in table.blocks]
        self.reads_sizes = any(isinstance(block, Mix) and block.of_size for block in table.blocks)

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
        if self.reads_sizes:
            for step in reversed(self.steps):
                step.backwards(alive, needed, sizes=True)
        return np.logical_and(alive, needed, out=alive)


@dataclass(frozen=True, eq=False)
class _MixStep:
    shape: tuple[int, int]  # groups x rows
    out: slice
    gates: tuple[Index, ...]
    inputs: Index
    reader: _Reader
    of_size: bool

    @classmethod
    def of(cls, block: Mix) -> _MixStep:
        groups, rows = block.out.shape
        start = int(block.out.flat[0])
        gates = tuple(index_of(gate) for gate in block.gate if (gate != OPEN).any())
        inputs, out = index_of(block.inputs), slice(start, start + groups * rows)
        return cls((groups, rows), out, gates, inputs, _Reader(block.inputs), block.of_size)

    def forwards(self, alive: Bools, gates: Bools) -> None:
        groups, rows = self.shape
        masks = alive.shape[1]
        fed = alive[self.inputs]
        if fed.shape[0] > groups:
            fed = np.logical_or.reduce(fed.reshape(groups, -1, masks), axis=1)
        if rows > 1:
            fed = fed.reshape(groups, 1, masks)
        out = alive[self.out].reshape(groups, rows, masks) if rows > 1 else alive[self.out]
        out[...] = fed
        for gate in self.gates:
            np.logical_and(gates[gate].reshape(out.shape), out, out=out)

    def backwards(self, alive: Bools, needed: Bools, *, sizes: bool = False) -> None:
        """Of what only the size is read of (in a second pass, ``sizes``), the first living channel is needed, unless
        another one is there anyway."""
        if self.of_size:
            if sizes:
                living = alive[self.inputs]
                asked = alive[self.out] & needed[self.out] & ~(living & needed[self.inputs]).any(0)
                first = living & (np.cumsum(living, axis=0) == 1)
                needed[self.inputs] |= first & asked
            return
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
        operands = tuple(index_of(ids) for ids in block.operands)
        both = np.logical_or if block.kind == "any" else np.logical_and
        return cls(both, slice(start, start + block.out.size), operands, tuple(map(_Reader, block.operands)))

    def forwards(self, alive: Bools, gates: Bools) -> None:
        out = alive[self.out]
        out[...] = alive[self.operands[0]]
        for operand in self.operands[1:]:
            self.both(out, alive[operand], out=out)

    def backwards(self, alive: Bools, needed: Bools, *, sizes: bool = False) -> None:
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
        self.index = index_of(flat)

    def ask(self, needed: Bools, demand: Bools) -> None:
        if self.rows is not None:
            demand = demand[self.rows]
        if self.starts is not None:
            demand = np.logical_or.reduceat(demand, self.starts, axis=0)
        needed[self.index] |= demand


def index_of(ids: Ids) -> Index:
    """A slice if possible: it is read and written in place."""
    flat = np.ascontiguousarray(ids).reshape(-1)
    start = int(flat[0])
    if start >= 0 and np.array_equal(flat, np.arange(start, start + flat.size)):
        return slice(start, start + flat.size)
    return flat
