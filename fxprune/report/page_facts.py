"""What there is to say about each node and block of the graph, in words and numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fxprune.inspection import Inspection, LayerInfo
from fxprune.report.blocks import Block, block_tree
from fxprune.report.page_data import ReportData
from fxprune.report.text import human, listing, percent, plural
from fxprune.tracing.frames import short_source

JOINS = ("add", "mul", "cat")
BECAME = {
    "plain": ("plain add", "both sides have the same channels"),
    "slice": ("slice add", "one side is added to a few runs of the other's channels"),
    "scatter": ("scatter-add", "one side is added to scattered channels of the other"),
    "concat": ("concat", "the sides share no channel: they are set side by side"),
    "through": ("gone", "one side is left, and passes through"),
    "add": ("add", "zeros stand for the channels that one side does not have"),
    "mul": ("multiply", "channel by channel"),
    "cat": ("concat", "the sides are set side by side"),
    "dead": ("gone", "nothing of it lives"),
}
_UNPRUNED = {"add": "add", "mul": "multiply", "cat": "concat"}


@dataclass(frozen=True)
class Fact:
    """A node or a block, as the drawing shows it; ``label`` is all that is said about it, line by line."""

    kind: str
    name: str
    label: str
    count: str = ""
    mask: str = ""
    share: float | None = None  # of a block: how much of it lives
    marks: tuple[str, ...] = ()
    gone: bool = False
    dead: bool = False  # nothing comes out of it; what is gone may still let something through


class Facts:
    """Of all nodes and blocks of one page."""

    def __init__(self, data: ReportData) -> None:
        assert data.inspection is not None
        self.data, self.seen = data, data.inspection
        self.infos = {layer.name: layer for layer in self.seen.layers}
        self.frozen = {name for freeze in self.seen.freezes for name in freeze.layers}
        self.operands: dict[str, list[str]] = {}
        for source, target in self.seen.edges:
            self.operands.setdefault(target, []).append(source)
        self.nodes = {name: self._node(name, node) for name, node in self.seen.nodes.items()}
        self.tree = tree_of(self.seen)
        self.blocks = {block.key: self._block(block) for block in self.tree.blocks()}

    def is_dead(self, key: str) -> bool:
        fact = self.nodes.get(key) or self.blocks.get(key)
        return fact is not None and fact.dead

    def _node(self, name: str, node: dict[str, Any]) -> Fact:
        kind, label = node["kind"], node["label"]
        if kind == "conv" and label in self.infos:
            return self._conv(self.infos[label], node)
        if kind in JOINS:
            return self._join(name, kind, node)
        where = short_source(node.get("source"))
        shapes = f"input of {', '.join(self.seen.inputs)}" if kind == "input" and len(self.seen.inputs) == 1 else kind
        kind = kind if kind in ("input", "output", "linear", "conv") else "linear"
        shapes = {"linear": "linear layer"}.get(shapes, shapes)
        return Fact(kind, label, _lines(label, shapes, where and f"called at {where}"))

    def _conv(self, info: LayerInfo, node: dict[str, Any]) -> Fact:
        left = self.data.layers[info.name] if self.data.layers is not None else None
        mask = left.mask if left else "1" * info.channels
        told = plural(info.channels, "channel")
        if left:
            share = percent(left.channels / info.channels)
            told = f"{left.channels:,} of {info.channels:,} channels live ({share} %)"
        costs = [
            change(name, getattr(info, metric), getattr(left, metric) if left else None)
            for metric, name in (("volume", "volume"), ("flops", "FLOPs"), ("params", "params"))
        ]
        label = _lines(
            info.name,
            told,
            *costs,
            info.guarded and f"guarded: {info.guarded}",
            info.ungated and f"no gate: {info.ungated}",
            info.streams and f"writes {listing(info.streams)}",
            info.calls > 1 and f"called {info.calls} times",
            (where := short_source(node.get("source"))) and f"called at {where}",
        )
        mark = "ungated" if info.ungated else "guarded" if info.guarded else ""
        mark = "frozen" if info.name in self.frozen else mark
        count = f"{left.channels}/{info.channels}" if left else str(info.channels)
        gone = left is not None and not left.channels
        return Fact("conv", info.name, label, count, mask, marks=(mark,) if mark else (), gone=gone, dead=gone)

    def _join(self, name: str, kind: str, node: dict[str, Any]) -> Fact:
        mask = self.data.streams.get(name, "")
        title, why = _UNPRUNED[kind], ""
        if mask and "1" not in mask:
            title, why = BECAME["dead"]
        elif mask and self.data.joins is not None:
            title, why = BECAME.get(self.data.joins.get(name, kind), BECAME[kind])
        operands = [self.seen.nodes[source]["label"] for source in self.operands.get(name, ())]
        stream = next((stream for stream, joins in self.seen.streams.items() if name in joins), "")
        label = _lines(
            f"{name}: {title}",
            why,
            mask and f"{mask.count('1'):,} of {len(mask):,} channels live",
            operands and f"of {listing(operands)}",
            stream and f"in the residual stream {stream}",
            name in self.seen.pooling_blocks and "a pooling block: no identity reaches it, so one operand must live",
            (where := short_source(node.get("source"))) and f"called at {where}",
        )
        count = f"{mask.count('1')}/{len(mask)}" if mask else ""
        marks = ("pooling",) if name in self.seen.pooling_blocks else ()
        dead = bool(mask) and "1" not in mask
        return Fact(kind, title, label, count, mask, marks=marks, gone=title == "gone", dead=dead)

    def _block(self, block: Block) -> Fact:
        names = layer_names(self.seen, block.nodes())
        infos = [self.infos[name] for name in names]
        before = sum(info.channels for info in infos)
        if self.data.layers is None:
            label = _lines(
                block.path,
                f"{plural(len(names), 'convolution')}, {plural(before, 'channel')}",
                change("volume", sum(info.volume for info in infos), None),
                change("FLOPs", sum(info.flops for info in infos), None),
            )
            return Fact("block", block.path, label, f"{before}" if names else "", share=1.0 if names else None)
        left = [self.data.layers[name] for name in names]
        after = sum(entry.channels for entry in left)
        label = _lines(
            block.path,
            f"{plural(len(names), 'convolution')}, {after:,} of {before:,} channels live",
            change("volume", sum(info.volume for info in infos), sum(entry.volume for entry in left)),
            change("FLOPs", sum(info.flops for info in infos), sum(entry.flops for entry in left)),
        )
        if not names:
            return Fact("block", block.path, label)
        dead = all(self.nodes[name].dead for name in block.nodes())
        return Fact("block", block.path, label, f"{after}/{before}", share=after / before, gone=not after, dead=dead)


def tree_of(seen: Inspection) -> Block:
    """The blocks of a network: a layer belongs to the module that holds it, a join to the one whose code it is in."""
    paths: dict[str, tuple[str, ...]] = {}
    for name, node in seen.nodes.items():
        inside = node.get("module") if node["kind"] in JOINS else node["label"].rpartition(".")[0]
        apart = node["kind"] in ("input", "output") or not inside
        paths[name] = () if apart else tuple(str(inside).split("."))
    return block_tree(paths, seen.edges)


def layer_names(seen: Inspection, nodes: Iterable[str]) -> list[str]:
    """The convolutions among them, each once."""
    known = {layer.name for layer in seen.layers}
    labels = (seen.nodes[name]["label"] for name in nodes if seen.nodes[name]["kind"] == "conv")
    return [label for label in dict.fromkeys(labels) if label in known]


def change(name: str, before: int, after: int | None) -> str:
    """
    >>> change("volume", 4096, 1024), change("volume", 4096, None)
    ('volume 4.10k → 1.02k (25.0 %)', 'volume 4.10k')
    """
    if after is None:
        return f"{name} {human(before)}"
    return f"{name} {human(before)} → {human(after)} ({percent(after / before if before else 0)} %)"


def _lines(*lines: Any) -> str:
    return "\n".join(line for line in lines if line)
