"""Where the nodes of a layer graph go on paper: blocks that hold what shares a module path, and in each of them ranks
from top to bottom, few crossings, straight lines.

A block is opened, so that what it holds stands beside the rest, if a path leaves it and comes back (the graph of blocks
would have a circle), if it holds nearly all of the block around it, or if it holds a single node.

Edges that skip ranks get a slot of their own in each, so that they pass beside the boxes and not through them. All
edges of one source share these slots.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

IN, OUT = "<", ">"  # where edges enter and leave a block; nodes cannot have these names
_LARGEST = 0.7  # the share of a block's nodes that one block inside of it may hold
ModulePath = tuple[str, ...]
Edge = tuple[str, str]
Part = tuple[ModulePath, list[str]]  # several nodes and the path that they share, or a single node


@dataclass
class Block:
    """Nodes and blocks by their keys: a node's is its name, a block's ``/`` and its path."""

    path: str
    members: dict[str, Block | None]  # None: a node
    edges: list[Edge]  # between members, ``IN`` and ``OUT``

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


def block_tree(nodes: Mapping[str, ModulePath], edges: Collection[Edge], path: ModulePath = ()) -> Block:
    """The block of ``path``; ``nodes``: name -> the path of the module that it belongs to.

    >>> nodes = {"x": (), "a": ("s", "0"), "b": ("s", "0"), "c": ("s", "1"), "d": ("s", "1"), "y": ()}
    >>> root = block_tree(nodes, [("x", "a"), ("a", "b"), ("b", "c"), ("c", "d"), ("d", "y"), ("x", "y")])
    >>> list(root.members), root.edges
    (['x', '/s', 'y'], [('x', '/s'), ('/s', 'y'), ('x', 'y')])
    >>> list(root.members["/s"].members), root.members["/s"].edges
    (['/s.0', '/s.1'], [('<', '/s.0'), ('/s.0', '/s.1'), ('/s.1', '>')])
    """
    edges = [(a, b) for a, b in edges if a in nodes or b in nodes]
    members: dict[str, Block | None] = {}
    member_of: dict[str, str] = {}
    for prefix, held in _parts(nodes, edges, path):
        inner = block_tree({name: nodes[name] for name in held}, edges, prefix) if len(held) > 1 else None
        key = inner.key if inner else held[0]
        members[key] = inner
        member_of.update(dict.fromkeys(held, key))
    ends = ((member_of.get(a, IN), member_of.get(b, OUT)) for a, b in edges)
    return Block(".".join(path), members, list(dict.fromkeys((a, b) for a, b in ends if a != b)))


def _parts(nodes: Mapping[str, ModulePath], edges: Collection[Edge], path: ModulePath) -> list[Part]:
    """The parts of a block, none of them in a circle, in the order of the computation."""
    parts = _grouped(nodes, nodes, path)
    while True:
        part_of = {name: number for number, (_, held) in enumerate(parts) for name in held}
        graph = nx.DiGraph()
        graph.add_nodes_from(range(len(parts)))
        inner = ((part_of[a], part_of[b]) for a, b in edges if a in nodes and b in nodes)
        graph.add_edges_from((a, b) for a, b in inner if a != b)
        circles = (circle for circle in nx.strongly_connected_components(graph) if len(circle) > 1)
        bad = set[int]().union(*circles)
        too_large = {number for number, (_, held) in enumerate(parts) if len(held) > _LARGEST * len(nodes)}
        opened = {number for number in bad | too_large if len(parts[number][1]) > 1}
        if not opened:
            return [parts[number] for number in nx.lexicographical_topological_sort(graph)]
        split = [_grouped(nodes, part[1], part[0]) if n in opened else [part] for n, part in enumerate(parts)]
        parts = [part for several in split for part in several]


def _grouped(nodes: Mapping[str, ModulePath], names: Iterable[str], path: ModulePath) -> list[Part]:
    """One step further down the paths, in the order of the nodes; those of ``path`` itself stay single."""
    groups: dict[tuple[ModulePath, str], list[str]] = {}
    for name in names:
        deeper = nodes[name][: len(path) + 1]
        groups.setdefault((deeper, "" if len(deeper) > len(path) else name), []).append(name)
    return [(deeper, held) for (deeper, _), held in groups.items()]


Slot = str | tuple[str, int]  # a node, or the place where the edges of a node pass a rank
Link = tuple[Slot, Slot]
Neighbours = Mapping[Slot, list[Slot]]
Point = tuple[float, float]

BETWEEN_RANKS = 22.0
BETWEEN_NODES = 16.0
PASSAGE = 6.0
SWEEPS = 8


@dataclass(frozen=True)
class Ranks:
    """The order of everything: it does not depend on sizes. ``links`` lead from a rank to the next one."""

    ranks: list[list[Slot]]
    links: list[Link]

    def neighbours(self) -> tuple[Neighbours, Neighbours]:
        """Per slot, if it has links, those above and those below."""
        upwards = [(b, a) for a, b in self.links]
        return nx.to_dict_of_lists(nx.DiGraph(upwards)), nx.to_dict_of_lists(nx.DiGraph(self.links))


@dataclass(frozen=True)
class Segment:
    """One edge, or its part, from one rank to the next; ``arrow`` if it ends at a node."""

    link: Link
    start: Point
    end: Point
    through: float  # length of the straight line that follows below ``end``
    arrow: bool


@dataclass(frozen=True)
class Layout:
    """Centres of the nodes and the lines between them, from (0, 0) to (``width``, ``height``)."""

    centres: dict[str, Point]
    segments: tuple[Segment, ...]
    width: float
    height: float


def ranked(nodes: Iterable[str], edges: Iterable[Edge]) -> Ranks:
    """Which rank, and where in it: the order with the fewest crossings of some sweeps, down and up."""
    graph = nx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    ranks: list[list[Slot]] = [list(generation) for generation in nx.topological_generations(graph)]
    best = Ranks(ranks, _links(graph, ranks))
    up, down = best.neighbours()
    fewest = _crossings(ranks, down)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        near, step = (up, 1) if sweep % 2 == 0 else (down, -1)
        ranks = [list(rank) for rank in ranks]
        position = {slot: float(place) for rank in ranks for place, slot in enumerate(rank)}
        for rank in ranks[::step]:
            rank.sort(key=_wishes(rank, near, position).__getitem__)
            position.update((slot, float(place)) for place, slot in enumerate(rank))
        crossings = _crossings(ranks, down)
        if crossings < fewest:
            best, fewest = Ranks(ranks, best.links), crossings
    return best


def _links(graph: nx.DiGraph, ranks: list[list[Slot]]) -> list[Link]:
    """Edges cut at every rank that they pass; adds the passages to ``ranks``."""
    rank_of = {slot: number for number, rank in enumerate(ranks) for slot in rank}
    links: list[Link] = []
    for node in graph:
        above: dict[int, Slot] = {rank_of[node]: node}
        last = max((rank_of[target] for target in graph.successors(node)), default=0)
        for number in range(rank_of[node] + 1, last):
            above[number] = (node, number)
            ranks[number].append(above[number])
            links.append((above[number - 1], above[number]))
        links += [(above[rank_of[target] - 1], target) for target in graph.successors(node)]
    return links


def _wishes(rank: Iterable[Slot], near: Neighbours, places: Mapping[Slot, float]) -> dict[Slot, float]:
    """Per slot the middle of its neighbours; its own place if it has none."""
    return {
        slot: sum(places[end] for end in near[slot]) / len(near[slot]) if near.get(slot) else places[slot]
        for slot in rank
    }


def _crossings(ranks: list[list[Slot]], down: Neighbours) -> int:
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


def placed(order: Ranks, sizes: Mapping[str, Point]) -> Layout:
    """Where everything goes if the nodes have these sizes (width, height).

    >>> order = ranked("abc", [("a", "b"), ("b", "c"), ("a", "c")])
    >>> layout = placed(order, dict.fromkeys("abc", (40.0, 20.0)))
    >>> [round(y) for _, y in layout.centres.values()], len(layout.segments)
    ([10, 52, 94], 4)
    """
    slots = [slot for rank in order.ranks for slot in rank]
    widths = {slot: PASSAGE if isinstance(slot, tuple) else sizes[slot][0] for slot in slots}
    x = _columns(order, widths)
    left = min((x[slot] - widths[slot] / 2 for slot in slots), default=0.0)
    right = max((x[slot] + widths[slot] / 2 for slot in slots), default=0.0)

    y: dict[Slot, float] = {}
    heights: dict[Slot, float] = {}
    below = 0.0
    for rank in order.ranks:
        height = max(0.0 if isinstance(slot, tuple) else sizes[slot][1] for slot in rank)
        for slot in rank:
            y[slot] = below + height / 2
            heights[slot] = height if isinstance(slot, tuple) else sizes[slot][1]
        below += height + BETWEEN_RANKS
    segments = tuple(
        Segment(
            link=(a, b),
            start=(x[a] - left, y[a] + heights[a] / 2),
            end=(x[b] - left, y[b] - heights[b] / 2),
            through=heights[b] if isinstance(b, tuple) else 0.0,
            arrow=not isinstance(b, tuple),
        )
        for a, b in order.links
    )
    centres = {slot: (x[slot] - left, y[slot]) for slot in slots if not isinstance(slot, tuple)}
    return Layout(centres, segments, right - left, max(below - BETWEEN_RANKS, 0.0))


def _columns(order: Ranks, widths: Mapping[Slot, float]) -> dict[Slot, float]:
    """Every slot as near to the middle of its neighbours as its rank's order allows."""
    up, down = order.neighbours()
    x: dict[Slot, float] = {}
    for rank in order.ranks:
        x.update(_fitted(dict.fromkeys(rank, 0.0), widths))
    for sweep in range(2 * SWEEPS):
        near, step = (up, 1) if sweep % 2 == 0 else (down, -1)
        for rank in order.ranks[::step]:
            x.update(_fitted(_wishes(rank, near, x), widths))
    return x


def _fitted(wishes: Mapping[Slot, float], widths: Mapping[Slot, float]) -> dict[Slot, float]:
    """The places nearest to ``wishes`` (least squares) at which the slots of a rank do not overlap."""
    offsets = [0.0]
    for a, b in pairwise(wishes):
        offsets.append(offsets[-1] + (widths[a] + widths[b]) / 2 + BETWEEN_NODES)
    pools: list[tuple[float, int]] = []  # neighbours that touch: their mean place and their number
    for wish, offset in zip(wishes.values(), offsets, strict=True):
        mean, size = wish - offset, 1
        while pools and pools[-1][0] >= mean:
            other, count = pools.pop()
            mean, size = (mean * size + other * count) / (size + count), size + count
        pools.append((mean, size))
    places = [mean for mean, size in pools for _ in range(size)]
    return {slot: place + offset for slot, place, offset in zip(wishes, places, offsets, strict=True)}
