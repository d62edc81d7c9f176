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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fxprune.analysis.gates import Layer, Ungated, units_of
from fxprune.channels import Channels
from fxprune.channels.ids import FIXED, ONE, OPEN, Ids, IdTable, Mix, distinct, immortal
from fxprune.cost.exact import Logic

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
AT_ONCE = 128  # masks that are tried together


@dataclass(frozen=True, eq=False)
class Guard:
    """A layer that must keep a channel alive."""

    layer: str
    unit: str  # of its gates
    keeps: str  # what would die without it
    choices: tuple[Ids, ...]  # sets of gate variables: of each at least one stays open
    read: bool = True  # False: of what it writes, the model only reads the size; where nobody asks for it, it may go


@dataclass(frozen=True, eq=False)
class Guards:
    """All guards of a network: the one place that knows which gates must not all close.

    >>> guards = Guards((Guard("stem", "stem", "the output", (np.array([0, 1, 2]),)),))
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


class Sure(NamedTuple):
    """What is proved of every mask that the guards hold."""

    alive: Bools  # ids that live
    fed: Bools  # rows of layers of whose inputs one lives

    @classmethod
    def by(cls, guards: Guards, table: IdTable, variables: int) -> Sure:
        proof = _Proof(table, [], variables)
        proof.holds(guard.choices for guard in guards.layers)
        return cls(proof.life, proof.fed)


# ---------------------------------------------------------------- what must live


@dataclass(frozen=True, eq=False)
class Requirement:
    """What the input says must reach one of ``ids``, one of them must live, or every one of them."""

    what: str
    ids: Ids
    how: str = "signal"  # or "one", "every"

    def met(self, life: Bools, signal: Bools) -> bool:
        if self.how == "every":
            return bool(life[self.ids].all())
        return bool((signal if self.how == "signal" else life)[self.ids].any())


def requirements(channels: Channels, layers: tuple[Layer, ...]) -> list[Requirement]:
    """Every output, every frozen channel, every layer that alone writes an output."""
    wanted = [Requirement(f"output {n}" if len(channels.outputs) > 1 else "the output", ids)
              for n, ids in enumerate(channels.outputs) if not (ids == ONE).any()]  # fmt: skip
    wanted += [Requirement(f"what the token at {node.name} sees", ids) for node, ids in channels.seen]
    for freeze in channels.freezes:
        wanted.append(Requirement(f"{freeze.op}, which keeps every channel", freeze.ids, "every"))
    for layer in layers:
        if layer.ungated is Ungated.OUTPUT:
            for call in layer.calls:
                wanted.append(Requirement(f"{layer.name}, which writes an output", call.ids[:, 0], "every"))
    return [requirement for requirement in wanted if requirement.ids.size]


def sizes(channels: Channels) -> list[Requirement]:
    """Every tensor whose size the model reads."""
    return [Requirement(f"the size read at {node.name}", ids, "one")
            for node, ids in channels.sized if ids.size and not immortal(ids).any()]  # fmt: skip


# ---------------------------------------------------------------- finding the guards


def find_guards(channels: Channels, layers: tuple[Layer, ...], logic: Logic) -> Guards:
    """The layers on the cheapest ways, and of each the sets of gates that keep the ways open."""
    search = _Search(channels, layers, logic)
    wanted = search.possible(requirements(channels, layers))
    read = search.guarded(wanted, {})
    wanted += search.possible(sizes(channels))
    every = search.guarded(wanted, read)
    choices = search.widest(every, wanted)
    guards: list[Guard] = []
    for name, unit in search.units.items():
        layer = unit.calls[0].name
        if name in every:
            guards.append(Guard(layer, name, search.keeps[every[name][0]], choices[name], name in read))
        elif unit.of_scores:  # without any, all positions weigh the same: a head dies by its values
            whole = np.arange(unit.part.start, unit.part.stop)
            guards.append(Guard(layer, name, "the scores of its heads", (whole,), read=False))
    return Guards(tuple(guards))


class _Search:
    def __init__(self, channels: Channels, layers: tuple[Layer, ...], logic: Logic) -> None:
        self.channels, self.table, self.logic = channels, channels.table, logic
        self.units = {unit.name: unit for unit in units_of(layers)}
        self.owner = [unit.name for unit in self.units.values() for _ in range(unit.variables)]
        self.costs = _Costs(self.table, np.ones(len(self.owner)))
        self.keeps: dict[int, str] = {}  # gate variable -> what would die without it

    def possible(self, wanted: list[Requirement]) -> list[Requirement]:
        """Without those that no mask meets: an output that the input never reaches."""
        return [requirement for requirement in wanted if self.costs.meet(requirement)]

    def guarded(self, wanted: list[Requirement], known: dict[str, list[int]]) -> dict[str, list[int]]:
        """Layer -> gate variables on the cheapest ways, beside those of ``known`` layers."""
        guarded = {name: list(variables) for name, variables in known.items()}
        for requirement in wanted:
            for variable in self.costs.way(requirement):
                self.keeps.setdefault(variable, requirement.what)
                own = guarded.setdefault(self.owner[variable], [])
                if variable not in own:
                    own.append(variable)
        for name in self._suspects([name for name in guarded if name not in known], list(guarded), wanted):
            without = [other for other in guarded if other != name]
            if self._enough(without, wanted):
                del guarded[name]
        return guarded

    def _suspects(self, names: list[str], guarded: list[str], wanted: list[Requirement]) -> list[str]:
        """Layers without which the others may keep everything alive: the ways to several outputs replace each other.

        What is left in the end needs each of its layers, so that a channel of each is not only alive but read as well.
        """
        whole = np.zeros(len(self.owner), dtype=bool)
        for name in guarded:
            whole[self.units[name].part] = True
        suspects: list[str] = []
        for start in range(0, len(names), AT_ONCE):
            part = names[start : start + AT_ONCE]
            without = np.repeat(whole[:, None], len(part), axis=1)
            for column, name in enumerate(part):
                without[self.units[name].part, column] = False
            life = self.logic.alive(without)
            suspects += [n for c, n in enumerate(part) if all(r.met(life[:, c], life[:, c]) for r in wanted)]
        return suspects

    def _enough(self, names: list[str], wanted: list[Requirement]) -> bool:
        """Whether these layers alone, with all of their channels, meet every requirement."""
        prices = np.full(len(self.owner), np.inf)
        for name in names:
            prices[self.units[name].part] = 0.0
        costs = _Costs(self.table, prices)
        return all(costs.meet(requirement) for requirement in wanted)

    def widest(self, ways: dict[str, list[int]], wanted: list[Requirement]) -> dict[str, tuple[Ids, ...]]:
        """Per guarded layer the largest sets that are proved to be enough: its whole, channels that are read alike, or
        the gates of the cheapest way alone, which always are."""
        proof = _Proof(self.table, wanted, len(self.owner))
        chosen = {name: tuple(np.array([variable]) for variable in ways[name]) for name in ways}

        def widen(names: list[str], wider: dict[str, tuple[Ids, ...]]) -> None:
            tried = {**chosen, **{name: wider[name] for name in names}}
            if proof.holds(tried.values()):
                chosen.update(tried)
            elif len(names) > 1:  # halves: of a thousand layers a few are not enough
                widen(names[: len(names) // 2], wider)
                widen(names[len(names) // 2 :], wider)

        variables = np.arange(len(self.owner))
        widen(list(ways), {name: (variables[self.units[name].part],) for name in ways})
        parted = [n for n in ways if sum(choice.size for choice in chosen[n]) < self.units[n].variables]
        if parted:
            alike = self._read_alike(parted)
            sets = {name: {int(alike[v][0]): alike[v] for v in ways[name]} for name in parted}
            apart = [name for name in parted if len(sets[name]) == len(ways[name])]
            widen(apart, {name: tuple(sets[name].values()) for name in apart})
        return chosen

    def _read_alike(self, names: list[str]) -> dict[int, Ids]:
        """Per gate variable those of the same layer whose channels are read in the same places."""
        places = np.zeros(self.table.size, dtype=np.uint64)
        numbers = np.random.default_rng(0)
        for block in self.table.blocks:
            for ids in block.inputs if isinstance(block, Mix) else block.operands:
                places[np.unique(ids)] += numbers.integers(1 << 63, dtype=np.uint64)
        for ids in self.channels.outputs:
            places[np.unique(ids)] += numbers.integers(1 << 63, dtype=np.uint64)
        alike: dict[int, Ids] = {}
        for unit in map(self.units.__getitem__, names):
            read = np.zeros(unit.variables, dtype=np.uint64)
            gated = unit.rows != OPEN
            for call in unit.calls:
                np.add.at(read, unit.rows[gated], places[call.ids.reshape(-1)[gated]])
            for variable in range(unit.variables):
                alike[unit.start + variable] = unit.start + np.flatnonzero(read == read[variable])
        return alike


class _Costs:
    """Per id, how many gates the cheapest way to it opens: to let it live, and to let it say something of the input."""

    def __init__(self, table: IdTable, prices: Floats) -> None:
        self.table = table
        self.life, self.signal = np.full(table.size, np.inf), np.full(table.size, np.inf)
        self.life[[ONE, FIXED]] = self.signal[ONE] = 0.0
        padded = np.append(prices, 0.0)  # OPEN reads the last entry
        for block in table.blocks:
            for cost in (self.life, self.signal):
                if isinstance(block, Mix):
                    cost[block.out] = padded[block.gate].sum(0) + cost[block.inputs].min(1, keepdims=True)
                elif block.kind == "any":
                    cost[block.out] = np.minimum.reduce([cost[operand] for operand in block.operands])
                else:
                    cost[block.out] = np.add.reduce([self.life[operand] for operand in block.operands])
            if not isinstance(block, Mix) and block.kind == "all":  # one operand carries the signal
                self.signal[block.out] += np.minimum.reduce([self._more(operand) for operand in block.operands])
        self.done: set[tuple[int, bool]] = set()

    def _more(self, ids: Ids) -> Floats:
        """What the signal costs beyond life."""
        life = self.life[ids]
        more: Floats = self.signal[ids] - np.where(np.isfinite(life), life, 0.0)
        return more

    def meet(self, requirement: Requirement) -> bool:
        return requirement.met(np.isfinite(self.life), np.isfinite(self.signal))

    def way(self, requirement: Requirement) -> list[int]:
        """The gate variables on the cheapest way; what is open for one requirement is free for the next."""
        if requirement.how == "every":
            stack = [(int(identity), False) for identity in requirement.ids]
        else:
            signal = requirement.how == "signal"
            stack = [(self._cheapest(requirement.ids, signal), signal)]
        variables: set[int] = set()
        while stack:
            identity, signal = stack.pop()
            source = self.table.source(identity)
            if source is None or (identity, signal) in self.done:
                continue
            self.done.add((identity, signal))
            block, at = source
            if isinstance(block, Mix):
                gates = block.gate.reshape(len(block.gate), -1)[:, at]
                variables.update(gates[gates != OPEN].tolist())
                stack.append((self._cheapest(block.inputs[at // block.out.shape[1]], signal), signal))
                continue
            operands = np.array([operand[at] for operand in block.operands])
            if block.kind == "any":
                stack.append((self._cheapest(operands, signal), signal))
            else:
                carrier = int(np.argmin(self._more(operands))) if signal else -1
                stack += [(int(operand), n == carrier) for n, operand in enumerate(operands)]
        return sorted(variables)

    def _cheapest(self, ids: Ids, signal: bool) -> int:
        return int(ids[np.argmin((self.signal if signal else self.life)[ids])])


class _Proof:
    """Whether everything is met if of each choice one gate is open, whichever it is.

    For all combinations at once: an id surely lives, surely says something of the input, or is one of a *clause*, a set
    of ids of which at least one surely says something. The rows of a choice are a clause; an op that carries all ids of
    a clause on makes a new one.
    """

    CLAUSES = 2  # that are remembered of an id

    def __init__(self, table: IdTable, wanted: list[Requirement], count: int) -> None:
        self.table, self.wanted, self.count = table, wanted, count
        self.starts = np.array(table.starts)

    def holds(self, choices: Iterable[tuple[Ids, ...]]) -> bool:
        number = np.full(self.count + 1, -1, dtype=np.int64)  # of the choice that a gate variable belongs to
        sizes: list[int] = []
        for choice in (choice for group in choices for choice in group):
            number[choice] = len(sizes)
            sizes.append(choice.size)
        self.sure = np.zeros(self.table.size, dtype=bool)
        self.sure[ONE] = True
        self.life, self.fed = self.sure.copy(), np.zeros_like(self.sure)
        self.life[FIXED] = True
        self.clauses = np.full((self.table.size, self.CLAUSES), -1, dtype=np.int64)
        self.sizes: list[int] = []
        for block in self.table.blocks:
            if isinstance(block, Mix):
                self._mix(block, number, sizes)
            elif block.kind == "any":
                self._any(block.out, np.stack(block.operands))
            else:
                self._all(block.out, block.operands)
        return all(map(self._met, self.wanted))

    def _met(self, requirement: Requirement) -> bool:
        ids = requirement.ids
        if requirement.how == "every":
            return bool(self.life[ids].all())
        return self._says(ids) or (requirement.how == "one" and bool(self.life[ids].any()))

    def _says(self, ids: Ids) -> bool:
        """Whether one of them surely says something."""
        return bool(self.sure[ids].any()) or bool(self._whole(ids).size)

    def _whole(self, ids: Ids) -> Ids:
        """The clauses all of whose ids are among these."""
        seen, counts = np.unique(self.clauses[np.unique(ids)], return_counts=True)
        return np.array([clause for clause, n in zip(seen.tolist(), counts.tolist(), strict=True)
                         if clause >= 0 and n == self.sizes[clause]], dtype=np.int64)  # fmt: skip

    def _new(self, ids: Ids) -> None:
        """A clause of these ids."""
        if ids.size == 1:
            self.sure[ids] = self.life[ids] = True
            return
        free = (self.clauses[ids] < 0).all(0)
        if free.any():
            self.clauses[ids, int(free.argmax())] = len(self.sizes)
            self.sizes.append(ids.size)

    def _mix(self, block: Mix, number: Ids, sizes: list[int]) -> None:
        fed = np.array([self._says(inputs) for inputs in block.inputs])
        live = fed | self.life[block.inputs].any(1)
        self.fed[block.out] = live[:, None]
        if not fed.all() and (block.gate == OPEN).all():
            self._some_group(block)
        counts = np.array([*sizes, 1, 0])  # of no gate, of no choice
        which = np.where(block.gate == OPEN, len(sizes), number[block.gate])
        surely = (counts[which] == 1).all(0)
        self.life[block.out[surely & live[:, None]]] = True
        self.sure[block.out[surely & fed[:, None]]] = True
        slots = len(block.gate)
        gates, which = (array[:, fed].reshape(slots, -1).T for array in (block.gate, which))
        out = block.out[fed].reshape(-1)
        for choice in distinct(which[(counts[which] > 0).all(1)])[0]:
            combinations = int(counts[choice].prod())
            of_choice = (which == choice).all(1)
            rows, variables = out[of_choice], distinct(gates[of_choice])[1]
            if np.unique(variables).size == combinations > 1:  # else the open one may be one that nothing feeds
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

    def _any(self, out: Ids, operands: Ids) -> None:
        self.sure[out], self.life[out] = self.sure[operands].any(0), self.life[operands].any(0)
        for clause in self._whole(operands).tolist():
            carries = (self.clauses[operands] == clause).any(2)
            self._new(out[carries.any(0)])
            if len(operands) > 2:  # a reduction: all channels meet in one place
                for place in np.flatnonzero(carries.sum(0) >= self.sizes[clause]):
                    if self._says(operands[:, place]):
                        self._new(out[[place]])

    def _all(self, out: Ids, operands: tuple[Ids, ...]) -> None:
        life = [self.life[operand] for operand in operands]
        self.life[out] = np.logical_and.reduce(life)
        self.sure[out] = self.life[out] & np.logical_or.reduce([self.sure[operand] for operand in operands])
        for position, operand in enumerate(operands):
            for clause in self._whole(operand).tolist():
                carries = (self.clauses[operand] == clause).any(1)
                others = [n for n in range(len(operands)) if n != position]
                missing = [np.flatnonzero(carries & ~life[n]) for n in others]
                if all(
                    self._follow(operands[n][at], operand[at]) for n, at in zip(others, missing, strict=True)
                ):
                    self._new(out[carries])

    def _follow(self, ids: Ids, others: Ids) -> bool:
        """Whether all ``ids`` live whenever the one in ``others`` does: statistics that are computed from it."""
        ids, others = ids[ids != others], others[ids != others]
        numbers = np.searchsorted(self.starts, ids, side="right") - 1
        if (numbers < 0).any():
            return False
        for number in np.unique(numbers).tolist():
            block, own = self.table.blocks[number], numbers == number
            places = ids[own] - self.starts[number]
            if isinstance(block, Mix):
                group = places // block.out.shape[1]
                gates = block.gate.reshape(len(block.gate), -1)[:, places]
                read = np.arange(len(block.inputs))[:, None] * self.table.size + block.inputs
                follows = (gates == OPEN).all() and np.isin(group * self.table.size + others[own], read).all()
            else:
                operands = np.stack([operand[places] for operand in block.operands])
                follows = block.kind == "any" and (operands == others[own]).any(0).all()
            if not follows:
                return False
        return True
