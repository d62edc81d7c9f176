"""Fatal pruning: which layers must keep a channel, so that a signal still gets from the inputs to every output.

The cheapest way from the inputs to each output is found over the id table: a gated row costs 1, an add takes its
cheapest operand, a multiply needs every operand. The layers on it are *guarded*: on a residual net the stem and the
1x1 convolutions of the pooling blocks, on a chain every convolution.

A guard is a list of *choices*, each of them a set of gate variables of one layer: at least one of every set stays open,
whichever it is. Usually the set is the whole layer. Where that is not enough, because behind a chunk or a grouped
shuffle the survivor may be the one that goes nowhere, it is a part of the layer, down to the one channel of the
cheapest way. That the choices are enough is proved, for all combinations at once, before they are used (``_Proof``).
So holding a guard needs no search: a set with nothing open gets its best gate back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fxprune.budget.exact import Logic
from fxprune.core import Channels
from fxprune.ids import ONE, OPEN, Ids, IdTable, Mix
from fxprune.passes.gates import Layer

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
AT_ONCE = 128  # masks that are tried together


@dataclass(frozen=True, eq=False)
class Guard:
    """A layer that must keep a channel alive."""

    layer: str
    keeps: str  # what would die without it
    choices: tuple[Ids, ...]  # sets of gate variables: of each at least one stays open


@dataclass(frozen=True, eq=False)
class Guards:
    """All guards of a network: the one place that knows which gates must not all close.

    >>> guards = Guards((Guard("stem", "the output", (np.array([0, 1, 2]),)),))
    >>> guards.hold(np.array([False, False, False, False]), np.array([0.1, 0.3, 0.2, 0.9])).tolist()
    [False, True, False, False]
    >>> guards.hold(np.array([True, False, False, False]), np.zeros(4)).tolist()
    [True, False, False, False]
    """

    layers: tuple[Guard, ...]

    @cached_property
    def choices(self) -> Ids:
        """One set per row; a shorter one repeats its first gate variable."""
        sets = [choice for guard in self.layers for choice in guard.choices]
        rows = np.zeros((len(sets), max((choice.size for choice in sets), default=1)), dtype=np.int64)
        for row, choice in zip(rows, sets, strict=True):
            row[:] = choice[0]
            row[: choice.size] = choice
        return rows

    def held(self, opened: Bools) -> bool:
        """Whether every set has an open gate."""
        return bool(opened[self.choices].any(1).all())

    def hold(self, opened: Bools, scores: Floats) -> Bools:
        """``opened``, and the best gate of every set that has none open."""
        closed = self.choices[~opened[self.choices].any(1)]
        held: Bools = opened.copy()
        if closed.size:
            held[np.take_along_axis(closed, scores[closed].argmax(1)[:, None], 1)] = True
        return held


# ---------------------------------------------------------------- what must live


@dataclass(frozen=True, eq=False)
class Requirement:
    """At least one of ``ids`` must live, or every one of them."""

    what: str
    ids: Ids
    every: bool = False

    def met(self, alive: Bools) -> bool:
        return bool(alive[self.ids].all() if self.every else alive[self.ids].any())


def requirements(channels: Channels, layers: tuple[Layer, ...]) -> tuple[Requirement, ...]:
    """Every output, every tensor whose size is one, every frozen channel, every layer that alone writes an output.

    A tensor that an op on the way reads the size of is on that way, too: the table says so.
    """
    wanted = [Requirement(f"output {n}" if len(channels.outputs) > 1 else "the output", ids)
              for n, ids in enumerate(channels.outputs)]  # fmt: skip
    wanted += [Requirement(f"the size of {node.name}, which is returned", ids) for node, ids in channels.sized]
    for freeze in channels.freezes:
        wanted.append(Requirement(f"{freeze.op}, which keeps every channel", freeze.ids, every=True))
    for layer in layers:
        if layer.why == "writes a model output":
            for call in layer.calls:
                wanted.append(Requirement(f"{layer.name}, which writes an output", call.ids[:, 0], every=True))
    return tuple(r for r in wanted if r.ids.size and (r.every or not (r.ids == ONE).any()))


def works(logic: Logic, wanted: Iterable[Requirement], opened: Bools) -> bool:
    """Whether everything lives that must."""
    alive = logic.alive(opened[:, None])[:, 0]
    return all(requirement.met(alive) for requirement in wanted)


# ---------------------------------------------------------------- finding the guards


def find_guards(channels: Channels, layers: tuple[Layer, ...], logic: Logic) -> Guards:
    """The layers on the cheapest ways, and of each the sets of gates that keep the ways open."""
    wanted = requirements(channels, layers)
    count = sum(layer.variables for layer in layers)
    keeps: dict[int, str] = {}  # gate variable -> what would die without it
    for requirement, variables in _cheapest(channels.table, wanted, np.ones(count)):
        for variable in variables:
            keeps.setdefault(variable, requirement.what)
    guarded: dict[str, list[int]] = {}
    owner = [layer for layer in layers for _ in range(layer.variables)]
    for variable in sorted(keeps):
        guarded.setdefault(owner[variable].name, []).append(variable)
    _drop_the_needless(guarded, {layer.name: layer for layer in layers}, logic, wanted, count)
    choices = _widest(channels, [layer for layer in layers if layer.name in guarded], guarded, wanted, count)
    return Guards(tuple(
        Guard(layer.name, keeps[guarded[layer.name][0]], choices[layer.name])
        for layer in layers if layer.name in guarded
    ))  # fmt: skip


def _drop_the_needless(
    guarded: dict[str, list[int]], layers: dict[str, Layer], logic: Logic, wanted: tuple[Requirement, ...], count: int
) -> None:
    """A layer without which the others keep everything alive: the ways to several outputs may replace each other.

    What is left needs each of its layers, so that a channel of each is not only alive but read as well.
    """
    whole = np.zeros(count, dtype=bool)
    for name in guarded:
        whole[layers[name].start : layers[name].start + layers[name].variables] = True
    names = list(guarded)
    suspects: list[str] = []
    for start in range(0, len(names), AT_ONCE):
        part = names[start : start + AT_ONCE]
        without = np.repeat(whole[:, None], len(part), axis=1)
        for column, name in enumerate(part):
            without[layers[name].start : layers[name].start + layers[name].variables, column] = False
        alive = logic.alive(without)
        suspects += [name for column, name in enumerate(part) if all(r.met(alive[:, column]) for r in wanted)]
    for name in suspects:
        without = whole.copy()
        without[layers[name].start : layers[name].start + layers[name].variables] = False
        if works(logic, wanted, without):
            whole = without
            del guarded[name]


def _cheapest(table: IdTable, wanted: tuple[Requirement, ...], price: Floats) -> list[tuple[Requirement, set[int]]]:
    """For each requirement the gate variables on its cheapest way; what is open for one is free for the next."""
    cost = _costs(table, np.append(price, 0.0))  # OPEN reads the last entry
    home = homes(table)
    ways: list[tuple[Requirement, set[int]]] = []
    done: set[int] = set()
    for requirement in wanted:
        costs = cost[requirement.ids]
        variables: set[int] = set()
        if requirement.every:
            stack = [int(identity) for identity in requirement.ids[costs > 0]]
        else:
            stack = [int(requirement.ids[np.argmin(costs)])]
        while stack:
            identity = stack.pop()
            if home[identity] < 0 or identity in done:
                continue
            done.add(identity)
            block = table.blocks[home[identity]]
            at = identity - int(block.out.flat[0])
            if isinstance(block, Mix):
                if block.gate.flat[at] != OPEN:
                    variables.add(int(block.gate.flat[at]))
                inputs = block.inputs[at // block.out.shape[1]]
                stack.append(int(inputs[np.argmin(cost[inputs])]))
            elif block.kind == "any":
                stack.append(min((int(operand[at]) for operand in block.operands), key=lambda i: float(cost[i])))
            else:
                stack += [int(operand[at]) for operand in block.operands]
        ways.append((requirement, variables))
    return ways


def homes(table: IdTable) -> Ids:
    """Per id the number of its block, -1 for those that have none."""
    home = np.full(table.size, -1, dtype=np.int64)
    for number, block in enumerate(table.blocks):
        home[block.out.reshape(-1)] = number
    return home


def _costs(table: IdTable, prices: Floats) -> Floats:
    """Per id, how many gates the cheapest way to it opens."""
    cost = np.full(table.size, np.inf)
    cost[ONE] = 0.0
    for block in table.blocks:
        if isinstance(block, Mix):
            cost[block.out] = prices[block.gate] + cost[block.inputs].min(1, keepdims=True)
        elif block.kind == "any":
            cost[block.out] = np.minimum.reduce([cost[operand] for operand in block.operands])
        else:
            cost[block.out] = np.add.reduce([cost[operand] for operand in block.operands])
    return cost


# ---------------------------------------------------------------- the choices


def _widest(
    channels: Channels, layers: list[Layer], ways: dict[str, list[int]], wanted: tuple[Requirement, ...], count: int
) -> dict[str, tuple[Ids, ...]]:
    """Per guarded layer the largest sets that are proved to be enough: its whole, channels that are read alike, or
    the gates of the cheapest way alone, which always are."""
    proof = _Proof(channels.table, wanted, count)
    chosen = {layer.name: tuple(np.array([variable]) for variable in ways[layer.name]) for layer in layers}

    def widen(part: list[Layer], wider: dict[str, tuple[Ids, ...]]) -> None:
        tried = {**chosen, **{layer.name: wider[layer.name] for layer in part}}
        if proof.holds(tried.values()):
            chosen.update(tried)
        elif len(part) > 1:  # halves: of a thousand layers a few are not enough
            widen(part[: len(part) // 2], wider)
            widen(part[len(part) // 2 :], wider)

    widen(layers, {layer.name: (np.arange(layer.start, layer.start + layer.variables),) for layer in layers})
    parted = [layer for layer in layers if sum(choice.size for choice in chosen[layer.name]) < layer.variables]
    if parted:
        alike = _read_alike(channels, parted, count)
        sets = {layer.name: {int(alike[v][0]): alike[v] for v in ways[layer.name]} for layer in parted}
        apart = [layer for layer in parted if len(sets[layer.name]) == len(ways[layer.name])]
        widen(apart, {layer.name: tuple(sets[layer.name].values()) for layer in apart})
    return chosen


def _read_alike(channels: Channels, layers: list[Layer], count: int) -> dict[int, Ids]:
    """Per gate variable those of the same layer whose channels are read in the same places."""
    places = np.zeros(channels.table.size, dtype=np.uint64)
    numbers = np.random.default_rng(0)

    def mark(ids: Ids) -> None:
        places[np.unique(ids)] += numbers.integers(1 << 63, dtype=np.uint64)

    for block in channels.table.blocks:
        for ids in block.inputs if isinstance(block, Mix) else block.operands:
            mark(ids)
    for ids in channels.outputs:
        mark(ids)
    alike: dict[int, Ids] = {}
    for layer in layers:
        read = np.zeros(layer.variables, dtype=np.uint64)
        gated = layer.rows.reshape(-1) != OPEN
        for call in layer.calls:
            np.add.at(read, layer.rows.reshape(-1)[gated], places[call.ids.reshape(-1)[gated]])
        for variable in range(layer.variables):
            alike[layer.start + variable] = layer.start + np.flatnonzero(read == read[variable])
    return alike


class _Proof:
    """Whether everything lives that must if of each choice one gate is open, whichever it is.

    For all combinations at once: an id *surely* lives, or is one of a *clause*, a set of ids of which at least one
    surely lives. The rows of a choice are a clause; an op that carries all ids of a clause on makes a new one.
    """

    CLAUSES = 2  # that are remembered of an id

    def __init__(self, table: IdTable, wanted: tuple[Requirement, ...], count: int) -> None:
        self.table, self.wanted, self.count = table, wanted, count
        self.home = homes(table)

    def holds(self, choices: Iterable[tuple[Ids, ...]]) -> bool:
        number = np.full(self.count + 1, -1, dtype=np.int64)  # of the choice that a gate variable belongs to
        sizes: list[int] = []
        for choice in (choice for group in choices for choice in group):
            number[choice] = len(sizes)
            sizes.append(choice.size)
        self.sure = np.zeros(self.table.size, dtype=bool)
        self.sure[ONE] = True
        self.clauses = np.full((self.table.size, self.CLAUSES), -1, dtype=np.int64)
        self.sizes: list[int] = []
        for block in self.table.blocks:
            if isinstance(block, Mix):
                self._mix(block, number, sizes)
            else:
                self._join(block.kind, block.out, block.operands)
        return all(self.sure[r.ids].all() if r.every else self._lives(r.ids) for r in self.wanted)

    def _lives(self, ids: Ids) -> bool:
        """Whether one of them surely lives."""
        return bool(self.sure[ids].any()) or bool(self._whole(ids).size)

    def _whole(self, ids: Ids) -> Ids:
        """The clauses all of whose ids are among these."""
        seen, counts = np.unique(self.clauses[np.unique(ids)], return_counts=True)
        return np.array([clause for clause, n in zip(seen.tolist(), counts.tolist(), strict=True)
                         if clause >= 0 and n == self.sizes[clause]], dtype=np.int64)  # fmt: skip

    def _new(self, ids: Ids) -> None:
        """A clause of these ids."""
        if ids.size == 1:
            self.sure[ids] = True
            return
        free = (self.clauses[ids] < 0).all(0)
        if free.any():
            self.clauses[ids, int(free.argmax())] = len(self.sizes)
            self.sizes.append(ids.size)

    def _mix(self, block: Mix, number: Ids, sizes: list[int]) -> None:
        fed = np.array([self._lives(inputs) for inputs in block.inputs])
        if not fed.all() and (block.gate == OPEN).all():
            self._some_group(block)
        if not fed.any():
            return
        gates, out = block.gate[fed].reshape(-1), block.out[fed].reshape(-1)
        self.sure[out[gates == OPEN]] = True
        which = np.where(gates == OPEN, -1, number[gates])
        for choice in np.unique(which[which >= 0]).tolist():
            rows, variables = out[which == choice], gates[which == choice]
            if sizes[choice] == 1:
                self.sure[rows] = True
            elif np.unique(variables).size == sizes[choice]:  # else the open one may be one that nothing feeds
                order = np.argsort(variables, kind="stable")
                _, starts, each = np.unique(variables[order], return_index=True, return_counts=True)
                for nth in range(int(each.min())):  # an open gate lets all of its rows live
                    self._new(rows[order][starts + nth])

    def _some_group(self, block: Mix) -> None:
        """A clause that the groups share feeds one of them at least, as in a depthwise convolution."""
        for clause in self._whole(block.inputs).tolist():
            groups = (self.clauses[block.inputs] == clause).any((1, 2))
            for row in block.out[groups].T:
                self._new(row)

    def _join(self, kind: str, out: Ids, operands: tuple[Ids, ...]) -> None:
        if kind == "any":
            self._any(out, np.stack(operands))
            return
        sure = [self.sure[operand] for operand in operands]
        self.sure[out] = np.logical_and.reduce(sure)
        for position, operand in enumerate(operands):
            for clause in self._whole(operand).tolist():
                carries = (self.clauses[operand] == clause).any(1)
                if all(
                    (known | self._follows(other, operand))[carries].all()
                    for n, (known, other) in enumerate(zip(sure, operands, strict=True)) if n != position
                ):  # fmt: skip
                    self._new(out[carries])

    def _any(self, out: Ids, operands: Ids) -> None:
        self.sure[out] = self.sure[operands].any(0)
        for clause in self._whole(operands).tolist():
            carries = (self.clauses[operands] == clause).any(2)
            self._new(out[carries.any(0)])
            if len(operands) > 2:  # a reduction: all channels meet in one place
                for place in np.flatnonzero(carries.sum(0) >= self.sizes[clause]):
                    self.sure[out[place]] |= self._lives(operands[:, place])

    def _follows(self, ids: Ids, others: Ids) -> Bools:
        """Which ``ids`` live whenever the one in ``others`` does: statistics that are computed from it."""
        follows = np.zeros(ids.size, dtype=bool)
        for at in np.flatnonzero(self.home[ids] >= 0):
            block = self.table.blocks[self.home[ids[at]]]
            if isinstance(block, Mix):
                place = int(ids[at] - block.out.flat[0])
                follows[at] = block.gate.flat[place] == OPEN and others[at] in block.inputs[place // block.out.shape[1]]
            else:
                place = int(ids[at] - block.out[0])
                follows[at] = block.kind == "any" and any(operand[place] == others[at] for operand in block.operands)
        follows |= ids == others
        return follows
