"""The id table: which ids are new, and which are others."""

from __future__ import annotations

import numpy as np

from fxprune.channels.ids import ONE, ZERO, IdTable


def test_neutral_operands_vanish() -> None:
    table = IdTable()
    ids = table.mix(np.full((1, 1), ONE), rows=3, owner="a")[0]
    assert np.array_equal(table.any(ids, np.array(ZERO)), ids)
    assert np.array_equal(table.all(ids, np.array(ONE)), ids)
    assert np.array_equal(table.any(ids, ids), ids)
    kept = table.any(ids, np.array(ONE))  # always alive, but what it reads must stay known
    assert not np.array_equal(kept, np.full(3, ONE))


def test_equal_channels_at_many_positions_share_ids() -> None:
    table = IdTable()
    a = table.mix(np.full((1, 1), ONE), rows=3, owner="a").reshape(1, 1, 3)
    b = table.mix(np.full((1, 1), ONE), rows=1, owner="b").reshape(1, 1, 1)
    spread = np.broadcast_to(a, (1, 5, 3))
    joined = table.all(spread, np.broadcast_to(b, (1, 5, 1)))
    assert joined.shape == (1, 5, 3)
    assert np.unique(joined).size == 3
