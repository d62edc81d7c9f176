"""``fxprune prune``: a run from a TOML file."""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from fxprune.api import prune
from fxprune.commands.config import guarded, loaders, method, network, optimizer, read_config
from fxprune.commands.failures import unprinted
from fxprune.commands.options import Subparsers, parse_budget
from fxprune.errors import OptionError
from fxprune.report.text import percent
from fxprune.train.loop import Pruned
from fxprune.train.reproduce import seed_all

_EPILOG = """examples:
  fxprune prune examples/handwriting.toml
  fxprune prune examples/handwriting.toml --run runs/second --json
  fxprune prune examples/handwriting.toml --resume

Ctrl-C saves, then stops; --resume goes on from there, or from the last checkpoint of a run that was killed."""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "prune",
        help="train a model with gates to a budget, and fine-tune the slim net",
        description="Train a model with gates to a budget, compile the slim net and fine-tune it, as a TOML file says "
        "(docs/how-to/prune.md). The model's and the data's code is run.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG.toml", help="what to prune, on which data, to which budget")
    add("--run", dest="folder", metavar="FOLDER", help="where everything is kept, instead of [run] folder")
    add("--resume", action="store_true", help="go on with the run in the folder; if there is none, start it")
    add("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    config = read_config(options.config)
    folder = options.folder or config["run"].get("folder")
    if not folder:
        raise OptionError("the run has no folder", fix='add --run FOLDER, or under [run]: folder = "runs/first"')
    console = Console(stderr=options.json)
    # What the model's and the data's code prints is not part of the report.
    with unprinted() if options.json else contextlib.nullcontext():
        seed_all(config["prune"].get("seed", 0), "made")  # random weights are the same ones when a run goes on
        arguments = _arguments(config)
        train, val, *_ = loaders(config["data"])
        model = network("model", config["model"])
        made = prune(model, train, val, run=folder, resume=options.resume, progress=console, **arguments)
    print(json.dumps(made.report, indent=2) if options.json else "\n".join(_lines(made)))
    return 0


def _arguments(config: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What [prune], [optimizer] and [teacher] say, as ``fxprune.prune`` takes it."""
    found = dict(config["prune"])
    if isinstance(found["budget"], str):
        found["budget"] = parse_budget(found["budget"], "[prune] budget")
    elif isinstance(found["budget"], dict):
        shares = found["budget"].items()
        found["budget"] = {
            name: parse_budget(share, f"[prune] budget.{name}") if isinstance(share, str) else share
            for name, share in shares
        }
    if "method" in found:
        found["method"] = method(found["method"])
    for name in ("loss", "metric_fn"):
        if name in found:
            found[name] = guarded(name, found[name])
    if found.get("teacher") == "none":
        found["teacher"] = None
    if config["teacher"]:
        if "teacher" in found:
            raise OptionError("there are a section [teacher] and a key teacher in [prune]", fix="keep one of them")
        found["teacher"] = network("teacher", config["teacher"])
    if config["optimizer"]:
        found["optimizer"] = optimizer(config["optimizer"])
    return found


def _lines(made: Pruned) -> list[str]:
    report = made.report
    lines = []
    for metric, share in report["budget"].items():
        cost = report["cost"][metric]
        part = percent(cost["after"] / cost["before"] if cost["before"] else 0)
        lines.append(f"{metric}: {cost['after']:,} of {cost['before']:,} ({part} %), at most {percent(share)} %")
    if made.before is not None and made.after is not None:
        lines.append(f"accuracy: {made.before:.4f} before, {made.after:.4f} after")
    return [*lines, f"wrote {made.run}: slim/, hardened/, report.json, report.html, log.csv"]
