"""The layer graph as a tree of blocks: whatever shares a module path can be folded into one box.

A block of which an edge leaves that comes back to it through something else would lie in a circle: it is opened, and
what it holds stands beside the rest. So is one that holds nearly all of what it lies in, or a single node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

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
    found: dict[tuple[str, ...] | str, list[str]] = {}
    for name in inside:
        deeper = nodes[name][: len(path) + 1]
        found.setdefault(deeper if len(deeper) > len(path) else name, []).append(name)
    return [(key if isinstance(key, tuple) and len(held) > 1 else None, held) for key, held in found.items()]


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
