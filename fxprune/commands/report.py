"""``fxprune report``: a run as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

from fxprune import __version__
from fxprune.commands.options import Subparsers, check_outside, check_writable, writing
from fxprune.files import write_atomically
from fxprune.report.facts import of_run
from fxprune.report.page import PAGE, render
from fxprune.run.folder import Run

_EPILOG = """examples:
  fxprune report runs/first
  fxprune report runs/first -o first.html"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "report",
        help="write a run as one HTML page",
        description="Write what a run did, or has done so far, as one HTML page that needs nothing else "
        "(docs/how-to/report.md). No code of the run is executed.",
        epilog=_EPILOG,
    )
    parser.add_argument("folder", metavar="RUN", help="the folder of a pruning run")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"where to, instead of RUN/{PAGE}")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    found = Run(options.folder)
    path = found.folder / PAGE if options.output is None else options.output
    check_writable("-o", path, PAGE)
    check_outside("-o", path, found)
    page = render(of_run(found.folder, __version__))
    with writing("-o", path):
        write_atomically(path, page)
    print(f"wrote {path}")
    return 0
