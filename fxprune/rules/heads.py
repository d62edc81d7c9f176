"""What products of attention have in common, however they are written: heads along one axis, channels along another."""

from __future__ import annotations

import numpy as np

from fxprune.channels import Heads, Role
from fxprune.channels.ids import Ids, immortal
from fxprune.rules.operands import Grid, Slim, even_columns
from fxprune.rules.registry import Op


def scores_of_heads(op: Op, queries: Ids, keys: Ids) -> None:
    """Note ids (.., heads, .., channels) of queries and of the keys that they meet."""
    one, other = _by_heads(queries), _by_heads(keys)
    if one is not None and other is not None and not bool(immortal(one).any() or immortal(other).any()):
        op.notes.heads += [Heads(Role.QUERIES, one, other), Heads(Role.KEYS, other)]


def values_of_heads(op: Op, values: Ids, results: Ids) -> None:
    """Note ids (.., heads, .., channels) of values, and of what becomes of them."""
    one, other = _by_heads(values), _by_heads(results)
    if one is not None and other is not None and not bool(immortal(one).any()):
        op.notes.heads += [Heads(Role.VALUES, one), Heads(Role.RESULTS, other)]


def _by_heads(ids: Ids) -> Ids | None:
    """As heads x channels; None if there are no heads."""
    axes = [axis for axis, size in enumerate(ids.shape) if size > 1]
    if len(axes) != 2 or axes[1] != ids.ndim - 1:
        return None
    return np.ascontiguousarray(ids).reshape(ids.shape[axes[0]], ids.shape[axes[1]])


def meeting(slim: Slim, queries: Ids, keys: Ids) -> Grid | None:
    """The heads, and the channels of each, in which both are there; None if there are no heads, or nothing is."""
    queries, keys = np.broadcast_arrays(queries, keys)
    axes = [axis for axis, size in enumerate(queries.shape) if size > 1]
    if len(axes) != 2 or axes[1] != queries.ndim - 1 or not bool(slim.of_heads[np.stack([queries, keys])].all()):
        return None
    met = (slim.present[queries] & slim.present[keys]).reshape(queries.shape[axes[0]], -1)
    heads = np.flatnonzero(met.any(1))
    return Grid(axes[0], heads, axes[1], even_columns(met[heads])) if heads.size else None
