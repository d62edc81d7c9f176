from __future__ import annotations

import random
import time
from itertools import combinations

import networkx as nx

from fxprune.report.placement import Layout, placed, ranked

SIZE = (100.0, 30.0)


def _place(edges: list[tuple[str, str]]) -> Layout:
    nodes = list(dict.fromkeys(name for edge in edges for name in edge))
    return placed(ranked(nodes, edges), dict.fromkeys(nodes, SIZE))


def _random_graph(nodes: int, seed: int) -> list[tuple[str, str]]:
    choose = random.Random(seed)
    chain = [(str(n), str(n + 1)) for n in range(nodes - 1)]
    return chain + [(str(a), str(choose.randrange(a + 1, min(a + 12, nodes)))) for a in range(nodes - 1)]


def _assert_apart(placed: Layout) -> None:
    for (_, a), (_, b) in combinations(placed.centres.items(), 2):
        assert abs(a[0] - b[0]) >= SIZE[0] or abs(a[1] - b[1]) >= SIZE[1]


def test_nodes_do_not_overlap_and_stay_inside() -> None:
    for seed in range(5):
        placed = _place(_random_graph(60, seed))
        _assert_apart(placed)
        for x, y in placed.centres.values():
            assert SIZE[0] / 2 - 1e-6 <= x <= placed.width - SIZE[0] / 2 + 1e-6
            assert SIZE[1] / 2 - 1e-6 <= y <= placed.height - SIZE[1] / 2 + 1e-6


def test_every_edge_goes_down() -> None:
    edges = _random_graph(60, 0)
    placed = _place(edges)
    assert all(placed.centres[a][1] < placed.centres[b][1] for a, b in edges)
    assert all(segment.start[1] < segment.end[1] for segment in placed.segments)


def test_every_edge_arrives() -> None:
    edges = _random_graph(60, 1)
    assert sum(segment.arrow for segment in _place(edges).segments) == len(set(edges))


def test_a_skip_connection_passes_beside_the_nodes() -> None:
    placed = _place([("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")])
    ends = [segment.end for segment in placed.segments if not segment.arrow]
    assert len(ends) == 2
    for node in ("b", "c"):
        assert all(abs(x - placed.centres[node][0]) > SIZE[0] / 2 for x, _ in ends)


def test_a_ladder_has_no_crossings() -> None:
    placed = _place([("in", "b1"), ("in", "a1"), ("a1", "a2"), ("b1", "b2"), ("a2", "out"), ("b2", "out")])
    (a1, a2), (b1, b2) = ((placed.centres[f"{n}1"][0], placed.centres[f"{n}2"][0]) for n in "ab")
    assert (a1 < b1) == (a2 < b2)


def test_several_components_and_none() -> None:
    _assert_apart(_place([("a", "b"), ("c", "d")]))
    assert placed(ranked([], []), {}).centres == {}


def test_five_hundred_nodes_take_no_time() -> None:
    started = time.perf_counter()
    placed = _place(_random_graph(500, 0))
    assert len(placed.centres) == 500
    assert time.perf_counter() - started < 20


def test_the_same_graph_is_drawn_the_same_way() -> None:
    edges = _random_graph(40, 2)
    assert _place(edges) == _place(edges)
    assert nx.is_directed_acyclic_graph(nx.DiGraph(edges))
