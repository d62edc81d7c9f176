"""``fxprune check``: is a net on budget, and is it a net of this run? For continuous integration."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fxprune.budget.cost import METRICS
from fxprune.budget.target import Target
from fxprune.commands.difference import Comparison, compare, load_candidate, load_references
from fxprune.commands.failures import unprinted
from fxprune.commands.options import parse_budget
from fxprune.count import Count, count
from fxprune.errors import OptionError
from fxprune.report.text import percent
from fxprune.run import HARDENED, SLIM, Run

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

SCHEMA = "fxprune.check/1"
_CALLED = {SLIM: "the run's final net", HARDENED: "the run's hardened net"}
_EPILOG = """exit codes: 0 on budget and equal, 1 not, 2 the check could not be made

examples:
  fxprune check slim --against runs/resnet
  fxprune check slim.onnx --against runs/resnet --budget 1/8 --metric flops --json"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "check",
        help="check that a net is on budget and computes what a run's net computes",
        description="Check that a saved net or an ONNX file is on budget, counted while it runs, and that it computes "
        "what the final or the hardened net of a run computes. A saved net's source is run: check what you trust.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("net", type=Path, metavar="SLIM", help="a folder that fxprune wrote, or an .onnx file")
    add("--against", required=True, metavar="RUN", help="the folder of the pruning run")
    add("--budget", metavar="1/8", help="fraction of the full cost (default: the run's budget)")
    add("--metric", choices=METRICS, help="what --budget is about (default: what the run's is about)")
    add("--tolerance", type=float, default=1e-4, metavar="X", help="of the largest output (default: 1e-4)")
    add("--json", action="store_true", help="print the result as JSON (docs/reference/json.md)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    found = Run(options.against)
    target = _target(options, found)
    if not (math.isfinite(options.tolerance) and options.tolerance > 0):
        raise OptionError(f"--tolerance {options.tolerance} is no tolerance", fix="write --tolerance 1e-4")
    with unprinted():  # what a net's code prints is not part of the report
        nets, dtype = load_references(found)
        candidate = load_candidate(options.net, dtype)
        outcome = compare(candidate.call, nets, found, dtype)
        args, kwargs = found.example(dtype=dtype)
        cost = candidate.count(*args, **kwargs) if outcome.problem is None else None
        own = count(nets[SLIM], *found.example(dtype=dtype)) if SLIM in nets else None
    far = {name: value for name, value in outcome.differences.items() if value is not None}
    equals = next((name for name, value in far.items() if value <= options.tolerance), None)
    folded = _folded(cost, own) if cost and own and equals else 0
    costs = {metric: getattr(cost, metric) - folded * (metric == "params") for metric in METRICS} if cost else None
    budget = [_limit(metric, fraction, costs, found) for metric, fraction in target.limits if metric in METRICS]
    said: dict[str, Any] = {
        "schema": SCHEMA,
        "net": str(options.net),
        "run": str(found.folder),
        "ok": equals is not None and all(limit["ok"] for limit in budget),
        "cost": costs,
        "folded_biases": folded,
        "full_cost": {metric: found.full_cost[metric] for metric in METRICS},
        "budget": budget,
        "not_checked": [metric for metric, _ in target.limits if metric not in METRICS],
        "equals": equals,
        # JSON has no infinity: that is null, as is the difference of a net that failed.
        "differences": {k: v if v is not None and math.isfinite(v) else None for k, v in outcome.differences.items()},
        "tolerance": options.tolerance,
        "batches": outcome.batches,
        "problem": outcome.problem,
    }
    print(json.dumps(said, indent=2, allow_nan=False) if options.json else "\n".join(_lines(said, outcome)))
    return 0 if said["ok"] else 1


def _target(options: argparse.Namespace, found: Run) -> Target:
    own = dict(found.target.limits)
    if options.budget is None:
        if options.metric is None:
            return found.target
        if options.metric not in own:
            raise OptionError(f"the run has no budget of {options.metric}", fix="say it: --budget 1/8")
        return Target.of(own[options.metric], options.metric)
    if options.metric is None and len(own) > 1:
        raise OptionError(f"the run has budgets of {', '.join(own)}", fix=f"say which: --metric {next(iter(own))}")
    return Target.of(parse_budget(options.budget), options.metric or next(iter(own)))


def _folded(cost: Count, own: Count) -> int:
    """Biases beyond those of the run's net stand for batch norms, whose parameters are not counted either.

    Only a net that computes the same as the run's is granted this.
    """
    return max(0, cost.biases - own.biases)


def _limit(metric: str, fraction: float, costs: dict[str, int] | None, found: Run) -> dict[str, Any]:
    limit = fraction * found.full_cost[metric]
    # A limit that is a whole number may come out a rounding error below it.
    fits = costs is not None and costs[metric] <= limit * (1 + 1e-12)
    return {"metric": metric, "fraction": fraction, "limit": limit, "ok": fits}


def _lines(said: dict[str, Any], outcome: Comparison) -> list[str]:
    lines = []
    if said["cost"] is not None:
        for limit in said["budget"]:
            metric = limit["metric"]
            cost, full = said["cost"][metric], said["full_cost"][metric]
            verdict = "on budget" if limit["ok"] else "OVER BUDGET"
            share, most = (
                percent(cost / full if full else 0),
                f"{math.floor(limit['limit']):,} ({percent(limit['fraction'])} %)",
            )
            lines.append(f"{metric}: {cost:,} of {full:,} ({share} %), at most {most}: {verdict}")
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
