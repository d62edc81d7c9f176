"""The id table: logic on zeros and ones, expectations on probabilities, from one formula."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from fxprune.channels.ids import ONE, ZERO, IdTable


def residual() -> tuple[IdTable, np.ndarray, np.ndarray, np.ndarray]:
    table = IdTable()
    stem = table.mix(np.full((1, 3), ONE), rows=2, owner="stem")
    conv = table.mix(stem, rows=2, owner="conv")
    table.blocks[0].gate = np.array([[[0, 1]]])
    table.blocks[1].gate = np.array([[[2, 3]]])
    return table, stem[0], conv[0], table.any(stem[0], conv[0])


def test_liveness_is_logic() -> None:
    table, stem, conv, stream = residual()
    for gates in itertools.product((0.0, 1.0), repeat=4):
        alive = table.alive(torch.tensor(gates, dtype=torch.float64))
        a, b, c, d = (bool(g) for g in gates)
        assert alive[stem].bool().tolist() == [a, b]
        assert alive[conv].bool().tolist() == [c and (a or b), d and (a or b)]
        assert alive[stream].bool().tolist() == [a or (c and (a or b)), b or (d and (a or b))]
        assert set(alive.tolist()) <= {0.0, 1.0}


def test_probability_of_an_or_is_exact_for_independent_operands() -> None:
    table = IdTable()
    one = table.mix(np.full((1, 1), ONE), rows=1, owner="a")
    other = table.mix(np.full((1, 1), ONE), rows=1, owner="b")
    table.blocks[0].gate, table.blocks[1].gate = np.array([[[0]]]), np.array([[[1]]])
    either, both = table.any(one[0], other[0]), table.all(one[0], other[0])
    alive = table.alive(torch.tensor([0.3, 0.5], dtype=torch.float64))
    torch.testing.assert_close(alive[either], torch.tensor([1 - 0.7 * 0.5], dtype=torch.float64))
    torch.testing.assert_close(alive[both], torch.tensor([0.15], dtype=torch.float64))


def test_expectations_are_differentiable() -> None:
    table, _, _, stream = residual()
    gates = torch.full((4,), 0.5, dtype=torch.float64, requires_grad=True)

    def cost(p: torch.Tensor) -> torch.Tensor:
        alive = table.alive(p)
        return (alive * table.needed(alive, torch.from_numpy(stream)))[2:].sum()

    assert torch.autograd.gradcheck(cost, (gates,))


def test_nobody_computes_what_nobody_reads() -> None:
    table = IdTable()
    stem = table.mix(np.full((1, 3), ONE), rows=4, owner="stem")
    left = table.mix(stem[:, :2], rows=1, owner="left")
    table.mix(stem[:, 2:], rows=1, owner="right")
    alive = table.alive(torch.ones(0, dtype=torch.float64))
    needed = table.needed(alive, torch.from_numpy(left[0]))
    assert needed[stem[0]].tolist() == [1.0, 1.0, 0.0, 0.0]


def test_a_grouped_convolution_computes_the_same_rows_in_each_group() -> None:
    table = IdTable()
    grouped = table.mix(np.full((3, 2), ONE), rows=4, owner="grouped")
    alive = table.alive(torch.ones(0, dtype=torch.float64))
    needed = table.needed(alive, torch.from_numpy(np.array([grouped[0, 1], grouped[2, 3]])))
    assert needed[grouped].tolist() == [[0, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 1]]


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
