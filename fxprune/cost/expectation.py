"""Who is there when gates are open by chance: the expectation under independence, and its gradient, on the host.

Per id it is the probability that the pruned network computes it: alive in one pass forwards over the blocks of the id
table, needed in one backwards. ``or`` is 1 - (1 - p)(1 - q) and ``and`` is pq, so that zeros and ones give what
``Logic`` gives, and the cost formula is the same for masks and for expectations.

A network is a deep chain of blocks, and a block is little work: five operations on the one vector that is common to
all of its rows (whether any of its inputs is there). On a device, or recorded by autograd, each of them costs many
times what it computes. So both passes and their gradient are written out in numpy, in float64, over blocks whose ids
are slices as far as possible: a training step moves its gates here and the slopes back, and does nothing else on the
device. The gradient of a product is the product of all other factors, not a quotient: it is exact where factors are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.autograd.function import once_differentiable

from fxprune.channels.ids import FIXED, ONE, OPEN, Ids, IdTable, Join, Mix
from fxprune.cost.exact import index_of

Floats = npt.NDArray[np.float64]


@dataclass(eq=False)
class Tape:
    """What the passes found, for their gradient."""

    gates: Floats  # and a 1 behind them, which OPEN reads
    alive: Floats
    spare: Floats  # 1 - needed
    fed: list[Any] = field(default_factory=list)  # per block, of the first pass
    spent: list[list[Any]] = field(default_factory=list)  # per pass backwards and block

    @property
    def present(self) -> Floats:
        found: Floats = self.alive * (1 - self.spare)
        return found


class Expectation:
    """Per id, how surely the pruned network computes it, given the same for each gate variable.

    >>> table = IdTable()
    >>> stem = table.mix(np.array([[ONE, ONE, ONE]]), rows=2, owner="stem")
    >>> conv = table.mix(stem, rows=1, owner="conv")
    >>> table.blocks[0].gate = np.arange(2).reshape(1, 1, 2)
    >>> expectation = Expectation(table, conv[0])
    >>> tape = expectation.tape(np.array([0.5, 0.5]))
    >>> tape.present[3:].tolist()  # a row of the stem is there if its gate is open and the other layer reads it
    [0.375, 0.375, 0.75]
    >>> expectation.gradient(tape, np.array([0, 0, 0, 0, 0, 1])).tolist()  # of the last one
    [0.5, 0.5]
    """

    def __init__(self, table: IdTable, roots: Ids) -> None:
        self.size, self.roots = table.size, roots
        self.steps = [_step_of(block) for block in table.blocks]
        self.reads_sizes = any(isinstance(block, Mix) and block.of_size for block in table.blocks)

    def tape(self, gates: Floats) -> Tape:
        alive = np.zeros(self.size)
        alive[ONE] = alive[FIXED] = 1.0
        tape = Tape(np.append(gates, 1.0), alive, alive)
        tape.fed = [step.live(tape) for step in self.steps]
        self._spend(tape, None)
        if self.reads_sizes:  # once more, now that it is known who is needed without them
            self._spend(tape, tape.spare)
        return tape

    def _spend(self, tape: Tape, before: Floats | None) -> None:
        tape.spare = np.ones(self.size)
        tape.spare[self.roots] = 0.0
        tape.spent.append([step.spend(tape, before) for step in reversed(self.steps)])

    def gradient(self, tape: Tape, adjoint: Floats) -> Floats:
        """Of the sum of ``adjoint`` x present by the gates."""
        none = np.zeros(self.size if self.reads_sizes else 0)
        sums = _Sums(np.zeros_like(tape.gates), adjoint * (1 - tape.spare), -adjoint * tape.alive, none)
        for spent in reversed(tape.spent):
            for step, saved in zip(self.steps, reversed(spent), strict=True):
                if saved is not None:
                    step.unspend(tape, sums, saved)
            sums.spare = sums.before
        for step, fed in zip(reversed(self.steps), reversed(tape.fed), strict=True):
            step.unlive(tape, sums, fed)
        return sums.gates[:-1]


@dataclass(eq=False)
class _Sums:
    """The gradient by everything that the passes compute."""

    gates: Floats
    alive: Floats
    spare: Floats
    before: Floats  # by what was spare before sizes were asked for


class _Mix:
    """Rows that hang on their gates, and on whether any input of their group lives."""

    def __init__(self, block: Mix) -> None:
        self.groups, self.rows = block.out.shape
        self.of_size, self.columns = block.of_size, block.inputs.shape[1]
        start = int(block.out.flat[0])
        self.out = slice(start, start + block.out.size)
        self.gates = [_Places(gate) for gate in block.gate if (gate != OPEN).any()]
        self.inputs = _Places(block.inputs)
        self.grid = self.groups > 1 and self.rows > 1

    def live(self, tape: Tape) -> Any:
        dead = (1 - self.inputs.of(tape.alive)).reshape(self.groups, self.columns)
        fed = 1 - (dead if self.columns == 1 else np.multiply.reduce(dead, axis=1, keepdims=True))
        out = tape.alive[self.out].reshape(self.groups, self.rows)
        out[...] = fed
        for gate in self.gates:
            out *= gate.of(tape.gates).reshape(out.shape)
        return dead, fed

    def unlive(self, tape: Tape, sums: _Sums, saved: Any) -> None:
        dead, fed = saved
        by_out = sums.alive[self.out].reshape(self.groups, self.rows)
        by_fed = by_out
        values = [gate.of(tape.gates).reshape(by_out.shape) for gate in self.gates]
        for number, gate in enumerate(self.gates):
            by_gate = by_out * fed
            for other in values[:number] + values[number + 1 :]:
                by_gate *= other
            gate.add(sums.gates, by_gate.reshape(-1))
            by_fed = by_fed * values[number]
        if self.rows > 1:
            by_fed = np.add.reduce(by_fed, axis=1, keepdims=True)
        others = _others(dead, 1)
        if others is not None:
            self.inputs.add(sums.alive, (by_fed * others).reshape(-1))

    def spend(self, tape: Tape, before: Floats | None) -> Any:
        if self.of_size:
            return None if before is None else self._spend_size(tape, before)
        wanted = 1 - tape.spare[self.out]
        idle = (1 - tape.alive[self.out] * wanted).reshape(self.groups, self.rows)
        group = idle if self.rows == 1 else np.multiply.reduce(idle, axis=1, keepdims=True)
        row = None
        if self.grid:  # a grouped convolution computes the same rows in each surviving group
            row = np.multiply.reduce(idle, axis=0, keepdims=True)
            tape.spare[self.out] = (1 - (1 - group) * (1 - row)).reshape(-1)
        factor = group.reshape(-1) if self.columns == 1 else np.repeat(group, self.columns)
        return wanted, idle, group, row, factor, self.inputs.scale(tape.spare, factor)

    def unspend(self, tape: Tape, sums: _Sums, saved: Any) -> None:
        if self.of_size:
            self._unspend_size(tape, sums, saved)
            return
        wanted, idle, group, row, factor, before = saved
        by_group = self.inputs.unscale(sums.spare, factor, before).reshape(self.groups, self.columns)
        if self.columns > 1:
            by_group = np.add.reduce(by_group, axis=1, keepdims=True)
        by_idle = np.zeros(())
        if self.grid:
            by_spare = sums.spare[self.out].reshape(idle.shape)
            by_row = np.add.reduce(by_spare * (1 - group), axis=0, keepdims=True)
            by_group = by_group + np.add.reduce(by_spare * (1 - row), axis=1, keepdims=True)
            sums.spare[self.out] = 0.0  # of what it was before, nothing is left
            others = _others(idle, 0)
            by_idle = by_idle if others is None else by_row * others
        others = _others(idle, 1)
        if others is not None:
            by_idle = by_idle + by_group * others
        if by_idle.ndim:
            _unmeet(tape, sums, self.out, wanted, by_idle.reshape(-1))

    def _spend_size(self, tape: Tape, before: Floats) -> Any:
        """Of a tensor whose size is read the first living channel is needed, unless another one is there anyway."""
        wanted = 1 - tape.spare[self.out]
        asked = tape.alive[self.out] * wanted
        living = self.inputs.of(tape.alive)
        first = np.append(1.0, np.multiply.accumulate(1 - living)[:-1])
        absent, needed = 1 - living * (1 - before[self.inputs.index]), 1 - before[self.inputs.index]
        none = np.multiply.reduce(absent)
        factor = 1 - asked * none * first
        return wanted, asked, living, first, absent, needed, none, factor, self.inputs.scale(tape.spare, factor)

    def _unspend_size(self, tape: Tape, sums: _Sums, saved: Any) -> None:
        wanted, asked, living, first, absent, needed, none, factor, before = saved
        by_factor = self.inputs.unscale(sums.spare, factor, before)
        _unmeet(tape, sums, self.out, wanted, none * (by_factor @ first)[None])
        by_living = np.zeros_like(living)
        others = _others(absent[None], 1)
        if others is not None:
            by_absent = -asked * (by_factor @ first) * others[0]
            sums.before[self.inputs.index] += by_absent * living
            by_living -= by_absent * needed
        by_first, after = (-asked * none * by_factor).tolist(), 0.0
        for place in reversed(range(living.size)):  # first[n + 1] = first[n] * (1 - living[n])
            by_living[place] -= after * first[place]
            after = by_first[place] + after * (1 - living[place])
        self.inputs.add(sums.alive, by_living)


class _Layer(_Mix):
    """The same for one group, as nearly all layers have: what is common to its rows or inputs is a plain number."""

    def live(self, tape: Tape) -> Any:
        dead = 1 - tape.alive[self.inputs.index]
        none = float(np.multiply.reduce(dead))
        values = [gate.of(tape.gates) for gate in self.gates]
        tape.alive[self.out] = _product(values) * (1 - none) if values else 1 - none
        return dead, none, values

    def unlive(self, tape: Tape, sums: _Sums, saved: Any) -> None:
        dead, none, values = saved
        by_out = sums.alive[self.out]
        by_gates = by_out * (1 - none)
        for number, gate in enumerate(self.gates):
            others = values[:number] + values[number + 1 :]
            gate.add(sums.gates, by_gates * _product(others) if others else by_gates)
        by_fed = float(by_out @ _product(values) if values else by_out.sum())
        others = _others_of_all(dead, none) if by_fed else None
        if others is not None:
            sums.alive[self.inputs.index] += by_fed * others

    def spend(self, tape: Tape, before: Floats | None) -> Any:
        wanted = 1 - tape.spare[self.out]
        idle = 1 - tape.alive[self.out] * wanted
        factor = float(np.multiply.reduce(idle))
        return wanted, idle, factor, self.inputs.scale(tape.spare, factor)

    def unspend(self, tape: Tape, sums: _Sums, saved: Any) -> None:
        wanted, idle, factor, before = saved
        by_factor = float(sums.spare[self.inputs.index] @ before)
        sums.spare[self.inputs.index] *= factor
        others = _others_of_all(idle, factor) if by_factor else None
        if others is not None:
            _unmeet(tape, sums, self.out, wanted, by_factor * others)


class _Join:
    """Ids that live where any of the operands does, or where all do."""

    def __init__(self, block: Join) -> None:
        start = int(block.out.flat[0])
        self.out = slice(start, start + block.out.size)
        self.operands = [_Places(ids) for ids in block.operands]
        self.any = block.kind == "any"

    def live(self, tape: Tape) -> Any:
        parts = [operand.of(tape.alive) for operand in self.operands]
        if self.any:
            parts = [1 - part for part in parts]
        whole = _product(parts)
        tape.alive[self.out] = 1 - whole if self.any else whole
        return parts

    def unlive(self, tape: Tape, sums: _Sums, saved: Any) -> None:
        by_out = sums.alive[self.out]  # of the complements of both sides, if any is to live, it is the same
        if len(saved) == 2:
            others = (saved[1], saved[0])
        else:
            found = _others(np.stack(saved), 0)
            others = () if found is None else tuple(found)
        for operand, other in zip(self.operands, others, strict=False):
            operand.add(sums.alive, by_out * other)

    def spend(self, tape: Tape, before: Floats | None) -> Any:
        wanted = 1 - tape.spare[self.out]
        idle = 1 - tape.alive[self.out] * wanted
        return wanted, idle, [operand.scale(tape.spare, idle) for operand in self.operands]

    def unspend(self, tape: Tape, sums: _Sums, saved: Any) -> None:
        wanted, idle, before = saved
        last, *operands = reversed(self.operands)
        by_idle = last.unscale(sums.spare, idle, before[-1])
        for operand, spare in zip(operands, reversed(before[:-1]), strict=True):
            by_idle += operand.unscale(sums.spare, idle, spare)
        _unmeet(tape, sums, self.out, wanted, by_idle)


def _step_of(block: Mix | Join) -> _Mix | _Join:
    if isinstance(block, Join):
        return _Join(block)
    plain = block.out.shape[0] == 1 and not block.of_size and np.unique(block.inputs).size == block.inputs.size
    return _Layer(block) if plain else _Mix(block)


def _product(parts: Sequence[Floats]) -> Floats:
    return parts[0] if len(parts) == 1 else np.multiply.reduce(parts)


def _unmeet(tape: Tape, sums: _Sums, out: slice, wanted: Floats, by_idle: Floats) -> None:
    """The gradient through idle = 1 - alive x wanted."""
    sums.alive[out] -= by_idle * wanted
    sums.spare[out] += by_idle * tape.alive[out]


def _others(factors: Floats, axis: int) -> Floats | None:
    """The product of all factors but one, for each of them; None if all of these are 0."""
    if factors.shape[axis] == 1:
        return np.ones_like(factors)
    whole = np.multiply.reduce(factors, axis=axis, keepdims=True)
    if whole.all():
        return whole / factors
    zeros = factors == 0
    if not zeros.any():
        return whole / factors if whole.any() else None  # too small for a number
    filled = np.where(zeros, 1.0, factors)
    alone = zeros.sum(axis, keepdims=True) == zeros  # no other one is 0
    return np.where(alone, np.multiply.reduce(filled, axis=axis, keepdims=True) / filled, 0.0) if alone.any() else None


def _others_of_all(factors: Floats, whole: float) -> Floats | None:
    """The same along one axis, where the product of all is known."""
    if whole:
        return whole / factors
    (zeros,) = np.nonzero(factors == 0)
    if zeros.size != 1:
        return None
    found = np.zeros_like(factors)
    filled = factors.copy()
    filled[zeros] = 1.0
    found[zeros] = np.multiply.reduce(filled)
    return found


class _Places:
    """Ids of which some may come several times."""

    def __init__(self, ids: Ids) -> None:
        flat = np.ascontiguousarray(ids).reshape(-1)
        self.all = self.index = index_of(flat)
        self.order: Ids | None = None
        if isinstance(self.index, np.ndarray) and np.unique(flat).size < flat.size:
            self.order = np.argsort(flat, kind="stable")
            self.index, self.starts = np.unique(flat[self.order], return_index=True)
            self.owner = np.searchsorted(self.index, flat)

    def of(self, values: Floats) -> Floats:
        found: Floats = values[self.all]
        return found

    def add(self, values: Floats, more: Floats) -> None:
        if self.order is not None:
            more = np.add.reduceat(more[self.order], self.starts)
        values[self.index] += more

    def scale(self, values: Floats, factors: Floats | float) -> Floats:
        """Multiply by all factors of an id, and return what was there."""
        if self.order is not None:
            factors = np.multiply.reduceat(np.asarray(factors)[self.order], self.starts)
        here: Floats = values[self.index]
        if not isinstance(self.index, slice):
            values[self.index] = here * factors
            return here
        before: Floats = here.copy()
        here *= factors
        return before

    def unscale(self, sums: Floats, factors: Floats, before: Floats) -> Floats:
        """The gradient by the factors; that by what was there before takes the place of that by what is there now."""
        by_product: Floats = sums[self.index]
        by_factor: Floats
        if self.order is None:
            by_factor = by_product * before
            sums[self.index] = by_product * factors
            return by_factor
        ordered = factors[self.order]
        zeros = ordered == 0
        filled = np.where(zeros, 1.0, ordered)
        rest, number = np.multiply.reduceat(filled, self.starts), np.add.reduceat(zeros, self.starts, dtype=np.int64)
        sums[self.index] = by_product * np.where(number > 0, 0.0, rest)
        alone = number[self.owner] == (factors == 0)
        by_factor = (by_product * before * rest)[self.owner] / np.where(factors == 0, 1.0, factors)
        return np.where(alone, by_factor, 0.0)


class Present(torch.autograd.Function):
    """The same for a tensor on the host: recorded by autograd as one operation."""

    @staticmethod
    def forward(ctx: Any, gates: torch.Tensor, expectation: Expectation) -> torch.Tensor:
        ctx.expectation, ctx.tape = expectation, expectation.tape(gates.detach().numpy())
        return torch.from_numpy(ctx.tape.present)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_present: torch.Tensor) -> Any:
        return torch.from_numpy(ctx.expectation.gradient(ctx.tape, by_present.numpy())), None
