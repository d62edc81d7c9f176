"""``fxprune report``: a run as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

from fxprune.commands.options import check_outside, check_writable, writing
from fxprune.report.page import PAGE, write_page
from fxprune.run.folder import Run

HELP = "write a run as one HTML page"
DESCRIPTION = (
    "Write what a run did, or has done so far, as one HTML page that needs nothing else "
    "(docs/how-to/report.md). No code of the run is executed."
)
EPILOG = """examples:
  fxprune report runs/first
  fxprune report runs/first -o first.html"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", metavar="RUN", help="the folder of a pruning run")
    add("-o", "--output", type=Path, metavar="FILE", help=f"where to, instead of RUN/{PAGE}")


def run(options: argparse.Namespace) -> int:
    pruned = Run(options.folder)
    path = options.output or pruned.folder / PAGE
    check_writable("-o", path, PAGE)
    check_outside("-o", path, pruned)
    with writing("-o", path):
        write_page(pruned.folder, path)
    print(f"wrote {path}")
    return 0
