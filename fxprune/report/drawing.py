"""The network, drawn: where every node, block and edge goes, and what is written into it; ``graph.svg.j2`` has the
markup, for the page and for a file.

On the page blocks can be opened and closed. The page is written with the places at its start; when a block is opened
or closed, ``page.js`` places everything again by the rules of ``placement.placed``, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from fxprune.report import placement
from fxprune.report.facts import KINDS, MARKS, Fact, Facts
from fxprune.report.placement import IN, OUT, Block, Point, Segment, placed, ranked
from fxprune.report.text import clean, number

MANY = 40  # boxes at first: if there were more, blocks are closed
HEIGHTS = {"conv": 42.0, "add": 32.0, "mul": 32.0, "cat": 32.0, "linear": 28.0, "input": 24.0, "output": 24.0}
CLOSED = 46.0
_CHARACTER = 6.7  # width of one, in the 11 px monospace font
_NARROW, _WIDE = 150.0, 250.0
_ICONS = {
    "guarded": "M4 0L8 1.4V4.4C8 6.8 6 8.4 4 9.2C2 8.4 0 6.8 0 4.4V1.4Z",
    "frozen": "M0 4H8V9.4H0ZM1.8 4V2.4A2.2 2.2 0 0 1 6.2 2.4V4H5V2.6A1 1 0 0 0 3 2.6V4Z",
}


class Graph:
    """With ``bars``, for a page: boxes are equally wide, names are cut, blocks can be folded, and bars show channels.
    Without, for a file: boxes are as wide as their texts, nothing is folded, and numbers stand for the bars."""

    padding, header, margin = 14.0, 30.0, 16.0

    def __init__(self, facts: Facts, *, bars: bool = True) -> None:
        self.facts, self.bars = facts, bars
        flat = Block("", dict.fromkeys(facts.seen.nodes), list(dict.fromkeys(facts.seen.edges)))
        self.root: Block = facts.tree if bars else flat
        self.order = {block.key: ranked(_items(block), block.edges) for block in self.root.blocks()}
        self.opened = opened_first(self.root)
        self.names = {key: self._name(key, block) for block in self.root.blocks() for key in block.members}
        self.wide = min(max([_NARROW, *map(self._needed, self.names)]), _WIDE)
        self.sizes: dict[str, Point] = {IN: (0.0, 0.0), OUT: (0.0, 0.0)}
        self.ports: dict[str, Point] = {}  # how far from the middle edges enter and leave
        self.layouts: dict[str, placement.Layout] = {}
        for block in reversed(list(self.root.blocks())):  # inner ones first
            self._measure(block)
        self.width, self.height = (length + 2 * self.margin for length in self.sizes[self.root.key])

    def legend(self) -> list[tuple[str, str]]:
        """The kinds of nodes in the drawing, and what they mean."""
        used = {fact.classes for fact in self.facts.nodes.values()}
        known = [(f"{kind} {mark}".strip(), MARKS.get(mark, KINDS[kind])) for kind in KINDS for mark in ("", *MARKS)]
        return [(kind, told) for kind, told in known if kind in used]

    def plan(self) -> dict[str, Any]:
        """For the script: sizes, and per block its slots (a key, or null where an edge passes), ranks and links."""
        blocks = {}
        for block in self.root.blocks():
            order = self.order[block.key]
            slots = [slot for rank in order.ranks for slot in rank]
            at = {slot: position for position, slot in enumerate(slots)}
            blocks[clean(block.key)] = {
                "slots": [None if isinstance(slot, tuple) else clean(slot) for slot in slots],
                "ranks": [[at[slot] for slot in rank] for rank in order.ranks],
                "links": [[at[a], at[b]] for a, b in order.links],
            }
        constants = {"gap": placement.BETWEEN_RANKS, "between": placement.BETWEEN_NODES, "passage": placement.PASSAGE,
                     "sweeps": placement.SWEEPS, "padding": self.padding, "header": self.header, "margin": self.margin,
                     "width": self.wide, "closed": CLOSED}  # fmt: skip
        heights = {clean(name): HEIGHTS[fact.kind] for name, fact in self.facts.nodes.items()}
        return {"root": self.root.key, **constants, "heights": heights, "blocks": blocks, "ports": [IN, OUT]}

    # ------------------------------------------------------------ placing

    def _measure(self, block: Block) -> None:
        """The size of a block as it stands; those of the blocks inside are known."""
        for key, inner in block.members.items():
            if inner is None:
                wide = self.wide if self.bars else self._needed(key)
                self.sizes[key] = wide, HEIGHTS[self.facts.nodes[key].kind]
            elif key not in self.opened:
                self.sizes[key] = self.wide, CLOSED
        laid = self.layouts[block.key] = placed(self.order[block.key], self.sizes)
        beside, above = (0.0, 0.0) if block is self.root else (2 * self.padding, self.header)
        self.sizes[block.key] = max(laid.width, self.wide) + beside, laid.height + above
        middle = (laid.width / 2, 0.0)
        entry, leave = (laid.centres.get(port, middle)[0] - laid.width / 2 for port in (IN, OUT))
        self.ports[block.key] = entry, leave

    def place(self, outer: Block, key: str) -> tuple[float, float, float, float]:
        """The upper left corner of what lies in ``outer``, width and height."""
        x, y = self.layouts[outer.key].centres[key]
        width, height = self.sizes[key]
        return x - width / 2 + self._shift(outer), y - height / 2, width, height

    def edges(self, block: Block) -> Iterator[tuple[str, bool, bool]]:
        """Their paths; whether no living channel passes; whether there is an arrow at the end."""
        for segment in self.layouts[block.key].segments:
            source, target = (slot if isinstance(slot, str) else slot[0] for slot in segment.link)
            dead = self.facts.is_dead(source) or (segment.arrow and self.facts.is_dead(target))
            yield self._path(segment, self._shift(block)), dead, segment.arrow and target not in (IN, OUT)

    def _shift(self, block: Block) -> float:
        wide = self.sizes[block.key][0] - (0.0 if block is self.root else 2 * self.padding)
        return (wide - self.layouts[block.key].width) / 2

    def _path(self, segment: Segment, shift: float) -> str:
        (x, y), (to_x, to_y) = segment.start, segment.end
        source, target = segment.link
        x += shift + (self._port(source)[1] if isinstance(source, str) else 0.0)
        to_x += shift + (self._port(target)[0] if isinstance(target, str) else 0.0)
        middle = (y + to_y) / 2
        straight = f"V{number(to_y + segment.through)}" if segment.through else ""
        numbers = " ".join(map(number, (x, middle, to_x, middle, to_x, to_y)))
        return f"M{number(x)} {number(y)}C{numbers}{straight}"

    def _port(self, key: str) -> Point:
        return self.ports[key] if key in self.opened else (0.0, 0.0)

    # ------------------------------------------------------------ what is written

    def fact(self, key: str) -> Fact:
        return self.facts.nodes.get(key) or self.facts.blocks[key]

    def name(self, key: str) -> str:
        """The name, cut to the room that there is."""
        fact = self.fact(key)
        room = int((self.wide - self._around(fact)) / _CHARACTER + 1e-6) - len(fact.count) - 1
        return _short(self.names[key], 20 if fact.kind in ("input", "output") else room) if self.bars else fact.name

    def inset(self, fact: Fact) -> float:
        """Pills are round at their ends."""
        return 10.0 if fact.kind == "conv" else 16.0

    def _around(self, fact: Fact) -> float:
        """The part of the width where no text can be."""
        return (35.0 if fact.kind == "block" else 2 * self.inset(fact)) + (16.0 if fact.marks else 0.0)

    def icon(self, fact: Fact) -> tuple[str, float]:
        """The path of its icon (empty: it has none), and where the icon begins."""
        at = self.wide - self.inset(fact) - len(fact.count) * _CHARACTER - 14
        return _ICONS.get(next(iter(fact.marks), ""), ""), at

    def cells(self, fact: Fact) -> tuple[float, float, float, float, str]:
        """The place of its bar, and the path of the channels in it that live."""
        y, height = (25.0, 10.0) if fact.kind == "conv" else (23.0, 4.0)
        place = self.inset(fact), y, self.wide - 2 * self.inset(fact), height
        return *place, _cells(*place, fact.mask)

    def _name(self, key: str, outer: Block) -> str:
        """Inside a block, a layer's name does not repeat the block's."""
        fact = self.fact(key)
        inside = fact.kind in ("conv", "linear") and outer.path
        return fact.name.removeprefix(f"{outer.path}.") if inside else fact.name

    def _needed(self, key: str) -> float:
        fact = self.fact(key)
        if not self.bars:
            return max(len(fact.name), len(fact.costs)) * _CHARACTER + 2 * self.inset(fact)
        return (len(self.names[key]) + len(fact.count) + 1) * _CHARACTER + self._around(fact)


def opened_first(root: Block, most: int = MANY) -> set[str]:
    """The blocks that are open at first: whole levels, from outside, as long as there are few boxes."""
    opened, level = {root.key}, [root]
    shown = len(root.members)
    while True:
        level = [inner for block in level for inner in block.members.values() if inner is not None]
        shown += sum(len(block.members) - 1 for block in level)
        if not level or shown > most:
            return opened
        opened |= {block.key for block in level}


def _items(block: Block) -> list[str]:
    used = {end for edge in block.edges for end in edge}
    return [*([IN] if IN in used else []), *block.members, *([OUT] if OUT in used else [])]


def _short(name: str, most: int) -> str:
    """The end of a name, from a dot on if one is near: names differ at their ends.

    >>> _short("conv1", 12), _short("layer1.0.block.conv1", 12), _short("a_rather_long_name.conv", 12)
    ('conv1', '…block.conv1', '…g_name.conv')
    """
    if len(name) <= most:
        return name
    end = name[len(name) - max(most, 2) + 1 :]
    first, dot, rest = end.partition(".")
    return f"…{rest}" if dot and len(first) < len(end) / 3 and rest else f"…{end}"


def _cells(x: float, y: float, width: float, height: float, mask: str) -> str:
    """A cell per living channel; where there is no room for cells, columns as high as the share that lives."""
    most = min(len(mask), int(width))
    apart = 1.0 if width / max(len(mask), 1) >= 3.5 else 0.0
    ends = [len(mask) * n // most for n in range(most + 1)] if most else [0]
    shares = [mask.count("1", a, b) / (b - a) for a, b in pairwise(ends)]
    path, start = [], 0
    for n in range(1, most + 1):
        if n < most and not apart and shares[n] == shares[start]:
            continue
        if shares[start]:
            left, wide, high = x + width * start / most, width * (n - start) / most - apart, height * shares[start]
            path.append(f"M{number(left)} {number(y + height)}v{number(-high)}h{number(wide)}v{number(high)}z")
        start = n
    return "".join(path)
