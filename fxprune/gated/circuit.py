"""Who lives, as a device finds it out in every forward pass: a few gathers and sums, whatever the depth of the net.

A net is a deep chain, and who lives at its end depends on all gates. But what guards keep open needs no look at any of
them: behind it a channel lives just if its own gate is open. What is left are short ways from gates to the places that
are asked for. They are folded here, once, into levels of nodes that live if at least so many of their inputs do; one
sum per level answers for all of its nodes. Nothing waits for the device, and no shape depends on what it finds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from fxprune.analysis.guards import Sure
from fxprune.channels.ids import FIXED, ONE, OPEN, Ids, IdTable, Mix, distinct

DEAD, ALIVE = -2, -1  # signals that are no node; a node is a gate variable or one of those that follow


class Lookup:
    """Numbers that never change, on the device that asks for them. As buffers they would be averaged with a model, and
    sent around by DistributedDataParallel."""

    def __init__(self, **arrays: npt.NDArray[np.generic]) -> None:
        self.device = torch.device("cpu")
        self.held = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        self.tensors = self.held

    def at(self, device: torch.device) -> dict[str, torch.Tensor]:
        if device != self.device:  # the first time there
            self.tensors = {name: tensor.to(device) for name, tensor in self.held.items()}
            self.device = device
        return self.tensors


class Circuit:
    """Which of the ``wanted`` ids live.

    >>> table = IdTable()
    >>> stem = table.mix(np.array([[ONE, ONE, ONE]]), rows=2, owner="stem")
    >>> conv = table.mix(stem, rows=1, owner="conv")
    >>> table.blocks[0].gate = np.arange(2).reshape(1, 1, 2)
    >>> nothing = Sure(*np.zeros((2, table.size), dtype=bool))
    >>> circuit = Circuit(Folded(table, 2, nothing), np.array([stem[0, 0], conv[0, 0], ONE]))
    >>> circuit(torch.tensor([False, True])).tolist(), circuit(torch.tensor([False, False])).tolist()
    ([False, True, True], [False, False, True])
    """

    def __init__(self, folded: Folded, wanted: Ids) -> None:
        variables = folded.variables
        levels, places = folded.levels(folded.signals[wanted])
        self.depth, self.whole = len(levels), np.array_equal(places, np.arange(variables))
        self.constants = bool((places < 0).any())
        size = variables + sum(level[2].size for level in levels)
        lookup = {
            "places": np.where(places < 0, size - places - 1, places),  # constants follow all nodes
            "ends": np.array([True, False]),  # ALIVE, DEAD
        }
        for number, (inputs, owners, least) in enumerate(levels):
            lookup.update({f"inputs {number}": inputs, f"owners {number}": owners})
            lookup[f"least {number}"] = least.astype(np.int32)
        self.lookup = Lookup(**lookup)

    def __call__(self, opened: torch.Tensor) -> torch.Tensor:
        """``opened``: which gate variables are."""
        if self.whole:
            return opened
        known, found = opened, self.lookup.at(opened.device)
        for number in range(self.depth):
            inputs, owners, least = (found[f"{name} {number}"] for name in ("inputs", "owners", "least"))
            alive = known[inputs].to(least.dtype)
            known = torch.cat([known, torch.zeros_like(least).index_add(0, owners, alive) >= least])
        if self.constants:
            known = torch.cat([known, found["ends"]])
        return known[found["places"]]


class Folded:
    """Per id the signal that says whether it lives, and the nodes whose signals these are; for masks that the guards
    hold, of which some things are ``sure``."""

    def __init__(self, table: IdTable, variables: int, sure: Sure) -> None:
        self.variables = self.count = variables
        self.inputs: list[Ids] = []  # of each lot of nodes, one list after the other
        self.sizes: list[Ids] = []
        self.least: list[Ids] = []
        self.signals = np.full(table.size, DEAD, dtype=np.int64)
        self.signals[[ONE, FIXED]] = ALIVE
        self.signals[sure.alive] = ALIVE
        for block in table.blocks:
            out = block.out.reshape(-1)
            asked = ~sure.alive[out]
            if not asked.any():
                continue
            if isinstance(block, Mix):
                fed = np.full(len(block.out), ALIVE)
                unsure = ~sure.fed[block.out[:, 0]]
                fed[unsure] = self._joined(self.signals[block.inputs[unsure]], any_of=True)
                fed = np.repeat(fed, block.out.shape[1])
                gates = block.gate.reshape(len(block.gate), -1)
                parts = np.stack([fed, *np.where(gates == OPEN, ALIVE, gates)], 1)
                self.signals[out[asked]] = self._joined(parts[asked], any_of=False)
            else:
                parts = self.signals[np.stack(block.operands, 1)]
                self.signals[out[asked]] = self._joined(parts[asked], any_of=block.kind == "any")

    def _joined(self, parts: Ids, *, any_of: bool) -> Ids:
        """Per row, whether any of its signals lives, or all."""
        neutral, settled = (DEAD, ALIVE) if any_of else (ALIVE, DEAD)
        parts = np.sort(parts, axis=1)
        counts = (parts != neutral) & np.diff(parts, axis=1, prepend=DEAD - 1).astype(bool)
        known, number = (parts == settled).any(1), counts.sum(1)
        found = np.where(number == 0, neutral, parts[:, -1])  # the only one is the last: constants come first
        found[known] = settled
        new = ~known & (number > 1)
        if new.any():
            rows, which = distinct(np.where(counts, parts, neutral)[new])
            there = rows != neutral
            sizes = there.sum(1)
            self.inputs.append(rows[there])
            self.sizes.append(sizes)
            self.least.append(np.ones_like(sizes) if any_of else sizes)
            found[new] = self.count + which
            self.count += len(rows)
        return found

    def levels(self, wanted: Ids) -> tuple[list[tuple[Ids, Ids, Ids]], Ids]:
        """Of the nodes that lead to the wanted signals, level by level: inputs, whose they are, and how many of them
        must live. And where the wanted ones are then found."""
        starts = self.variables + np.cumsum([0, *map(len, self.sizes)])
        needed = np.zeros(self.count, dtype=bool)
        needed[wanted[wanted >= 0]] = True
        level = np.zeros(self.count, dtype=np.int64)
        for lot in reversed(range(len(self.sizes))):
            own = needed[starts[lot] : starts[lot + 1]]
            needed[self.inputs[lot][np.repeat(own, self.sizes[lot])]] = True
        for lot, (inputs, sizes) in enumerate(zip(self.inputs, self.sizes, strict=True)):
            begins = np.cumsum(sizes) - sizes
            level[starts[lot] : starts[lot + 1]] = 1 + np.maximum.reduceat(level[inputs], begins)
        nodes = np.flatnonzero(needed & (level > 0))
        nodes = nodes[np.argsort(level[nodes], kind="stable")]
        place = np.full(self.count, DEAD)
        place[: self.variables] = np.arange(self.variables)
        place[nodes] = self.variables + np.arange(nodes.size)
        every = np.concatenate([*self.inputs, np.zeros(0, dtype=np.int64)])
        sizes, least = (np.concatenate([*lots, np.zeros(0, dtype=np.int64)]) for lots in (self.sizes, self.least))
        owner = np.repeat(self.variables + np.arange(sizes.size), sizes)
        found = []
        for depth in range(1, int(level[nodes].max(initial=0)) + 1):
            own = np.flatnonzero(needed & (level == depth))
            mine = np.isin(owner, own)
            found.append((place[every[mine]], np.searchsorted(own, owner[mine]), least[own - self.variables]))
        places = wanted.copy()
        places[wanted >= 0] = place[wanted[wanted >= 0]]
        return found, places
