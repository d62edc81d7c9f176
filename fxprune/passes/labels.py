"""Which channels are one and the same position of a stream: those that adds and multiplies join."""

from __future__ import annotations

import numpy as np

from fxprune.ids import OPEN, ZERO, Ids, IdTable, Join, immortal
from fxprune.passes.gates import Layer


def labels_of(table: IdTable, layers: list[Layer]) -> Ids:
    """The same number for all ids that joins and gate variables tie together.

    A join that would tie two gate variables of one layer ties nothing: it sums over channels, multiplies the halves of
    a layer, or spreads a single channel over all.
    """
    label = np.arange(table.size)
    first, owner = _variables(layers)
    for layer in layers:  # a variable may gate several ids: of a group, of several calls
        rows = layer.rows.reshape(-1)
        for call in layer.calls:
            label = _tied(label, call.ids.reshape(-1)[rows != OPEN], first[rows[rows != OPEN] + layer.start])
    for join in table.blocks:
        if not isinstance(join, Join):
            continue
        trial = label
        for operand in join.operands:
            one, other = join.out.reshape(-1), operand.reshape(-1)
            plain = ~immortal(other) & (other != ZERO)
            trial = _tied(trial, one[plain], other[plain])
        if np.unique(owner * table.size + trial[first]).size == first.size:
            label = trial
    return label


def of_variables(layer: Layer, label: Ids) -> Ids:
    """The labels of the layer's gate variables."""
    rows = layer.rows.reshape(-1)
    found = np.zeros(layer.variables, dtype=np.int64)
    found[rows[rows != OPEN]] = label[layer.calls[0].ids.reshape(-1)[rows != OPEN]]
    return found


def connected(layers: list[Layer], label: Ids) -> list[list[Layer]]:
    """Layers that write at least one label in common, directly or through others."""
    parts: list[tuple[set[int], list[Layer]]] = []
    for layer in layers:
        labels = set(of_variables(layer, label).tolist())
        touching = [part for part in parts if part[0] & labels]
        together = [one for part in touching for one in part[1]]
        parts = [part for part in parts if part not in touching]
        parts.append((labels.union(*(part[0] for part in touching)), [*together, layer]))
    return sorted((part[1] for part in parts), key=lambda part: part[0].start)


def _variables(layers: list[Layer]) -> tuple[Ids, Ids]:
    """Per gate variable the first id that it gates, and its layer."""
    first, owner = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for number, layer in enumerate(layers):
        rows = layer.rows.reshape(-1)
        _, place = np.unique(np.where(rows == OPEN, layer.variables, rows), return_index=True)
        first.append(layer.calls[0].ids.reshape(-1)[place[: layer.variables]])
        owner.append(np.full(layer.variables, number))
    return np.concatenate(first), np.concatenate(owner)


def _tied(label: Ids, one: Ids, other: Ids) -> Ids:
    """Pair by pair the same label, the lower one."""
    while not np.array_equal(label[one], label[other]):
        lower = np.minimum(label[one], label[other])
        to = np.arange(label.size)
        np.minimum.at(to, label[one], lower)
        np.minimum.at(to, label[other], lower)
        label = to[label]
    return label
