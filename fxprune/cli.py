"""The ``fxprune`` command: parses, runs a subcommand, and turns every error into a message and an exit code.

Exit codes: 0 done, 1 a check that found something or an error of fxprune itself, 2 an error that the user can mend,
130 interrupted.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from functools import partial

from fxprune import __version__
from fxprune.commands import check, compare, export, inspect, prune
from fxprune.commands.failures import told, where_of
from fxprune.errors import FxPruneError

COMMANDS = (inspect, prune, compare, export, check)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fxprune", description="Structured pruning of PyTorch networks, to a budget.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"fxprune {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    plain = partial(argparse.ArgumentParser, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    subparsers = parser.add_subparsers(  # type: ignore[call-overload]  # it asks for a class, and calls it
        dest="command", metavar="COMMAND", required=True, parser_class=plain
    )
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a name may hold letters that the terminal cannot show
    options = build_parser().parse_args(argv)
    try:
        code: int = options.run(options)
        sys.stdout.flush()  # a reader that went away is noticed here, not while Python shuts down
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except FxPruneError as error:
        if options.traceback:
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        if options.traceback:
            raise
        bug = FxPruneError(
            f"fxprune itself failed: {told(error)}",
            where=where_of(error),
            fix="this is a bug: please report it with what `fxprune --traceback ...` prints",
        )
        print(f"error: {bug}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
