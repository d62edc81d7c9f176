"""The network as inline SVG: every convolution with its living and dead channels, every join with what it became.

Blocks can be opened and closed. What is written here is where everything goes at first; ``page.js`` places it anew by
the same rules (``layout.placed``), in the order that was found here, when a block is opened.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from fxprune.report import layout
from fxprune.report.blocks import IN, OUT, Block
from fxprune.report.facts import Fact, Facts, ReportData
from fxprune.report.layout import Segment, placed, ranked
from fxprune.report.markup import Element, add, clean, number

MANY = 40  # boxes to begin with: what is more is folded into blocks
GAP = 22.0
PADDING, HEADER = 14.0, 30.0
HEIGHTS = {"conv": 42.0, "add": 32.0, "mul": 32.0, "cat": 32.0, "linear": 28.0, "input": 24.0, "output": 24.0}
CLOSED = 46.0
MARGIN = 16.0
_CHARACTER = 6.7  # width of one, in the 11 px monospace font
_NARROW, _WIDE = 150.0, 250.0
_CHEVRON = "M1 0L5 4L1 8"
_SHIELD = "M4 0L8 1.4V4.4C8 6.8 6 8.4 4 9.2C2 8.4 0 6.8 0 4.4V1.4Z"
_LOCK = "M0 4H8V9.4H0ZM1.8 4V2.4A2.2 2.2 0 0 1 6.2 2.4V4H5V2.6A1 1 0 0 0 3 2.6V4Z"


class Graph:
    """Draws the blocks of one page."""

    def __init__(self, data: ReportData) -> None:
        self.facts = Facts(data)
        self.root: Block = self.facts.tree
        self.order = {block.key: ranked(_items(block), block.edges) for block in self.root.blocks()}
        self.opened = opened_first(self.root)
        self.names = {key: self._name(key, block) for block in self.root.blocks() for key in block.members}
        self.width = min(max([_NARROW, *map(self._needed, self.names)]), _WIDE)
        self.sizes: dict[str, tuple[float, float]] = {}
        self.ports: dict[str, tuple[float, float]] = {}  # where edges enter and leave, from the middle
        self.layouts: dict[str, layout.Layout] = {}
        self._measure(self.root)

    def write(self, parent: Element) -> None:
        """The drawing, and what the script needs to place it anew."""
        width, height = self.sizes[self.root.key]
        width, height = width + 2 * MARGIN, height + 2 * MARGIN
        view = f"0 0 {number(width)} {number(height)}"
        svg = add(parent, "svg", id="graph", width=width, height=height, viewBox=view, role="group")
        svg.set("aria-label", "The network, from its input at the top to its output at the bottom")
        defs = add(svg, "defs")
        marker = add(defs, "marker", id="arrow", viewBox="0 0 8 8", refX=7, refY=4, markerWidth=6, markerHeight=6,
                     orient="auto")  # fmt: skip
        add(marker, "path", d="M0 0.8L7.4 4L0 7.2z")
        top = add(svg, "g", class_="body", data_body=self.root.key, transform=f"translate({MARGIN:.0f} {MARGIN:.0f})")
        self._body(top, self.root)
        script = add(parent, "script", type="application/json", id="graph-data")
        script.text = json.dumps(self.plan(), separators=(",", ":")).replace("<", "\\u003c")

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
        constants = {"gap": GAP, "between": layout.BETWEEN_NODES, "passage": layout.PASSAGE, "sweeps": layout.SWEEPS,
                     "padding": PADDING, "header": HEADER, "margin": MARGIN, "width": self.width,
                     "closed": CLOSED}  # fmt: skip
        heights = {clean(name): HEIGHTS[fact.kind] for name, fact in self.facts.nodes.items()}
        return {"root": self.root.key, **constants, "heights": heights, "blocks": blocks, "ports": [IN, OUT]}

    # ------------------------------------------------------------ placing

    def _measure(self, block: Block) -> None:
        """The size of a block as it stands, after those of the blocks inside."""
        sizes: dict[str, tuple[float, float]] = {IN: (0.0, 0.0), OUT: (0.0, 0.0)}
        for key, inner in block.members.items():
            if inner is None:
                sizes[key] = self.width, HEIGHTS[self.facts.nodes[key].kind]
            else:
                self._measure(inner)
                sizes[key] = self.sizes[key] if key in self.opened else (self.width, CLOSED)
        found = self.layouts[block.key] = placed(self.order[block.key], sizes, GAP)
        self.sizes.update((key, size) for key, size in sizes.items() if key not in (IN, OUT))
        beside, above = (0.0, 0.0) if block is self.root else (2 * PADDING, HEADER)
        wide = max(found.width, self.width)
        self.sizes[block.key] = wide + beside, found.height + above
        shift = (wide - found.width) / 2 - wide / 2
        ends = [found.centres[port][0] + shift if port in found.centres else 0.0 for port in (IN, OUT)]
        self.ports[block.key] = ends[0], ends[1]

    def _body(self, parent: Element, block: Block) -> None:
        found = self.layouts[block.key]
        wide = self.sizes[block.key][0] - (0.0 if block is self.root else 2 * PADDING)
        shift = (wide - found.width) / 2
        edges = add(parent, "g", class_="edges", aria_hidden="true")
        for segment in found.segments:
            source = _name(segment.link[0])
            fade = self.facts.is_dead(source) or (segment.arrow and self.facts.is_dead(_name(segment.link[1])))
            shown = segment.arrow and segment.link[1] not in (IN, OUT)
            add(edges, "path", class_="edge dead" if fade else "edge", d=self._path(segment, shift),
                marker_end="url(#arrow)" if shown else None)  # fmt: skip
        for key, inner in block.members.items():
            x, y = found.centres[key]
            width, height = self.sizes[key] if inner is None or key in self.opened else (self.width, CLOSED)
            at = f"translate({number(x - width / 2 + shift)} {number(y - height / 2)})"
            if inner is None:
                self._node(add(parent, "g", transform=at), key)
            else:
                self._block(add(parent, "g", transform=at), inner, (width, height))

    def _path(self, segment: Segment, shift: float) -> str:
        (x, y), (to_x, to_y) = segment.start, segment.end
        source, target = segment.link
        x += shift + (self._port(source)[1] if isinstance(source, str) else 0.0)
        to_x += shift + (self._port(target)[0] if isinstance(target, str) else 0.0)
        middle = (y + to_y) / 2
        straight = f"V{number(to_y + segment.through)}" if segment.through else ""
        numbers = " ".join(map(number, (x, middle, to_x, middle, to_x, to_y)))
        return f"M{number(x)} {number(y)}C{numbers}{straight}"

    def _port(self, key: str) -> tuple[float, float]:
        return self.ports[key] if key in self.opened else (0.0, 0.0)

    # ------------------------------------------------------------ drawing

    def _block(self, group: Element, block: Block, size: tuple[float, float]) -> None:
        fact, is_open = self.facts.blocks[block.key], block.key in self.opened
        classes = ["block", *(["gone"] if fact.gone else []), *([] if is_open else ["closed"])]
        group.attrib.update({"class": " ".join(classes), "data-key": clean(block.key)})
        head = add(group, "g", class_="head", tabindex=0, role="button", aria_expanded="true" if is_open else "false",
                   aria_label=fact.label)  # fmt: skip
        add(head, "rect", class_="box", width=size[0], height=size[1], rx=8)
        add(head, "path", class_="chevron", d=_CHEVRON, transform="translate(11 10)")
        add(head, "text", _short(self.names[block.key], self._room(fact)), class_="name", x=23, y=18)
        add(head, "text", fact.count, class_="count", x=size[0] - 10, y=18)
        if fact.share is not None:
            add(head, "rect", class_="track", x=10, y=28, width=self.width - 20, height=8)
            add(head, "rect", class_="alive", x=10, y=28, width=(self.width - 20) * fact.share, height=8)
        self._body(add(group, "g", class_="body", data_body=block.key, transform=f"translate({PADDING:g} {HEADER:g})"),
                   block)  # fmt: skip

    def _node(self, group: Element, key: str) -> None:
        fact, kind = self.facts.nodes[key], self.facts.nodes[key].kind
        width, height = self.width, HEIGHTS[kind]
        classes = ["node", kind, *fact.marks, *(["gone"] if fact.gone else [])]
        group.attrib.update({"class": " ".join(classes), "data-key": clean(key), "tabindex": "0", "role": "img"})
        group.set("aria-label", clean(fact.label))
        if kind in ("input", "output"):
            add(group, "rect", class_="box", width=width, height=height, rx=height / 2)
            add(group, "text", _short(fact.name, 20), class_="name middle", x=width / 2, y=16)
            return
        add(group, "rect", class_="box", width=width, height=height, rx=height / 2 if kind != "conv" else 6)
        inset = _inset(kind)
        add(group, "text", _short(self.names[key], self._room(fact)), class_="name", x=inset, y=18)
        if fact.count:
            add(group, "text", fact.count, class_="count", x=width - inset, y=18)
        icon = {"guarded": _SHIELD, "frozen": _LOCK}.get(next(iter(fact.marks), ""))
        if icon:
            at = width - inset - len(fact.count) * _CHARACTER - 14
            add(group, "path", class_="icon", d=icon, transform=f"translate({number(at)} 9)")
        if fact.mask:
            high = 10 if kind == "conv" else 4
            _bar(group, inset, 25 if kind == "conv" else 23, width - 2 * inset, high, fact.mask)

    def _name(self, key: str, outer: Block) -> str:
        """Within a block, layers go by what is left of their names; blocks show where they are."""
        fact = self.facts.nodes.get(key) or self.facts.blocks[key]
        inside = fact.kind in ("conv", "linear") and outer.path
        return fact.name.removeprefix(f"{outer.path}.") if inside else fact.name

    def _needed(self, key: str) -> float:
        fact = self.facts.nodes.get(key) or self.facts.blocks[key]
        return (len(self.names[key]) + len(fact.count) + 1) * _CHARACTER + _around(fact)

    def _room(self, fact: Fact) -> int:
        """Characters that a name may have."""
        return int((self.width - _around(fact)) / _CHARACTER) - len(fact.count) - 1


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


def _name(slot: layout.Slot) -> str:
    return slot if isinstance(slot, str) else slot[0]


def _short(name: str, most: int) -> str:
    """Its end tells a name from others; it begins at a dot where one is near.

    >>> _short("conv1", 12), _short("layer1.0.block.conv1", 12), _short("a_rather_long_name.conv", 12)
    ('conv1', '…block.conv1', '…g_name.conv')
    """
    if len(name) <= most:
        return name
    end = name[len(name) - max(most, 2) + 1 :]
    first, dot, rest = end.partition(".")
    return f"…{rest}" if dot and len(first) < len(end) / 3 and rest else f"…{end}"


def _inset(kind: str) -> float:
    """Pills are round at their ends."""
    return 10.0 if kind == "conv" else 16.0


def _around(fact: Fact) -> float:
    """What a line of text cannot have of the width."""
    return (35.0 if fact.kind == "block" else 2 * _inset(fact.kind)) + (16.0 if fact.marks else 0.0)


def _bar(parent: Element, x: float, y: float, width: float, height: float, mask: str) -> None:
    """A cell per channel, filled if it lives; where there is no room for cells, a column as high as many of them."""
    add(parent, "rect", class_="track", x=x, y=y, width=width, height=height)
    cells = min(len(mask), int(width))
    apart = 1.0 if width / max(len(mask), 1) >= 3.5 else 0.0
    ends = [len(mask) * n // cells for n in range(cells + 1)] if cells else [0]
    shares = [mask.count("1", a, b) / (b - a) for a, b in pairwise(ends)]
    path, start = [], 0
    for n in range(1, cells + 1):
        if n < cells and not apart and shares[n] == shares[start]:
            continue
        if shares[start]:
            left, wide, high = x + width * start / cells, width * (n - start) / cells - apart, height * shares[start]
            path.append(f"M{number(left)} {number(y + height)}v{number(-high)}h{number(wide)}v{number(high)}z")
        start = n
    if path:
        add(parent, "path", class_="alive", d="".join(path))
