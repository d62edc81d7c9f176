"""``fxprune inspect``: what of a model can be pruned, what cannot, and why."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import fxprune
from fxprune.analysis.inspection import Inspection
from fxprune.commands.options import add_model_options, check_writable, model_and_example, parse_budget, writing
from fxprune.commands.user_code import unprinted
from fxprune.files import write_atomically
from fxprune.report.facts import of_inspection
from fxprune.report.page import draw, render
from fxprune.report.terminal import as_json, collect, foot, head, layer_table, layer_tree, plain_console

HELP = "show what of a model can be pruned, what cannot, and why"
DESCRIPTION = "Show what of a model can be pruned, what it costs, what must stay, and why."
EPILOG = """examples:
  fxprune inspect torchvision.models:resnet18 --input 1x3x224x224
  fxprune inspect net.py:Net --arg width=32 --input 1x3x32x32 --budget 1/8
  fxprune inspect net.py:Net --input 1x3x32x32 --json > net.json"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("target", metavar="TARGET", help="package.module:name or path/to/file.py:name, of a model or of what makes one")
    add_model_options(parser)
    add("--ignore", action="append", default=[], metavar="PATTERN", help="layers to keep whole; repeatable")
    add("--leaf", action="append", default=[], metavar="PATTERN", help="submodules not to look into; repeatable")
    add("--budget", metavar="1/8", help="say whether this fraction of the full cost can be reached")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print everything as JSON (docs/reference/json.md)")
    shape.add_argument("--tree", action="store_true", help="print a tree by module path instead of a table")
    add("--svg", type=Path, metavar="FILE", help="draw the layer graph, too")
    add("--html", type=Path, metavar="FILE", help="write everything as one HTML page, too (docs/how-to/report.md)")


def run(options: argparse.Namespace) -> int:
    budget = parse_budget(options.budget) if options.budget is not None else None
    for option, path in (("--svg", options.svg), ("--html", options.html)):
        if path is not None:
            check_writable(option, path, f"net.{option[2:]}")
    with unprinted():  # what the model's code prints is not part of the report
        model, example = model_and_example(options, options.target)
        seen = fxprune.inspect(model, example, ignore=options.ignore, leaf=options.leaf)
    if options.svg is not None:
        _write("--svg", options.svg, draw(seen))
    if options.html is not None:
        _write("--html", options.html, render(of_inspection(seen, budget)))
    if options.json:
        print(as_json(seen, budget))
    else:
        _print(seen, budget, tree=options.tree)
    return 0


def _write(option: str, path: Path, text: str) -> None:
    with writing(option, path):
        write_atomically(path, text)
    print(f"wrote {path}", file=sys.stderr)


def _print(seen: Inspection, budget: float | None, *, tree: bool) -> None:
    console, notes = plain_console(), collect(seen)
    layers = layer_tree(seen, notes) if tree else layer_table(seen, notes, console.width)
    with console.capture() as captured:
        for part in (*head(seen, budget), "", layers, *foot(seen, notes, grains=not tree)):
            console.print(part)
    # Tables fill their last column with blanks.
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))
