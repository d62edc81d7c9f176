"""Fatal pruning: which gates must not all close, and how few channels keep the network alive.

The cheapest way from the inputs to each output, over the id table: a gated row costs 1, an add takes its cheapest
operand, a multiply needs every operand. On a residual net that is the stem and the 1x1 convolutions of the pooling
blocks; on a chain it is every convolution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fxprune.core import Channels
from fxprune.ids import ONE, OPEN, Ids, IdTable, Mix
from fxprune.passes.gates import Layer

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Guard:
    """A layer that must keep a channel alive."""

    layer: str
    keeps: str  # what would die without it


@dataclass(frozen=True, eq=False)
class Requirement:
    """At least one of ``ids`` must live, or every one of them."""

    what: str
    ids: Ids
    every: bool = False

    def met(self, alive: npt.NDArray[np.bool_]) -> bool:
        return bool(alive[self.ids].all() if self.every else alive[self.ids].any())


def requirements(channels: Channels, layers: tuple[Layer, ...]) -> tuple[Requirement, ...]:
    """Every output, every tensor whose size is read, every frozen channel, every layer that alone writes an output."""
    found = [Requirement(f"output {n}" if len(channels.outputs) > 1 else "the output", ids)
             for n, ids in enumerate(channels.outputs)]  # fmt: skip
    found += [Requirement(f"the size read at {node.name}", ids) for node, ids in channels.sized]
    for freeze in channels.freezes:
        found.append(Requirement(f"{freeze.op}, which keeps every channel", freeze.ids, every=True))
    for layer in layers:
        if layer.why == "writes a model output":
            for call in layer.calls:
                found.append(Requirement(f"{layer.name}, which writes an output", call.ids[:, 0], every=True))
    return tuple(r for r in found if r.ids.size and (r.every or not (r.ids == ONE).any()))


def spine(channels: Channels, layers: tuple[Layer, ...]) -> tuple[Guard, ...]:
    """The layers on the cheapest ways, each with what it keeps alive."""
    owner = _owners(layers)
    price, rows = np.ones(len(owner)), np.zeros(channels.table.size)
    guards: dict[str, Guard] = {}
    for requirement, variables in _cheapest(channels.table, requirements(channels, layers), price, rows):
        for variable in variables:
            guards.setdefault(owner[variable].name, Guard(owner[variable].name, requirement.what))
    return tuple(guards[layer.name] for layer in layers if layer.name in guards)


def keep_alive(
    table: IdTable, wanted: tuple[Requirement, ...], opened: npt.NDArray[np.bool_], price: Floats, rows: Floats
) -> npt.NDArray[np.bool_]:
    """Open the cheapest gates (``price`` per gate variable, ``rows`` per id) until every requirement lives."""
    kept: npt.NDArray[np.bool_] = opened.copy()
    for _, variables in _cheapest(table, wanted, np.where(opened, 0.0, price), rows):
        kept[list(variables)] = True
    return kept


def prices(layers: tuple[Layer, ...], guards: tuple[Guard, ...], scores: Floats) -> Floats:
    """As few gates as possible, on guarded layers first, best scores first."""
    guarded = {guard.layer for guard in guards}
    price = np.concatenate(
        [np.full(layer.variables, 1.0 if layer.name in guarded else 1e3) for layer in layers] or [np.zeros(0)]
    )
    ranks = np.empty(scores.size)
    ranks[np.argsort(-scores, kind="stable")] = np.arange(scores.size)
    ranked: Floats = price + 1e-3 * ranks / max(scores.size, 1)
    return ranked


def _owners(layers: tuple[Layer, ...]) -> list[Layer]:
    return [layer for layer in layers for _ in range(layer.variables)]


def _cheapest(
    table: IdTable, wanted: tuple[Requirement, ...], price: Floats, rows: Floats
) -> list[tuple[Requirement, set[int]]]:
    """For each requirement the gate variables on its cheapest derivation; what is paid once is free afterwards."""
    padded = np.append(price, 0.0)  # OPEN reads the last entry
    found: list[tuple[Requirement, set[int]]] = []
    cost = _derivation_costs(table, padded, rows)
    home = np.full(table.size, -1, dtype=np.int64)
    for number, block in enumerate(table.blocks):
        home[block.out.reshape(-1)] = number
    done: set[int] = set()
    for requirement in wanted:
        prices_here = cost[requirement.ids]
        variables: set[int] = set()
        if requirement.every:
            stack = [int(identity) for identity in requirement.ids[prices_here > 0]]
        else:
            stack = [int(requirement.ids[np.argmin(prices_here)])]
        while stack:
            identity = stack.pop()
            if home[identity] < 0 or identity in done:
                continue
            done.add(identity)
            block = table.blocks[home[identity]]
            at = identity - int(block.out.flat[0])
            if isinstance(block, Mix):
                group = at // block.out.shape[1]
                if block.gate.flat[at] != OPEN:
                    variables.add(int(block.gate.flat[at]))
                inputs = block.inputs[group]
                stack.append(int(inputs[np.argmin(cost[inputs])]))
            elif block.kind == "any":
                stack.append(min((int(operand[at]) for operand in block.operands), key=lambda i: float(cost[i])))
            else:
                stack += [int(operand[at]) for operand in block.operands]
        found.append((requirement, variables))
    return found


def _derivation_costs(table: IdTable, prices: Floats, rows: Floats) -> Floats:
    cost = np.full(table.size, np.inf)
    cost[ONE] = 0.0
    for block in table.blocks:
        if isinstance(block, Mix):
            cost[block.out] = prices[block.gate] + rows[block.out] + cost[block.inputs].min(1, keepdims=True)
        elif block.kind == "any":
            cost[block.out] = np.minimum.reduce([cost[operand] for operand in block.operands])
        else:
            cost[block.out] = np.add.reduce([cost[operand] for operand in block.operands])
    return cost
