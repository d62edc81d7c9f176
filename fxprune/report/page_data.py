"""What a report page tells, collected from an inspection or from the files of a run. No code of the run is executed.

What a run does not have yet, or what is damaged, is left out and named in ``missing``: a page can always be written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fxprune.budget.cost import METRICS
from fxprune.inspection import Inspection, plain
from fxprune.run import NETWORK, NETWORK_SCHEMA, STAGES, Run
from fxprune.train.loop import REPORT
from fxprune.train.loop import SCHEMA as REPORT_SCHEMA

LOG = "log.jsonl"
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
    network = _part(missing, NETWORK, lambda: _json(run.folder / NETWORK, NETWORK_SCHEMA)) or {}
    told: dict[str, Any] = {}
    if run.stage == STAGES[2] and (run.folder / REPORT).exists():  # a run in a loop of one's own has none
        told = _part(missing, REPORT, lambda: _json(run.folder / REPORT, REPORT_SCHEMA)) or {}
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


def _json(path: Path, schema: str) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or found.get("schema") != schema:
        raise ValueError(f"it is not of the form {schema}")
    return found


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
