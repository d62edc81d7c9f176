"""``fxprune inspect``: what of a model can be pruned, what cannot, and why."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, RenderableType

import fxprune
from fxprune.analysis.inspection import Inspection
from fxprune.commands.failures import unprinted
from fxprune.commands.options import (
    DTYPES,
    NARROWEST,
    Subparsers,
    add_model_options,
    check_writable,
    example_of,
    parse_arguments,
    parse_budget,
    parse_inputs,
    writing,
)  # fmt: skip
from fxprune.commands.target import load_model, load_module
from fxprune.files import write_atomically
from fxprune.report.facts import of_inspection
from fxprune.report.page import draw, render
from fxprune.report.terminal import Notes, as_json, collect, foot, head, layer_table, layer_tree

_EPILOG = """examples:
  fxprune inspect torchvision.models:resnet18 --input 1x3x224x224
  fxprune inspect net.py:Net --arg width=32 --input 1x3x32x32 --budget 1/8
  fxprune inspect net.py:Net --input 1x3x32x32 --json > net.json"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "inspect",
        help="show what of a model can be pruned, what cannot, and why",
        description="Show what of a model can be pruned, what it costs, what must stay, and why.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("target", metavar="TARGET", help="package.module:name or path/to/file.py:name, of a model or of what makes one")
    add_model_options(parser)
    add("--ignore", action="append", default=[], metavar="PATTERN", help="convolutions to keep whole; repeatable")
    add("--leaf", action="append", default=[], metavar="PATTERN", help="submodules not to look into; repeatable")
    add("--budget", metavar="1/8", help="say whether this fraction of the full cost can be reached")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print everything as JSON (docs/reference/json.md)")
    shape.add_argument("--tree", action="store_true", help="print a tree by module path instead of a table")
    add("--svg", type=Path, metavar="FILE", help="draw the layer graph, too")
    add("--html", type=Path, metavar="FILE", help="write everything as one HTML page, too (docs/how-to/report.md)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    positional, named = parse_inputs(options.input, DTYPES[options.dtype])
    arguments = parse_arguments(options.arg)
    budget = parse_budget(options.budget) if options.budget is not None else None
    for option, path in (("--svg", options.svg), ("--html", options.html)):
        if path is not None:
            check_writable(option, path, f"net.{option[2:]}")
    with unprinted():  # what the model's code prints is not part of the report
        for module in options.preload:
            load_module(module)
        model = load_model(options.target, arguments)
        seen = fxprune.inspect(model, example_of(model, positional, named), ignore=options.ignore, leaf=options.leaf)
    notes = collect(seen)
    if options.svg is not None:
        _write("--svg", options.svg, draw(seen))
    if options.html is not None:
        _write("--html", options.html, render(of_inspection(seen, fxprune.__version__, budget)))
    if options.json:
        print(as_json(seen, budget))
    else:
        _print(seen, notes, budget, tree=options.tree)
    return 0


def _write(option: str, path: Path, text: str) -> None:
    with writing(option, path):
        write_atomically(path, text)
    print(f"wrote {path}", file=sys.stderr)


def _print(seen: Inspection, notes: Notes, budget: float | None, *, tree: bool) -> None:
    console = Console(markup=False, highlight=False, emoji=False)
    console.width = max(console.width, NARROWEST)
    with console.capture() as captured:
        for part in _parts(seen, notes, budget, tree, console.width):
            console.print(part)
    # Tables fill their last column with blanks.
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _parts(seen: Inspection, notes: Notes, budget: float | None, tree: bool, width: int) -> Iterator[RenderableType]:
    yield from head(seen, budget)
    yield ""
    yield layer_tree(seen, notes) if tree else layer_table(seen, notes, width)
    yield from foot(seen, notes, grains=not tree)
