"""What a report page tells, collected from an inspection or from the files of a run (no code of the run is executed),
and what there is to say about each node and block of the graph."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fxprune.analysis.inspection import Inspection, LayerInfo, plain
from fxprune.cost.model import METRICS
from fxprune.files import read_json
from fxprune.report.layout import Block, block_tree
from fxprune.report.text import NAMES, change, human, listing, percent, plural
from fxprune.run.folder import STAGES, Run
from fxprune.run.names import LOG, NETWORK, NETWORK_SCHEMA, REPORT, REPORT_SCHEMA
from fxprune.trace.frames import short_source

_NUMBERS = ("step", "loss", "accuracy", "V", "b", "lr", "seconds")


@dataclass(frozen=True)
class Survivor:
    """What is left of a convolution."""

    mask: str  # a 1 per living channel, a 0 per dead one
    volume: int
    flops: int
    params: int

    @property
    def channels(self) -> int:
        return self.mask.count("1")


@dataclass(frozen=True)
class ReportData:
    """Everything on the page; ``as_dict`` is ready for ``json.dumps``."""

    model: str
    version: str
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

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = plain(asdict(self))
        return found


def of_inspection(seen: Inspection, version: str, budget: float | None = None) -> ReportData:
    """A page about a model that nobody has pruned yet; ``budget`` is one that was asked about."""
    asked = {} if budget is None else dict.fromkeys(METRICS, budget)
    return ReportData(seen.model, version, seen, budget=asked, before=seen.cost)


def of_run(folder: Path, version: str) -> ReportData:
    """The page of a run, however far it is; a ``RunError`` if the folder holds none."""
    run = Run(folder)
    missing: list[str] = []
    network = _part(missing, NETWORK, lambda: read_json(run.folder / NETWORK, NETWORK_SCHEMA)) or {}
    told: dict[str, Any] = {}
    if run.stage == STAGES[2] and (run.folder / REPORT).exists():  # a run in a loop of one's own has none
        told = _part(missing, REPORT, lambda: read_json(run.folder / REPORT, REPORT_SCHEMA)) or {}
    seen = _part(missing, "the graph", lambda: Inspection.restored(network["inspection"])) if network else None
    living: Any = network.get("living")
    layers = _part(missing, "the living channels", lambda: _layers(seen, living)) if living else None
    streams = _part(missing, "the channels of joins", lambda: _masks(living["joins"])) if layers else None
    joins = network.get("joins")
    how = _part(missing, "the joins", lambda: _texts(joins)) if joins is not None and layers else None
    log = _part(missing, LOG, lambda: _log(run.folder / LOG, missing)) or ()
    settings = told.get("settings", network.get("settings"))
    certificate = _part(missing, "the certificate", lambda: _certificate(network.get("certificate")))
    missing += _not_yet(run, layers, certificate, settings)
    return ReportData(
        model=run.model,
        version=version,
        inspection=seen,
        run=run.folder.resolve().name,
        stage=run.stage,
        budget=dict(run.target.limits),
        before=run.full_cost.as_dict(),
        after=_after(run, told, seen, layers),
        accuracy=_numbers(told.get("accuracy", network.get("accuracy"))),
        layers=layers,
        streams=streams or {},
        joins=how,
        certificate=certificate,
        settings=settings if isinstance(settings, dict) else {},
        seconds=_number(told.get("seconds")),
        log=log,
        missing=tuple(missing),
    )


def _part(missing: list[str], name: str, read: Callable[[], Any]) -> Any:
    """What ``read`` gives; None, and a word about it, where that fails."""
    try:
        return read()
    except FileNotFoundError:
        missing.append(f"{name} is not there: the run is new, or was written by an older fxprune")
    except OSError as error:
        missing.append(f"{name} cannot be read: {error.strerror or error}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error)
        missing.append(f"{name} cannot be shown, the file is damaged: {why}")
    return None


def _not_yet(run: Run, layers: Any, certificate: Any, settings: Any) -> list[str]:
    if run.stage == STAGES[0]:
        return ["living channels and the slim net: the gates are not decided yet, the run is still pruning"]
    said = []
    if run.stage == STAGES[1]:
        said.append("the final accuracy and the certificate: the slim net is still fine-tuned")
    elif certificate is None and layers is not None:
        said.append("the certificate: the slim net was not compared when it was exported")
    if not settings:
        said.append("settings: the run was not made by fxprune.prune, or by an older one")
    return said


def _layers(seen: Inspection | None, living: Any) -> dict[str, Survivor] | None:
    if seen is None:
        return None
    found = {}
    for layer in seen.layers:
        entry = living["layers"][layer.name]
        costs = [entry[metric] for metric in METRICS]
        if len(entry["mask"]) != layer.channels or not all(type(cost) is int and cost >= 0 for cost in costs):
            raise ValueError(f"what is left of {layer.name} does not fit")
        found[layer.name] = Survivor(_masks({"mask": entry["mask"]})["mask"], *costs)
    return found


def _masks(found: Any) -> dict[str, str]:
    if not all(set(mask) <= {"0", "1"} for mask in _texts(found).values()):
        raise ValueError("a mask holds other characters than 0 and 1")
    return dict(found)


def _texts(found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise ValueError("a text is missing")
    return dict(found)


def _certificate(found: Any) -> dict[str, Any] | None:
    if found is None or found["error"] is None:
        return None
    if not all(type(found[key]) is float for key in ("error", "tolerance")) or not isinstance(found["batches"], list):
        raise ValueError("its numbers are none")
    return dict(found)


def _log(path: Path, missing: list[str]) -> tuple[dict[str, Any], ...]:
    rows: list[dict[str, Any]] = []
    broken = 0
    for line in path.read_bytes().splitlines():
        try:
            row = json.loads(line)
            numbers = {name: _number(row.get(name)) for name in _NUMBERS}
            rows.append({**numbers, "phase": str(row["phase"]), "epoch": int(row["epoch"])})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            broken += 1  # such as a line that a power cut left half written
    if broken:
        missing.append(f"{broken} of {len(rows) + broken} lines of {path.name}: they are damaged")
    return tuple(row for row in rows if row["step"] is not None)


def _after(
    run: Run, told: Mapping[str, Any], seen: Inspection | None, layers: dict[str, Survivor] | None
) -> dict[str, int] | None:
    """Of the slim net; of the one that is being fine-tuned, which costs the same, as far as its layers tell."""
    if run.cost is not None:
        costs = told.get("cost")
        pairs = costs.items() if isinstance(costs, dict) else ()
        more = {name: cost.get("after") for name, cost in pairs if isinstance(cost, dict)}
        return {**{name: count for name, count in more.items() if type(count) is int}, **run.cost}
    if layers is None or seen is None:
        return None
    parts = [*layers.values(), *seen.leaves]
    return {metric: sum(getattr(part, metric) for part in parts) for metric in METRICS}


def _numbers(found: Any) -> dict[str, float]:
    made = {name: _number(value) for name, value in found.items()} if isinstance(found, dict) else {}
    return {name: value for name, value in made.items() if value is not None}


def _number(value: Any) -> float | None:
    fine = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if fine else None


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
KINDS = {"conv": "convolution", "linear": "linear layer", "add": "add", "mul": "multiply", "cat": "concat"}
MARKS = {
    "guarded": "guarded: one channel must live",
    "frozen": "frozen: every channel stays",
    "ungated": "no gate of its own",
    "pooling": "pooling block: one side must live",
}


@dataclass(frozen=True)
class Fact:
    """A node or a block, as the drawing shows it; ``label`` is all that is said about it, line by line."""

    kind: str
    name: str
    label: str
    count: str = ""
    mask: str = ""
    costs: str = ""  # in short, where there is no bar of the mask
    share: float | None = None  # of a block: how much of it lives
    marks: tuple[str, ...] = ()
    gone: bool = False
    dead: bool = False  # nothing comes out of it; what is gone may still let something through

    @property
    def classes(self) -> str:
        return " ".join((self.kind, *self.marks, *(["gone"] if self.gone else [])))


@dataclass(frozen=True)
class Total:
    """Convolutions taken together: channels, before and after, and words about them and about each cost."""

    before: int
    after: int | None
    channels: str
    costs: dict[str, str]


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
        told = f"input of {', '.join(self.seen.inputs)}" if kind == "input" and len(self.seen.inputs) == 1 else kind
        told = KINDS["linear"] if kind == "linear" else told
        kind = kind if kind in ("input", "output", "linear", "conv") else "linear"
        return Fact(kind, label, _lines(label, told, where and f"called at {where}"))

    def _conv(self, info: LayerInfo, node: dict[str, Any]) -> Fact:
        total = self.total([info.name])
        left = self.data.layers[info.name] if self.data.layers is not None else None
        share = f" ({percent(left.channels / max(info.channels, 1))} %)" if left else ""
        label = _lines(
            info.name,
            total.channels + share,
            *total.costs.values(),
            info.guarded and f"guarded: {info.guarded}",
            info.ungated and f"no gate: {info.ungated}",
            info.streams and f"writes {listing(info.streams)}",
            info.calls > 1 and f"called {info.calls} times",
            (where := short_source(node.get("source"))) and f"called at {where}",
        )
        mark = "ungated" if info.ungated else "guarded" if info.guarded else ""
        mark = "frozen" if info.name in self.frozen else mark
        mask = left.mask if left else "1" * info.channels
        count = f"{left.channels}/{info.channels}" if left else str(info.channels)
        gone = left is not None and not left.channels
        costs = f"{info.channels} ch, {human(info.volume)}, {percent(info.volume_share)} %"
        return Fact("conv", info.name, label, count, mask, costs, marks=(mark,) if mark else (), gone=gone, dead=gone)

    def _join(self, name: str, kind: str, node: dict[str, Any]) -> Fact:
        mask = self.data.streams.get(name, "")
        title, why = KINDS[kind], ""
        if mask and "1" not in mask:
            title, why = BECAME["dead"]
        elif mask and self.data.joins is not None:
            title, why = BECAME.get(self.data.joins.get(name, kind), BECAME[kind])
        operands = [self.seen.nodes[source]["label"] for source in self.operands.get(name, ())]
        stream = next((stream for stream, joins in self.seen.streams.items() if name in joins), "")
        label = _lines(
            f"{name}: {title}",
            why,
            mask and _living(len(mask), mask.count("1")),
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
        total = self.total(names)
        told = f"{plural(len(names), 'convolution')}, {total.channels}"
        label = _lines(block.path, told, total.costs["volume"], total.costs["flops"])
        if not names:
            return Fact("block", block.path, label)
        if total.after is None:
            return Fact("block", block.path, label, f"{total.before}", share=1.0)
        share, dead = total.after / max(total.before, 1), all(self.nodes[name].dead for name in block.nodes())
        count = f"{total.after}/{total.before}"
        return Fact("block", block.path, label, count, share=share, gone=not total.after, dead=dead)

    def total(self, names: Iterable[str]) -> Total:
        """Of the convolutions of these names."""
        infos = [self.infos[name] for name in names]
        left = [self.data.layers[info.name] for info in infos] if self.data.layers is not None else None
        before, after = sum(i.channels for i in infos), None if left is None else sum(s.channels for s in left)
        costs = {
            metric: change(
                NAMES[metric],
                sum(getattr(info, metric) for info in infos),
                None if left is None else sum(getattr(survivor, metric) for survivor in left),
            )
            for metric in METRICS
        }
        return Total(before, after, _living(before, after), costs)


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


def _living(before: int, after: int | None) -> str:
    return plural(before, "channel") if after is None else f"{after:,} of {before:,} channels live"


def _lines(*lines: Any) -> str:
    return "\n".join(line for line in lines if line)
