"""Where the nodes of a layer graph go on paper: blocks that hold what shares a module path, and in each of them ranks
from top to bottom, few crossings, straight lines.

A block of which an edge leaves that comes back to it through something else would lie in a circle: it is opened, and
what it holds stands beside the rest. So is one that holds nearly all of what it lies in, or a single node.

Edges that skip ranks get a slot of their own in each, so that they pass beside the boxes and not through them. All
edges of one source share these slots.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import networkx as nx

IN, OUT = "<", ">"  # where edges enter and leave a block; no names of nodes
_MOST = 0.7  # of what a block holds, in one block inside of it


@dataclass
class Block:
    """Nodes and blocks by their keys: a node's is its name, a block's ``/`` and its path."""

    path: str
    members: dict[str, Block | None] = field(default_factory=dict)  # None: a node
    edges: list[tuple[str, str]] = field(default_factory=list)  # between members, ``IN`` and ``OUT``

    @property
    def key(self) -> str:
        return f"/{self.path}"

    def nodes(self) -> Iterator[str]:
        """All of them, also those of inner blocks."""
        for key, block in self.members.items():
            yield from [key] if block is None else block.nodes()

    def blocks(self) -> Iterator[Block]:
        """Itself and all inner ones, outer ones first."""
        yield self
        for block in self.members.values():
            if block is not None:
                yield from block.blocks()


def block_tree(nodes: Mapping[str, tuple[str, ...]], edges: Collection[tuple[str, str]]) -> Block:
    """``nodes``: name -> the path of the module that it belongs to.

    >>> nodes = {"x": (), "a": ("s", "0"), "b": ("s", "0"), "c": ("s", "1"), "d": ("s", "1"), "y": ()}
    >>> root = block_tree(nodes, [("x", "a"), ("a", "b"), ("b", "c"), ("c", "d"), ("d", "y"), ("x", "y")])
    >>> list(root.members), root.edges
    (['x', '/s', 'y'], [('x', '/s'), ('/s', 'y'), ('x', 'y')])
    >>> list(root.members["/s"].members), root.members["/s"].edges
    (['/s.0', '/s.1'], [('<', '/s.0'), ('/s.0', '/s.1'), ('/s.1', '>')])
    """
    root = _built(nodes, list(nodes), (), edges)
    where: dict[str, list[Block]] = {}  # per node the blocks that hold it, outer ones first
    _locate(root, [], where)
    for source, target in edges:
        _add_edge(where[source], where[target], source, target)
    for block in root.blocks():
        block.edges = list(dict.fromkeys(block.edges))
    return root


def _built(
    nodes: Mapping[str, tuple[str, ...]], inside: list[str], path: tuple[str, ...], edges: Collection[tuple[str, str]]
) -> Block:
    parts = _acyclic(nodes, _groups(nodes, inside, path), len(inside), edges)
    block = Block(".".join(path))
    for prefix, held in parts:
        if prefix is None:
            block.members[held[0]] = None
        else:
            inner = _built(nodes, held, prefix, edges)
            block.members[inner.key] = inner
    return block


Part = tuple[tuple[str, ...] | None, list[str]]  # the path that its nodes share, or None for a single node


def _groups(nodes: Mapping[str, tuple[str, ...]], inside: list[str], path: tuple[str, ...]) -> list[Part]:
    """One step further down the paths, in the order of the nodes."""
    members: dict[tuple[str, ...] | str, list[str]] = {}
    for name in inside:
        deeper = nodes[name][: len(path) + 1]
        members.setdefault(deeper if len(deeper) > len(path) else name, []).append(name)
    return [(key if isinstance(key, tuple) and len(held) > 1 else None, held) for key, held in members.items()]


def _acyclic(
    nodes: Mapping[str, tuple[str, ...]], parts: list[Part], size: int, edges: Collection[tuple[str, str]]
) -> list[Part]:
    while True:
        graph = nx.DiGraph()
        graph.add_nodes_from(range(len(parts)))
        at = {name: number for number, (_, held) in enumerate(parts) for name in held}
        graph.add_edges_from((at[a], at[b]) for a, b in edges if a in at and b in at and at[a] != at[b])
        bad = {n for circle in nx.strongly_connected_components(graph) if len(circle) > 1 for n in circle}
        opened = [
            prefix is not None and (number in bad or len(held) > _MOST * size)
            for number, (prefix, held) in enumerate(parts)
        ]
        if not any(opened):
            order = nx.lexicographical_topological_sort(graph)  # as the computation goes
            return [parts[number] for number in order]
        fresh: list[Part] = []
        for (prefix, held), open_it in zip(parts, opened, strict=True):
            fresh += _groups(nodes, held, prefix) if open_it and prefix is not None else [(prefix, held)]
        parts = fresh


def _locate(block: Block, above: list[Block], where: dict[str, list[Block]]) -> None:
    for key, inner in block.members.items():
        if inner is None:
            where[key] = [*above, block]
        else:
            _locate(inner, [*above, block], where)


def _add_edge(sources: list[Block], targets: list[Block], source: str, target: str) -> None:
    """Through the border of every block that holds one end only."""
    shared = sum(1 for a, b in zip(sources, targets, strict=False) if a is b)
    ways_out = [block.key for block in sources[shared:]] + [source]
    ways_in = [block.key for block in targets[shared:]] + [target]
    sources[shared - 1].edges.append((ways_out[0], ways_in[0]))
    for block, key in zip(sources[shared:], ways_out[1:], strict=True):
        block.edges.append((key, OUT))
    for block, key in zip(targets[shared:], ways_in[1:], strict=True):
        block.edges.append((IN, key))


Slot = str | tuple[str, int]  # a node, or the place where the edges of a node pass a rank
Point = tuple[float, float]

BETWEEN_RANKS = 22.0
BETWEEN_NODES = 16.0
PASSAGE = 6.0
SWEEPS = 8


@dataclass(frozen=True)
class Ranks:
    """The order of everything: it does not depend on sizes. ``links`` lead from a rank to the next one."""

    ranks: list[list[Slot]]
    links: list[tuple[Slot, Slot]]


@dataclass(frozen=True)
class Segment:
    """One edge, or its part, from one rank to the next; ``arrow`` if it ends at a node."""

    link: tuple[Slot, Slot]
    start: Point
    end: Point
    through: float  # how far it goes straight on below ``end``
    arrow: bool


@dataclass(frozen=True)
class Layout:
    """Centres of the nodes and the lines between them, from (0, 0) to (``width``, ``height``)."""

    centres: dict[str, Point]
    segments: tuple[Segment, ...]
    width: float
    height: float


def layered(nodes: Iterable[str], edges: Iterable[tuple[str, str]], sizes: Mapping[str, Point]) -> Layout:
    """Place nodes of the given sizes (width, height).

    >>> layout = layered("abc", [("a", "b"), ("b", "c"), ("a", "c")], dict.fromkeys("abc", (40.0, 20.0)))
    >>> [round(y) for _, y in layout.centres.values()], len(layout.segments)
    ([10, 52, 94], 4)
    """
    return placed(ranked(nodes, edges), sizes)


def ranked(nodes: Iterable[str], edges: Iterable[tuple[str, str]]) -> Ranks:
    """Which rank, and where in it."""
    graph = nx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    ranks: list[list[Slot]] = [list(generation) for generation in nx.topological_generations(graph)]
    links = _links(graph, ranks)
    return Ranks(_ordered(ranks, links), links)


def placed(order: Ranks, sizes: Mapping[str, Point]) -> Layout:
    """Where everything goes for these sizes."""
    ranks, links = order.ranks, order.links
    x = _columns(ranks, links, sizes)
    left = min((x[s] - _size(s, sizes)[0] / 2 for rank in ranks for s in rank), default=0.0)
    right = max((x[s] + _size(s, sizes)[0] / 2 for rank in ranks for s in rank), default=0.0)

    y: dict[Slot, float] = {}
    heights: dict[Slot, float] = {}
    below = 0.0
    for rank in ranks:
        height = max(_size(slot, sizes)[1] for slot in rank)
        for slot in rank:
            y[slot] = below + height / 2
            heights[slot] = height if isinstance(slot, tuple) else _size(slot, sizes)[1]
        below += height + BETWEEN_RANKS
    segments = tuple(
        Segment(
            link=(a, b),
            start=(x[a] - left, y[a] + heights[a] / 2),
            end=(x[b] - left, y[b] - heights[b] / 2),
            through=heights[b] if isinstance(b, tuple) else 0.0,
            arrow=not isinstance(b, tuple),
        )
        for a, b in links
    )
    centres = {slot: (x[slot] - left, y[slot]) for rank in ranks for slot in rank if not isinstance(slot, tuple)}
    return Layout(centres, segments, right - left, max(below - BETWEEN_RANKS, 0.0))


def _size(slot: Slot, sizes: Mapping[str, Point]) -> Point:
    return (PASSAGE, 0.0) if isinstance(slot, tuple) else sizes[slot]


def _links(graph: nx.DiGraph, ranks: list[list[Slot]]) -> list[tuple[Slot, Slot]]:
    """Edges cut at every rank that they pass; adds the passages to ``ranks``."""
    rank_of = {slot: number for number, rank in enumerate(ranks) for slot in rank}
    links: list[tuple[Slot, Slot]] = []
    for node in graph:
        above: dict[int, Slot] = {rank_of[node]: node}
        last = max((rank_of[target] for target in graph.successors(node)), default=0)
        for number in range(rank_of[node] + 1, last):
            above[number] = (node, number)
            ranks[number].append(above[number])
            links.append((above[number - 1], above[number]))
        links += [(above[rank_of[target] - 1], target) for target in graph.successors(node)]
    return links


def _neighbours(links: list[tuple[Slot, Slot]]) -> tuple[dict[Slot, list[Slot]], dict[Slot, list[Slot]]]:
    up: dict[Slot, list[Slot]] = {}
    down: dict[Slot, list[Slot]] = {}
    for a, b in links:
        down.setdefault(a, []).append(b)
        up.setdefault(b, []).append(a)
    return up, down


def _ordered(ranks: list[list[Slot]], links: list[tuple[Slot, Slot]]) -> list[list[Slot]]:
    """Barycentre sweeps, down and up; the order with the fewest crossings wins."""
    up, down = _neighbours(links)
    best, fewest = ranks, _crossings(ranks, down)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        downwards = sweep % 2 == 0
        near = up if downwards else down
        ranks = [list(rank) for rank in ranks]
        position = {slot: float(place) for rank in ranks for place, slot in enumerate(rank)}
        for rank in ranks if downwards else reversed(ranks):
            wish = {slot: _mean([position[n] for n in near.get(slot, ())], position[slot]) for slot in rank}
            rank.sort(key=wish.__getitem__)
            position.update((slot, float(place)) for place, slot in enumerate(rank))
        crossings = _crossings(ranks, down)
        if crossings < fewest:
            best, fewest = ranks, crossings
    return best


def _crossings(ranks: list[list[Slot]], down: dict[Slot, list[Slot]]) -> int:
    position = {slot: place for rank in ranks for place, slot in enumerate(rank)}
    count = 0
    for rank in ranks:
        ends: list[int] = []
        for slot in rank:
            targets = [position[target] for target in down.get(slot, ())]
            count += sum(len(ends) - bisect_right(ends, target) for target in targets)
            for target in targets:
                insort(ends, target)
    return count


def _columns(ranks: list[list[Slot]], links: list[tuple[Slot, Slot]], sizes: Mapping[str, Point]) -> dict[Slot, float]:
    """Every slot as near to the middle of its neighbours as its rank's order allows."""
    up, down = _neighbours(links)
    x: dict[Slot, float] = {}
    for rank in ranks:
        for slot, place in zip(rank, _fitted([0.0] * len(rank), rank, sizes), strict=True):
            x[slot] = place
    for sweep in range(2 * SWEEPS):
        near = up if sweep % 2 == 0 else down
        for rank in ranks if sweep % 2 == 0 else reversed(ranks):
            wishes = [_mean([x[n] for n in near.get(slot, ())], x[slot]) for slot in rank]
            x.update(zip(rank, _fitted(wishes, rank, sizes), strict=True))
    return x


def _fitted(wishes: list[float], rank: list[Slot], sizes: Mapping[str, Point]) -> list[float]:
    """The places nearest to ``wishes`` (least squares) at which the slots of a rank do not overlap."""
    offsets = [0.0]
    for a, b in pairwise(rank):
        offsets.append(offsets[-1] + (_size(a, sizes)[0] + _size(b, sizes)[0]) / 2 + BETWEEN_NODES)
    pools: list[tuple[float, int]] = []  # mean and size of neighbours that touch
    for wish, offset in zip(wishes, offsets, strict=True):
        mean, size = wish - offset, 1
        while pools and pools[-1][0] >= mean:
            other, count = pools.pop()
            mean, size = (mean * size + other * count) / (size + count), size + count
        pools.append((mean, size))
    places = [mean for mean, size in pools for _ in range(size)]
    return [place + offset for place, offset in zip(places, offsets, strict=True)]


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
