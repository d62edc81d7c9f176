"""What a report page shows: the data, from an inspection or from the files of a run (no code of the run is executed),
and the facts about each node and block of the graph."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fxprune.analysis.inspection import Inspection, LayerInfo
from fxprune.cost.model import METRICS
from fxprune.files import Table, misfit, read_json, reason
from fxprune.report.placement import Block, block_tree
from fxprune.report.text import NAMES, change, heads, human, listing, percent, plural
from fxprune.run.folder import STAGES, Run
from fxprune.run.layout import LOG, NETWORK, NETWORK_SCHEMA, REPORT, REPORT_SCHEMA
from fxprune.trace.source_lines import short_source

_MOST_CHANNELS = 2**20  # of a layer; a mask of them is a text of as many characters
_MOST = 2**63  # of every other number
_NUMBERS = ("step", "loss", "accuracy", "V", "b", "lr", "seconds")


@dataclass(frozen=True)
class Survivor:
    """What is left of a layer."""

    mask: str  # a 1 per living channel, a 0 per dead one
    volume: int
    flops: int
    params: int

    @property
    def channels(self) -> int:
        return self.mask.count("1")


@dataclass(frozen=True)
class ReportData:
    """Everything on the page."""

    model: str
    inspection: Inspection | None = None
    run: str | None = None  # the folder's name
    stage: str | None = None
    budget: dict[str, float] = field(default_factory=dict)
    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] | None = None
    accuracy: dict[str, float] = field(default_factory=dict)  # before, hardened, exported, after
    layers: dict[str, Survivor] | None = None
    streams: dict[str, str] = field(default_factory=dict)  # per join the mask of the channels that it makes
    joins: dict[str, str] | None = None  # how the adds are written
    certificate: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    log: tuple[dict[str, Any], ...] = ()
    missing: tuple[str, ...] = ()


def of_inspection(seen: Inspection, budget: float | None = None) -> ReportData:
    """A page about a model that nobody has pruned yet; ``budget`` is one that was asked about."""
    asked = {} if budget is None else dict.fromkeys(METRICS, budget)
    return ReportData(seen.model, seen, budget=asked, before=seen.cost)


def of_run(folder: Path) -> ReportData:
    """The page of a run, however far it is; a ``RunError`` if the folder holds none."""
    run = Run(folder)
    missing: list[str] = []
    network = _part(missing, NETWORK, lambda: read_json(run.folder / NETWORK, NETWORK_SCHEMA)) or {}
    report: dict[str, Any] = {}
    if run.stage == STAGES[2] and (run.folder / REPORT).exists():  # a run in the user's own loop has none
        report = _part(missing, REPORT, lambda: read_json(run.folder / REPORT, REPORT_SCHEMA)) or {}
    seen = _part(missing, "the graph", lambda: _graph(network["inspection"])) if network else None
    living: Any = network.get("living")
    layers = _part(missing, "the living channels", lambda: _layers(seen, living)) if living and seen else None
    streams = _part(missing, "the channels of joins", lambda: _masks(living["joins"])) if layers else None
    joins = network.get("joins")
    joins = _part(missing, "the joins", lambda: _texts(joins)) if joins is not None and layers else None
    log = _part(missing, LOG, lambda: _log(run.folder / LOG, missing)) or ()
    accuracy, settings = (report.get(name, network.get(name)) for name in ("accuracy", "settings"))
    certificate = _part(missing, "the certificate", lambda: _certificate(network.get("certificate")))
    missing += _not_yet(run, layers, certificate, settings)
    return ReportData(
        model=run.model,
        inspection=seen,
        run=run.folder.resolve().name,
        stage=run.stage,
        budget=dict(run.target.limits),
        before=run.full_cost.as_dict(),
        after=_after(run, report.get("cost"), seen, layers),
        accuracy={name: value for name, value in _table(accuracy).items() if _number(value) is not None},
        layers=layers,
        streams=streams or {},
        joins=joins,
        certificate=certificate,
        settings=_table(settings),
        seconds=_number(report.get("seconds")),
        log=log,
        missing=tuple(missing),
    )


def _part(missing: list[str], name: str, read: Callable[[], Any]) -> Any:
    """What ``read`` returns; None where it fails, and then ``missing`` says why."""
    try:
        return read()
    except FileNotFoundError:
        missing.append(f"{name} is not there: the run is new, or was written by an older fxprune")
    except OSError as error:
        missing.append(f"{name} cannot be read: {reason(error)}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error)
        missing.append(f"{name} cannot be shown, the file is damaged: {why}")
    return None


def _not_yet(run: Run, layers: Any, certificate: Any, settings: Any) -> list[str]:
    if run.stage == STAGES[0]:
        return ["living channels and the slim net: the gates are not decided yet, the run is still pruning"]
    absent = []
    if run.stage == STAGES[1]:
        absent.append("the final accuracy and the certificate: the slim net is still being fine-tuned")
    elif certificate is None and layers is not None:
        absent.append("the certificate: the slim net was not compared when it was exported")
    if not settings:
        absent.append("settings: the run was not made by fxprune.prune, or by an older one")
    return absent


def _graph(inspection: Any) -> Inspection:
    """The inspection of a run; ``ValueError`` where it holds what cannot be drawn."""
    seen = Inspection.restored(inspection)
    for node in seen.nodes.values():
        _check({"module": None, "source": None, **node}, dict.fromkeys(("module", "source"), (str, type(None))))
    layers, leaves = {layer.name: vars(layer) for layer in seen.layers}, {leaf.path: vars(leaf) for leaf in seen.leaves}
    for name, facts in {**leaves, **layers, "the smallest net": seen.smallest}.items():
        for key, value in facts.items():
            most = _MOST_CHANNELS if key == "channels" else _MOST
            if type(value) is int and not 0 <= value <= most:
                raise ValueError(f"{key} of {name} is not from 0 to {most:,}")
    return seen


def _check(table: Any, kinds: Mapping[str, Any]) -> None:
    wrong = misfit(table, kinds)
    if wrong is not None:
        raise ValueError(wrong)


def _layers(seen: Inspection, living: Any) -> dict[str, Survivor]:
    entries = living["layers"]
    masks = _masks({layer.name: entries[layer.name]["mask"] for layer in seen.layers})
    survivors = {}
    for layer in seen.layers:
        costs = [entries[layer.name][metric] for metric in METRICS]
        if len(masks[layer.name]) != layer.channels or not all(type(cost) is int and cost >= 0 for cost in costs):
            raise ValueError(f"what is left of {layer.name} does not fit")
        survivors[layer.name] = Survivor(masks[layer.name], *costs)
    return survivors


def _masks(masks: Any) -> dict[str, str]:
    if not all(set(mask) <= {"0", "1"} for mask in _texts(masks).values()):
        raise ValueError("a mask holds other characters than 0 and 1")
    return dict(masks)


def _texts(texts: Any) -> dict[str, str]:
    _check({"it": texts}, {"it": Table(str)})
    return dict(texts)


def _certificate(certificate: Any) -> dict[str, Any] | None:
    if certificate is None or certificate["error"] is None:
        return None
    _check(certificate, {"error": float, "tolerance": float, "batches": list})
    return dict(certificate)


def _log(path: Path, missing: list[str]) -> tuple[dict[str, Any], ...]:
    rows: list[dict[str, Any]] = []
    broken = 0
    for line in path.read_bytes().splitlines():
        try:
            row = json.loads(line)
            numbers = {name: _number(row.get(name)) for name in _NUMBERS}
            rows.append({**numbers, "phase": str(row["phase"]), "epoch": int(row["epoch"])})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            broken += 1  # such as the half of a line that a power cut left
    if broken:
        missing.append(f"{broken} of {len(rows) + broken} lines of {path.name}: they are damaged")
    return tuple(row for row in rows if row["step"] is not None)


def _after(
    run: Run, costs: Any, seen: Inspection | None, layers: dict[str, Survivor] | None
) -> dict[str, int] | None:
    """Of the slim net. One that is still being fine-tuned costs what its layers and leaves cost together."""
    if run.cost is not None:
        after = {name: _table(cost).get("after") for name, cost in _table(costs).items()}
        return {**{name: count for name, count in after.items() if type(count) is int}, **run.cost}
    if layers is None or seen is None:
        return None
    parts = [*layers.values(), *seen.leaves]
    return {metric: sum(getattr(part, metric) for part in parts) for metric in METRICS}


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if is_number else None


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
KINDS = {"conv": "layer", "linear": "linear layer", "add": "add", "mul": "multiply", "cat": "concat"}
MARKS = {
    "guarded": "guarded: one channel must live",
    "frozen": "frozen: every channel stays",
    "ungated": "no gate of its own",
    "pooling": "pooling block: one side must live",
}


@dataclass(frozen=True)
class Fact:
    """A node or a block, as the drawing shows it; ``label`` holds all facts about it, one per line."""

    kind: str
    name: str
    label: str
    count: str = ""
    mask: str = ""
    costs: str = ""  # in short, for a drawing without bars
    share: float | None = None  # of a block: how much of it lives
    marks: tuple[str, ...] = ()
    gone: bool = False
    dead: bool = False  # no channel comes out of it; a join that is gone may still pass one side on

    @property
    def classes(self) -> str:
        return " ".join((self.kind, *self.marks, *(["gone"] if self.gone else [])))


@dataclass(frozen=True)
class Total:
    """Several layers together: their channels before and after, and texts about these and each cost."""

    before: int
    after: int | None
    channels: str
    costs: dict[str, str]


class Facts:
    """The facts about all nodes and blocks of one page."""

    def __init__(self, data: ReportData) -> None:
        assert data.inspection is not None
        self.data, self.seen = data, data.inspection
        self.infos = {layer.name: layer for layer in self.seen.layers}
        self.frozen = {name for freeze in self.seen.freezes for name in freeze.layers}
        self.nodes = {name: self._node(name, node) for name, node in self.seen.nodes.items()}
        self.tree = tree_of(self.seen)
        self.blocks = {block.key: self._block(block) for block in self.tree.blocks()}

    def is_dead(self, key: str) -> bool:
        fact = self.nodes.get(key) or self.blocks.get(key)
        return fact is not None and fact.dead

    def became(self, join: str) -> tuple[str, str] | None:
        """What a join is in the slim net, and why; None where that is not known."""
        mask, kind = self.data.streams.get(join), self.seen.nodes[join]["kind"]
        if kind not in JOINS or not mask:
            return None
        if "1" not in mask:
            return BECAME["dead"]
        return BECAME.get(self.data.joins.get(join, kind), BECAME[kind]) if self.data.joins is not None else None

    def _node(self, name: str, node: dict[str, Any]) -> Fact:
        kind, label = node["kind"], node["label"]
        called = f"called at {short_source(node['source'])}" if node.get("source") else ""
        if kind in ("conv", "linear") and label in self.infos:
            return self._conv(self.infos[label], called)
        if kind in JOINS:
            return self._join(name, kind, called)
        told = f"input of {', '.join(self.seen.inputs)}" if kind == "input" and len(self.seen.inputs) == 1 else kind
        told = KINDS["linear"] if kind == "linear" else told
        kind = kind if kind in ("input", "output", "conv") else "linear"
        return Fact(kind, label, _lines(label, told, called))

    def _conv(self, info: LayerInfo, called: str) -> Fact:
        total = self.total([info.name])
        left = self.data.layers[info.name] if self.data.layers is not None else None
        label = _lines(
            info.name,
            total.channels + (f" ({percent(left.channels / max(info.channels, 1))} %)" if left else ""),
            info.heads and heads({unit.name: unit.gates for unit in info.heads}),
            *total.costs.values(),
            info.guarded and f"guarded: {info.guarded}",
            info.ungated and f"no gate: {info.ungated}",
            info.streams and f"writes {listing(info.streams)}",
            info.calls > 1 and f"called {info.calls} times",
            called,
        )
        marks = {"frozen": info.name in self.frozen, "ungated": info.ungated, "guarded": info.guarded}
        mark = tuple(mark for mark, applies in marks.items() if applies)[:1]
        if left is None:
            costs = f"{info.channels} ch, {human(info.volume)}, {percent(info.volume_share)} %"
            return Fact("conv", info.name, label, str(info.channels), "1" * info.channels, costs, marks=mark)
        gone, count = not left.channels, f"{left.channels}/{info.channels}"
        return Fact("conv", info.name, label, count, left.mask, marks=mark, gone=gone, dead=gone)

    def _join(self, name: str, kind: str, called: str) -> Fact:
        mask, pooling = self.data.streams.get(name, ""), name in self.seen.pooling_blocks
        title, why = self.became(name) or (KINDS[kind], "")
        operands = [self.seen.nodes[source]["label"] for source, target in self.seen.edges if target == name]
        stream = next((stream for stream, joins in self.seen.streams.items() if name in joins), "")
        label = _lines(
            f"{name}: {title}",
            why,
            mask and _living(len(mask), mask.count("1")),
            operands and f"of {listing(operands)}",
            stream and f"in the residual stream {stream}",
            pooling and "a pooling block: no identity reaches it, so one operand must live",
            called,
        )
        count, dead = (f"{mask.count('1')}/{len(mask)}", "1" not in mask) if mask else ("", False)
        marks = ("pooling",) if pooling else ()
        return Fact(kind, title, label, count, mask, marks=marks, gone=title == "gone", dead=dead)

    def _block(self, block: Block) -> Fact:
        names = layer_names(self.seen, block.nodes())
        total = self.total(names)
        channels = f"{plural(len(names), 'layer')}, {total.channels}"
        fact = Fact("block", block.path, _lines(block.path, channels, total.costs["volume"], total.costs["flops"]))
        if not names:
            return fact
        if total.after is None:
            return replace(fact, count=str(total.before), share=1.0)
        share, dead = total.after / max(total.before, 1), all(self.nodes[name].dead for name in block.nodes())
        return replace(fact, count=f"{total.after}/{total.before}", share=share, gone=not total.after, dead=dead)

    def total(self, names: Iterable[str]) -> Total:
        """Of the layers of these names."""
        before = [self.infos[name] for name in names]
        after = None if self.data.layers is None else [self.data.layers[info.name] for info in before]

        def counts(what: str) -> tuple[int, int | None]:
            full = sum(getattr(info, what) for info in before)
            return full, None if after is None else sum(getattr(left, what) for left in after)

        channels = counts("channels")
        return Total(*channels, _living(*channels), {m: change(NAMES[m], *counts(m)) for m in METRICS})


def tree_of(seen: Inspection) -> Block:
    """The blocks of a network: a layer belongs to the module that holds it, a join to the one whose code it is in."""
    paths: dict[str, tuple[str, ...]] = {}
    for name, node in seen.nodes.items():
        inside = node.get("module") if node["kind"] in JOINS else node["label"].rpartition(".")[0]
        apart = node["kind"] in ("input", "output") or not inside
        paths[name] = () if apart else tuple(str(inside).split("."))
    return block_tree(paths, seen.edges)


def layer_names(seen: Inspection, nodes: Iterable[str]) -> list[str]:
    """The layers among them, each once."""
    known = {layer.name for layer in seen.layers}
    labels = (seen.nodes[name]["label"] for name in nodes if seen.nodes[name]["kind"] in ("conv", "linear"))
    return [label for label in dict.fromkeys(labels) if label in known]


def _living(before: int, after: int | None) -> str:
    return plural(before, "channel") if after is None else f"{after:,} of {before:,} channels live"


def _lines(*lines: Any) -> str:
    return "\n".join(line for line in lines if line)
