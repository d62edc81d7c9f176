"""``fxprune check``: is a net on budget, and is it a net of this run? For continuous integration."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fxprune.commands.options import parse_budget
from fxprune.commands.user_code import unprinted
from fxprune.cost.model import METRICS
from fxprune.count import Count, count
from fxprune.errors import FxPruneError, OptionError, RunError, named
from fxprune.report.text import part_of, percent
from fxprune.run.folder import STAGES, Run
from fxprune.run.layout import HARDENED, SLIM
from fxprune.save.net_folder import read
from fxprune.save.onnx import OnnxNet, require
from fxprune.slim.verify import difference, tensors


@dataclass(frozen=True)
class Comparison:
    """Differences by net, as fractions of the largest output; None: the other net failed, ``problem`` says how."""

    differences: dict[str, float | None]
    batches: list[int]
    problem: str | None


def load_references(run: Run) -> tuple[dict[str, nn.Module], torch.dtype | None]:
    """The run's nets in float64, where rounding of the weights is the only difference; as they are where casts in
    their code do not allow that (then the type is None)."""
    nets = {SLIM: run.slim()} if run.stage == STAGES[-1] else {}
    nets[HARDENED] = run.hardened()
    try:
        for net in nets.values():
            _outputs(net.double(), run, run.batch, torch.float64)
    except Exception:  # if the nets as they are fail too, compare() reports it
        nets = {name: read(run.folder / name, "cpu") for name in nets}
        return nets, None
    return nets, torch.float64


def load_candidate(path: Path, dtype: torch.dtype | None) -> tuple[Callable[..., Any], Callable[..., Count]]:
    """A saved folder or an ONNX file: what it computes, and what its layers cost."""
    if path.suffix == ".onnx":
        if not path.is_file():
            raise FxPruneError(f"there is no file {path}", fix="name an ONNX file, or a folder that fxprune.save wrote")
        require(f"checking {path}", "onnx", "onnxruntime")
        net = OnnxNet.load(path)
        return net, net.count
    saved = read(path, "cpu").to(dtype)
    return saved, lambda *args, **kwargs: count(saved, args, kwargs)


def compare(other: Callable[..., Any], nets: dict[str, nn.Module], run: Run, dtype: torch.dtype | None) -> Comparison:
    """At the batch size that the net was pruned with and at another one, if the run's nets take it."""
    worst, tried = dict.fromkeys(nets, 0.0), []
    for batch in (run.batch, run.batch + 1):
        try:
            expected = {name: _outputs(net, run, batch, dtype) for name, net in nets.items()}
        except Exception as error:
            if batch == run.batch:
                raise RunError(
                    f"a net of {run.folder} fails on inputs of the run's own shapes: {named(error)}",
                    fix="its files do not belong together: restore the folder",
                ) from error
            continue  # the net takes the batch size of its example only
        tried.append(batch)
        try:
            outputs = _outputs(other, run, batch, dtype)
        except FxPruneError:
            raise
        except Exception as error:
            return Comparison(dict.fromkeys(nets), tried, f"it fails at batch size {batch}: {named(error)}")
        for name, values in expected.items():
            worst[name] = max(worst[name], _distance(values, outputs))
    return Comparison({**worst}, tried, None)


def _outputs(net: Callable[..., Any], run: Run, batch: int, dtype: torch.dtype | None) -> list[torch.Tensor]:
    args, kwargs = run.example(batch, dtype)  # new ones each time: a net may write into its inputs
    with torch.no_grad():
        outputs = tensors(net(*args, **kwargs))
    return [value.double() if value.is_floating_point() else value for value in outputs]


def _distance(expected: list[torch.Tensor], outputs: list[torch.Tensor]) -> float:
    if len(expected) != len(outputs):
        return math.inf
    return max(map(difference, expected, outputs), default=0.0)


SCHEMA = "fxprune.check/1"
_CALLED = {SLIM: "the run's final net", HARDENED: "the run's hardened net"}
HELP = "check that a net is on budget and computes what a run's net computes"
DESCRIPTION = (
    "Check that a saved net or an ONNX file is on budget, counted while it runs, and that it computes "
    "what the final or the hardened net of a run computes. A saved net's source is run: check what you trust."
)
EPILOG = """exit codes: 0 on budget and equal, 1 not, 2 the check could not be made

examples:
  fxprune check slim --against runs/resnet
  fxprune check slim.onnx --against runs/resnet --budget 1/8 --metric flops --json"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("net", type=Path, metavar="SLIM", help="a folder that fxprune wrote, or an .onnx file")
    add("--against", required=True, metavar="RUN", help="the folder of the pruning run")
    add("--budget", metavar="1/8", help="fraction of the full cost (default: the run's budget)")
    add("--metric", choices=METRICS, help="what --budget is about (default: what the run's is about)")
    add("--tolerance", type=float, default=1e-4, metavar="X", help="of the largest output (default: 1e-4)")
    add("--json", action="store_true", help="print the result as JSON (docs/reference/json.md)")


def run(options: argparse.Namespace) -> int:
    against = Run(options.against)
    limits = _limits(options, against)
    if not (math.isfinite(options.tolerance) and options.tolerance > 0):
        raise OptionError(f"--tolerance {options.tolerance} is not a positive number", fix="write --tolerance 1e-4")
    with unprinted():  # what a net's code prints is not part of the report
        nets, dtype = load_references(against)
        net, count_net = load_candidate(options.net, dtype)
        outcome = compare(net, nets, against, dtype)
        args, kwargs = against.example(dtype=dtype)
        cost = count_net(*args, **kwargs) if outcome.problem is None else None
    differences = outcome.differences.items()
    equals = next((name for name, far in differences if far is not None and far <= options.tolerance), None)
    costs = {metric: int(getattr(cost, metric)) for metric in METRICS} if cost else None
    budget = [_limit(metric, share, costs, against) for metric, share in limits.items() if metric in METRICS]
    said: dict[str, Any] = {
        "schema": SCHEMA,
        "net": str(options.net),
        "run": str(against.folder),
        "ok": equals is not None and all(limit["ok"] for limit in budget),
        "cost": costs,
        "full_cost": {metric: against.full_cost[metric] for metric in METRICS},
        "budget": budget,
        "not_checked": [metric for metric in limits if metric not in METRICS],
        "equals": equals,
        # JSON has no infinity: that is null, as is the difference of a net that failed.
        "differences": {k: v if v is not None and math.isfinite(v) else None for k, v in differences},
        "tolerance": options.tolerance,
        "batches": outcome.batches,
        "problem": outcome.problem,
    }
    print(json.dumps(said, indent=2, allow_nan=False) if options.json else "\n".join(_lines(said, outcome)))
    return 0 if said["ok"] else 1


def _limits(options: argparse.Namespace, against: Run) -> dict[str, float]:
    """Metric -> the fraction of the full cost that is allowed."""
    own, metric = dict(against.target.limits), options.metric
    if options.budget is None:
        if metric is None:
            return own
        if metric not in own:
            raise OptionError(f"the run has no budget of {metric}", fix="write --budget 1/8")
        return {metric: own[metric]}
    if metric is None and len(own) > 1:
        raise OptionError(f"the run has budgets of {', '.join(own)}", fix=f"write which: --metric {next(iter(own))}")
    return {metric or next(iter(own)): parse_budget(options.budget)}


def _limit(metric: str, fraction: float, costs: dict[str, int] | None, against: Run) -> dict[str, Any]:
    limit = fraction * against.full_cost[metric]
    # Rounding may put a limit that is a whole number slightly below it.
    fits = costs is not None and costs[metric] <= limit * (1 + 1e-12)
    return {"metric": metric, "fraction": fraction, "limit": limit, "ok": fits}


def _lines(said: dict[str, Any], outcome: Comparison) -> list[str]:
    lines = []
    if said["cost"] is not None:
        for limit in said["budget"]:
            metric, verdict = limit["metric"], "on budget" if limit["ok"] else "OVER BUDGET"
            cost, full = said["cost"][metric], said["full_cost"][metric]
            most = f"{math.floor(limit['limit']):,} ({percent(limit['fraction'])} %)"
            lines.append(f"{metric}: {cost:,} of {full:,} ({part_of(cost, full)}), at most {most}: {verdict}")
    for metric in said["not_checked"]:
        lines.append(f"{metric}: not checked, time depends on the machine; fxprune profile {said['net']} measures it")
    for name, far in outcome.differences.items():
        if far is not None and said["equals"] in (None, name):
            verdict = "equal" if said["equals"] == name else "DIFFERENT"
            sizes = " and ".join(map(str, said["batches"]))
            lines.append(f"{_CALLED[name]}: {far:.1e} of the largest output at batch sizes {sizes}: {verdict}")
    if said["problem"] is not None:
        lines.append(f"the net cannot be compared: {said['problem']}")
    return [*lines, f"{said['net']}: {'fine' if said['ok'] else 'NOT FINE'}"]
