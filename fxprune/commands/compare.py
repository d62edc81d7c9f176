"""``fxprune compare``: entries x budgets x seeds from a TOML file."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from fxprune.commands.config import meant, read_plan
from fxprune.commands.options import parse_budget
from fxprune.commands.user_code import check_options, find, guarded, loaders, network, optimizer, tool, unprinted
from fxprune.compare.display import Display
from fxprune.compare.plan import TEACHER, Job, Plan
from fxprune.compare.pool import Pool, alone, die_with_parent, python
from fxprune.compare.results import (
    FAILED,
    ROWS,
    Result,
    Row,
    append_row,
    read_failed,
    read_rows,
    replace_row,
    rows_of_plan,
    write_rows,
)
from fxprune.compare.tables import write_all
from fxprune.compare.worker import Parts, clear, one, row_file, teacher_file, timed_again
from fxprune.errors import OptionError, RunError
from fxprune.files import write_atomically

HELP = "prune with several methods, budgets and seeds, and lay the results side by side"
DESCRIPTION = (
    "Train a teacher per seed, prune it with every entry to every budget, and write tables and figures "
    "(docs/how-to/compare.md). The code that the file names is run."
)
EPILOG = """examples:
  fxprune compare examples/compare.toml
  fxprune compare examples/compare.toml --jobs 2 --minutes 60
  fxprune compare examples/compare.toml --entries bar --budgets 1/4 --seeds 0
  fxprune compare examples/compare.toml --jobs 2 && fxprune compare examples/compare.toml --time
  fxprune compare examples/compare.toml --tables --out results

What is finished is kept: the same command goes on where it was cut off, in the middle of a run, too."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG.toml", help="what to compare, on which model and data")
    add("--run", dest="folder", metavar="FOLDER", help="where everything is kept, instead of [run] folder")
    add("--jobs", type=int, default=1, metavar="N", help="runs at once, each a process; several get a thread each")
    add("--minutes", type=float, metavar="M", help="start no run after so many minutes")
    add("--entries", nargs="+", metavar="NAME", help="only these now")
    add("--budgets", nargs="+", metavar="B", help="only these now")
    add("--seeds", nargs="+", type=int, metavar="S", help="only these now")
    nothing = parser.add_mutually_exclusive_group().add_argument
    nothing("--time", action="store_true", help="run nothing, take the times of all nets again, one by one")
    nothing("--tables", action="store_true", help="run nothing, write the tables and figures of what is there")
    add("--out", type=Path, metavar="DIR", help="where tables and figures go, instead of the folder")
    add("--json", action="store_true", help="print all rows as JSON")
    add("--one", help=argparse.SUPPRESS)
    add("--threads", type=int, help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    # What the code that the file names prints is not part of the rows.
    quiet = unprinted if options.json else contextlib.nullcontext
    with quiet():
        plan, sections = read_plan(options.config, options.folder)
    if options.one:
        return _one(plan, sections, options)
    chosen = _chosen(plan, options)
    console = Console(stderr=options.json)
    with contextlib.nullcontext() if options.tables else alone(plan.folder):  # tables may be written while it runs
        file = plan.folder / ROWS
        rows = rows_of_plan(file, read_rows(file, repair=not options.tables), plan)
        code = 0
        with quiet():
            if options.time:
                _time(plan, rows, chosen, parts_of(sections), console)
            elif not options.tables:
                _check_targets(plan, sections)
                left = [job for job in chosen if job.key not in rows]
                code = _all(plan, rows, [*_forgotten(plan, rows, left), *left], options, console)
        failed = [row for row in read_failed(plan.folder / FAILED, repair=False) if row["key"] not in rows]
        # As it could be typed again, but tables must not show a path of this machine.
        config = options.config.name if options.config.is_absolute() else options.config.as_posix()
        result = Result(plan, list(rows.values()), failed, f"fxprune compare {config}")
        for line in write_all(result, options.out or plan.folder):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if options.json:
        print(json.dumps(list(rows.values()), indent=2))
    return code


def _time(plan: Plan, rows: dict[str, Row], chosen: list[Job], parts: Parts, console: Console) -> None:
    """One net after the other, in this process."""
    there = [job for job in chosen if job.key in rows and job.entry != TEACHER]
    if not there:
        raise OptionError("there is no net to take the time of", fix="leave --time out: the runs come first")
    for job in track(there, "taking times", console=console, disable=not console.is_terminal):
        try:
            rows[job.key] |= timed_again(plan, job, parts)
        except RunError as error:
            console.print(f"{job.key} keeps the times that it has: {error.cause}", markup=False, highlight=False)
        else:
            replace_row(plan.folder / ROWS, rows[job.key])


def _chosen(plan: Plan, options: argparse.Namespace) -> list[Job]:
    """The runs that are asked for; a name that leads to none is a mistake."""
    for name in options.entries or ():
        if name not in plan.entries:
            raise OptionError(f"--entries: there is no entry {name!r}", fix=meant(name, plan.entries, "entries"))
    for seed in options.seeds or ():
        if seed not in plan.seeds:
            known = ", ".join(map(str, plan.seeds))
            raise OptionError(f"--seeds: {seed} is not one of the config's", fix=f"the seeds are {known}")
    shares = None if options.budgets is None else {parse_budget(text, "--budgets") for text in options.budgets}
    if options.minutes is not None and not 0 <= options.minutes < math.inf:
        raise OptionError(f"--minutes {options.minutes} is not a duration", fix="write --minutes 60, or leave it out")
    if options.jobs < 1:
        raise OptionError(f"--jobs {options.jobs} runs nothing", fix="write --jobs 1")
    chosen = plan.jobs(options.entries, shares, options.seeds)
    if not chosen:
        budgets = list(dict.fromkeys(budget for entry in plan.entries.values() for budget in entry.budgets))
        raise OptionError("no run is left by --entries, --budgets and --seeds", fix=f"budgets: {', '.join(budgets)}")
    return chosen


def _forgotten(plan: Plan, rows: dict[str, Row], left: list[Job]) -> list[Job]:
    """Teachers that have a row, but no weights (rows can be copied from elsewhere), as far as someone needs them."""
    needed = set() if "weights" in plan.teacher else {job.seed for job in left}
    teachers = [job for job in plan.jobs() if job.entry == TEACHER and job.key in rows and job.seed in needed]
    gone = [job for job in teachers if not teacher_file(plan.folder, job.seed).exists()]
    for job in gone:
        del rows[job.key]
    return gone


def _all(plan: Plan, rows: dict[str, Row], left: list[Job], options: argparse.Namespace, console: Console) -> int:
    """Run what is left; ``rows`` grows. 1 if a run failed."""
    file, failed = plan.folder / ROWS, plan.folder / FAILED
    again = {job.key for job in left}
    before = [row for row in read_failed(failed) if row["key"] not in again]
    write_rows(failed, before) if before else failed.unlink(missing_ok=True)
    copied = plan.folder / "config.toml"  # what is edited meanwhile has no effect
    write_atomically(copied, options.config.read_bytes())

    def command(job: Job) -> list[str]:
        threads = ["--threads", "1"] if options.jobs > 1 else []
        return [*python(), "compare", str(copied), "--run", str(plan.folder), "--one", job.key, *threads]

    until = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes
    pool = Pool(plan.folder, command, options.jobs, until=until)
    taught = {seed for seed in plan.seeds if f"{TEACHER}, seed {seed}" in rows}
    bad = 0
    with Display(console, plan, rows, pool, len(left)) as display, contextlib.closing(pool.run(left, taught)) as ended:
        pool.look = display.refresh
        for outcome in ended:
            job, row = outcome.job, outcome.row
            if row is None:
                bad += 1
                facts = {"key": job.key, "entry": job.entry, "budget": job.budget, "seed": job.seed}
                append_row(failed, {**facts, "error": outcome.error})
            else:
                if job.entry != TEACHER:
                    row = {**row, "teacher": rows[f"{TEACHER}, seed {job.seed}"]["accuracy"]}
                append_row(file, row)
                rows[job.key] = row
                clear(plan.folder, job)
            display.ended(outcome)
    for key in [job.key for job in plan.jobs() if job.key in rows]:  # in the order of the plan
        rows[key] = rows.pop(key)
    waiting = len(left) - bad - sum(job.key in rows for job in left)
    if waiting:
        console.print(f"{waiting} of {len(left)} runs were not started: start the same command again", highlight=False)
    return 1 if bad else 0


def _one(plan: Plan, sections: dict[str, Any], options: argparse.Namespace) -> int:
    """A process of a single run: its row goes into a file, whatever else is printed."""
    die_with_parent()
    if options.threads:
        torch.set_num_threads(options.threads)
    job = next((job for job in plan.jobs() if job.key == options.one), None)
    if job is None:
        raise OptionError(f"there is no run {options.one!r}", fix="leave --one out")
    row = one(plan, job, parts_of(sections))
    row_file(plan.folder, job).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(row_file(plan.folder, job), json.dumps(row))
    return 0


def parts_of(sections: dict[str, Any]) -> Parts:
    shared = sections.get("prune", {})
    functions = {name: guarded(name, shared[name]) for name in ("loss", "metric_fn") if name in shared}
    return Parts(lambda: network("model", sections["model"]), loaders, optimizer, tool, functions)


def _check_targets(plan: Plan, sections: dict[str, Any]) -> None:
    """A misspelt name shows now, not after the teachers."""
    find(plan.model["target"], "model")
    find(plan.data["target"], "function")
    find(plan.teacher_data["target"], "function")
    parts_of(sections)
    for entry in plan.entries.values():
        if entry.tool:
            tool(entry.tool)
        for budget in entry.budgets if entry.method else ():
            check_options(str(entry.method), entry.options_at(budget), f'[entries."{entry.name}"] options')
        if entry.optimizer:
            optimizer(entry.optimizer)
    if plan.teacher.get("optimizer"):
        optimizer(plan.teacher["optimizer"])


