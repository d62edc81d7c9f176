"""The expectation: logic on zeros and ones; on probabilities what autograd records of it block by block."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from fxprune.channels.ids import ONE, IdTable
from fxprune.cost.expectation import Expectation, Present
from tests.cost import oracle
from tests.exactness import prepared
from tests.models import ZOO

METRICS = ("volume", "flops", "params")
TOLERANCE = 1e-12  # of the largest number


def residual() -> tuple[IdTable, np.ndarray, np.ndarray, np.ndarray]:
    table = IdTable()
    stem = table.mix(np.full((1, 3), ONE), rows=2, owner="stem")
    conv = table.mix(stem, rows=2, owner="conv")
    table.blocks[0].gate = np.array([[[0, 1]]])
    table.blocks[1].gate = np.array([[[2, 3]]])
    return table, stem[0], conv[0], table.any(stem[0], conv[0])


def alive(table: IdTable, *gates: float) -> np.ndarray:
    return Expectation(table, np.array([ONE])).tape(np.array(gates)).alive


def needed(table: IdTable, roots: np.ndarray) -> np.ndarray:
    return 1 - Expectation(table, roots).tape(np.zeros(0)).spare


def test_liveness_is_logic() -> None:
    table, stem, conv, stream = residual()
    for gates in itertools.product((0.0, 1.0), repeat=4):
        found = alive(table, *gates)
        a, b, c, d = (bool(g) for g in gates)
        assert found[stem].tolist() == [a, b]
        assert found[conv].tolist() == [c and (a or b), d and (a or b)]
        assert found[stream].tolist() == [a or (c and (a or b)), b or (d and (a or b))]
        assert set(found.tolist()) <= {0.0, 1.0}


def test_probability_of_an_or_is_exact_for_independent_operands() -> None:
    table = IdTable()
    one = table.mix(np.full((1, 1), ONE), rows=1, owner="a")
    other = table.mix(np.full((1, 1), ONE), rows=1, owner="b")
    table.blocks[0].gate, table.blocks[1].gate = np.array([[[0]]]), np.array([[[1]]])
    either, both = table.any(one[0], other[0]), table.all(one[0], other[0])
    found = alive(table, 0.3, 0.5)
    assert found[either] == pytest.approx(1 - 0.7 * 0.5)
    assert found[both] == pytest.approx(0.15)


def test_nobody_computes_what_nobody_reads() -> None:
    table = IdTable()
    stem = table.mix(np.full((1, 3), ONE), rows=4, owner="stem")
    left = table.mix(stem[:, :2], rows=1, owner="left")
    table.mix(stem[:, 2:], rows=1, owner="right")
    assert needed(table, left[0])[stem[0]].tolist() == [1.0, 1.0, 0.0, 0.0]


def test_a_grouped_convolution_computes_the_same_rows_in_each_group() -> None:
    table = IdTable()
    grouped = table.mix(np.full((3, 2), ONE), rows=4, owner="grouped")
    found = needed(table, np.array([grouped[0, 1], grouped[2, 3]]))
    assert found[grouped].tolist() == [[0, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 1]]


def chances(count: int, seed: int) -> list[np.ndarray]:
    """Of open gates: any, some of them certain, all of them certain, all the same."""
    generator = np.random.default_rng(seed)
    some = generator.random(count)
    certain = some.copy()
    certain[generator.random(count) < 0.3] = 0.0
    certain[generator.random(count) < 0.3] = 1.0
    return [some, certain, (some < 0.5).astype(float), np.zeros(count), np.ones(count), np.full(count, 0.98)]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    size = float(expected.detach().abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE * size)


@pytest.mark.parametrize("name", ZOO)
def test_it_is_what_autograd_finds_block_by_block(name: str) -> None:
    analysis = prepared(name)[1].analysis
    for seed, p in enumerate(chances(analysis.variables, 0)):
        gates, others = (torch.from_numpy(p.copy()).requires_grad_() for _ in range(2))
        found, expected = analysis.costs.expected(gates), oracle.expected(analysis, others)
        weights = torch.from_numpy(np.random.default_rng(seed).random(analysis.channels.table.size))
        present = analysis.costs.physical(gates)
        roots = torch.from_numpy(analysis.costs.expectation.roots)
        slow = oracle.physical(analysis.channels.table, roots, others)
        pairs = [(found[metric], expected[metric]) for metric in METRICS]
        for fast, oracles in [*pairs, ((present * weights).sum(), (slow * weights).sum())]:
            close(fast, oracles)
            (slope,) = torch.autograd.grad(fast, gates, retain_graph=True)
            (by_oracle,) = torch.autograd.grad(oracles, others, retain_graph=True)
            close(slope, by_oracle)
        for metric, slope in zip(METRICS, analysis.costs.slopes(gates, METRICS), strict=True):
            close(slope, torch.autograd.grad(found[metric], gates, retain_graph=True)[0])


def made_of_everything() -> tuple[IdTable, np.ndarray]:
    """Shapes of blocks that nets of the zoo have only now and then: ids that repeat, groups, several gates, sizes."""
    table = IdTable()
    stem = table.mix(np.full((1, 3), ONE), rows=6, owner="stem")[0]
    table.blocks[-1].gate = np.arange(6).reshape(1, 1, 6)
    twice = table.mix(np.concatenate([stem[:4], stem[:3]])[None], rows=4, owner="twice")[0]
    table.blocks[-1].gate = np.stack([np.arange(6, 10), [10, 10, 11, -1]]).reshape(2, 1, 4)
    grouped = table.mix(np.stack([twice[:3], twice[1:]]), rows=3, owner="grouped")
    table.blocks[-1].gate = np.array([12, 13, 14, 12, 13, 14]).reshape(1, 2, 3)
    scaled = table.all(grouped.reshape(-1), np.repeat(stem[:2], 3), np.roll(stem, 1))
    stream = table.any(scaled, stem, grouped.reshape(-1))
    size = table.size_of(stream[2:], owner="size")
    last = table.mix(np.concatenate([stream[:3], size])[None], rows=2, owner="last")[0]
    return table, last


@pytest.mark.parametrize("case", range(6))
def test_every_kind_of_block(case: int) -> None:
    table, roots = made_of_everything()
    p, weights = chances(15, 1)[case], torch.from_numpy(np.random.default_rng(2).random(table.size))
    gates, others = (torch.from_numpy(p.copy()).requires_grad_() for _ in range(2))
    present = Present.apply(gates, Expectation(table, roots))
    slow = oracle.physical(table, torch.from_numpy(roots), others)
    close(present, slow)
    (slope,) = torch.autograd.grad((present * weights).sum(), gates)
    (by_oracle,) = torch.autograd.grad((slow * weights).sum(), others)
    close(slope, by_oracle)
    if p.min() > 0 and p.max() < 1:
        assert torch.autograd.gradcheck(lambda g: Present.apply(g, Expectation(table, roots)), (gates,))
