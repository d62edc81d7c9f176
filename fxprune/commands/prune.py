"""``fxprune prune``: a run from a TOML file."""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from fxprune.api import prune
from fxprune.commands.config import read_config
from fxprune.commands.options import parse_budget
from fxprune.commands.user_code import guarded, loaders, method, network, optimizer, unprinted
from fxprune.errors import OptionError
from fxprune.report.text import part_of, percent
from fxprune.train.loop import Pruned
from fxprune.train.reproduce import seed_all

HELP = "train a model with gates to a budget, and fine-tune the slim net"
DESCRIPTION = (
    "Train a model with gates to a budget, compile the slim net and fine-tune it, as a TOML file says "
    "(docs/how-to/prune.md). The model's and the data's code is run."
)
EPILOG = """examples:
  fxprune prune examples/handwriting.toml
  fxprune prune examples/handwriting.toml --run runs/second --json
  fxprune prune examples/handwriting.toml --resume

Ctrl-C saves, then stops; --resume goes on from there, or from the last checkpoint of a run that was killed."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG.toml", help="what to prune, on which data, to which budget")
    add("--run", dest="folder", metavar="FOLDER", help="where everything is kept, instead of [run] folder")
    add("--resume", action="store_true", help="go on with the run in the folder; if there is none, start it")
    add("--json", action="store_true", help="print the report as JSON")


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
        pruned = prune(model, train, val, run=folder, resume=options.resume, progress=console, **arguments)
    print(json.dumps(pruned.report, indent=2) if options.json else "\n".join(_lines(pruned)))
    return 0


def _arguments(config: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What [prune], [optimizer] and [teacher] say, as ``fxprune.prune`` takes it."""
    arguments = dict(config["prune"])
    budget = arguments["budget"]
    if isinstance(budget, str):
        arguments["budget"] = parse_budget(budget, "[prune] budget")
    elif isinstance(budget, dict):
        texts = {name: share for name, share in budget.items() if isinstance(share, str)}
        parsed = {name: parse_budget(text, f"[prune] budget.{name}") for name, text in texts.items()}
        arguments["budget"] = {**budget, **parsed}
    if "method" in arguments:
        arguments["method"] = method(arguments["method"])
    for name in ("loss", "metric_fn"):
        if name in arguments:
            arguments[name] = guarded(name, arguments[name])
    if arguments.get("teacher") == "none":
        arguments["teacher"] = None
    if config["teacher"]:
        if "teacher" in arguments:
            raise OptionError("there are a section [teacher] and a key teacher in [prune]", fix="keep one of them")
        arguments["teacher"] = network("teacher", config["teacher"])
    if config["optimizer"]:
        arguments["optimizer"] = optimizer(config["optimizer"])
    return arguments


def _lines(pruned: Pruned) -> list[str]:
    lines = []
    for metric, share in pruned.report["budget"].items():
        before, after = (pruned.report["cost"][metric][when] for when in ("before", "after"))
        lines.append(f"{metric}: {after:,} of {before:,} ({part_of(after, before)}), at most {percent(share)} %")
    if pruned.before is not None and pruned.after is not None:
        lines.append(f"accuracy: {pruned.before:.4f} before, {pruned.after:.4f} after")
    return [*lines, f"wrote {pruned.run}: slim/, hardened/, report.json, report.html, log.csv"]
