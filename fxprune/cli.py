"""The ``fxprune`` command: parses, runs a subcommand, and turns every error into a message and an exit code.

Exit codes: 0 done, 1 a check that found something or an error of fxprune itself, 2 an error that the user can fix,
130 interrupted, 143 terminated.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from fxprune import __version__
from fxprune.commands import check, compare, cut, demo, export, inspect, profile, prune, report
from fxprune.commands.user_code import where_of
from fxprune.errors import FxPruneError, named
from fxprune.files import reason

COMMANDS = (demo, inspect, cut, prune, report, compare, profile, export, check)


class Parser(argparse.ArgumentParser):
    """Reports usage errors in the form of all other errors."""

    commands: dict[str, Parser]  # name -> the parser of that command; set on the main parser

    def error(self, message: str) -> NoReturn:
        fix = f"{self.prog} --help shows how it is written"
        told, _, choices = message.partition(" (choose from ")
        near = get_close_matches(told.rpartition(" ")[2].strip("'"), re.findall(r"[\w-]+", choices), n=1)
        message, fix = (told, f"did you mean {near[0]}?") if near else (message, fix)
        self.exit(2, f"error: {FxPruneError(message, fix=fix)}\n")

    def unknown(self, command: str, words: Sequence[str]) -> NoReturn:
        """Report words that the command does not take."""
        own = self.commands[command]
        if words[0] in self._option_string_actions:
            own.error(f"{words[0]} goes before the command: fxprune {words[0]} {command}")
        near = get_close_matches(words[0], own._option_string_actions, n=1)
        own.error(f"{own.prog} does not know {' '.join(words)}" + (f": did you mean {near[0]}?" if near else ""))


def build_parser() -> Parser:
    described = "Structured pruning of PyTorch networks, to a budget."
    parser = Parser(prog="fxprune", description=described, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"fxprune {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        own = subparsers.add_parser(
            command.__name__.rpartition(".")[2],
            help=command.HELP,
            description=command.DESCRIPTION,
            epilog=command.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_options(own)
        own.set_defaults(run=command.run)
    parser.commands = subparsers.choices
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a name may hold letters that the terminal cannot show
    parser = build_parser()
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.unknown(options.command, unknown)
    try:
        code: int = options.run(options)
        if sys.stdout is not None:
            sys.stdout.flush()  # a closed pipe must raise here, not while Python shuts down
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _forget_output()
        return 1
    except BaseException as error:
        if options.traceback or (isinstance(error, SystemExit) and error.code == 128 + signal.SIGTERM):
            raise
        if isinstance(error, OSError):
            _forget_output()  # what could not be written would be tried again at exit
        code, said = explained(error)
        print(f"error: {said}", file=sys.stderr)
        return code


def explained(error: BaseException) -> tuple[int, FxPruneError]:
    """The exit code, and the error to print."""
    if isinstance(error, FxPruneError):
        return 2, error
    if isinstance(error, OSError):  # files and disks are the user's
        whose = f"{error.filename}: " if error.filename is not None else ""
        return 2, FxPruneError(f"{whose}{reason(error)}", where=where_of(error), fix="mend that, and try again")
    if isinstance(error, SystemExit):
        where = where_of(error)
        return 2, FxPruneError(f"code that was run exits: {named(error)}", where=where, fix="take the exit out of it")
    return 1, FxPruneError(
        f"fxprune itself failed: {named(error)}",
        where=where_of(error),
        fix="this is a bug: please report it with what `fxprune --traceback ...` prints",
    )


def _forget_output() -> None:
    """Python would write the rest of it while it shuts down, and fail once more."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        out = sys.__stdout__
        if out is not None and out is sys.stdout:
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


if __name__ == "__main__":
    sys.exit(main())
