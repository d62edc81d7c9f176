"""The TOML file of ``fxprune compare``: read, checked, and turned into a plan before anything is trained."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from fxprune.api import prune
from fxprune.commands import config as prune_config
from fxprune.commands.config import check_keys, near
from fxprune.commands.options import parse_budget
from fxprune.compare.plan import STARTS, TEACHER, Entry, Plan
from fxprune.cost.model import LATENCY, METRICS
from fxprune.errors import OptionError, check_choice
from fxprune.gated.bank import NOISES
from fxprune.gated.barrier import SCHEDULES
from fxprune.methods import METHODS
from fxprune.train.settings import are_epochs

_DATA: dict[str, Any] = {"target": str, "arguments": dict}
_EACH = ("budget", "seed", "method", "method_options")  # what entries differ in
_SHARED = {key: kind for key, kind in prune_config.KEYS["prune"].items() if key not in _EACH}
_OWN: dict[str, Any] = {"method": str, "tool": str, "budgets": list, "optimizer": dict, "options": dict, "start": str}
KEYS: dict[str, dict[str, Any]] = {
    "model": prune_config.KEYS["model"],
    "data": _DATA,
    "teacher": {"epochs": list, "weights": str, "data": dict, "optimizer": dict},
    "optimizer": _DATA,
    "prune": _SHARED,
    "compare": {"budgets": list, "seeds": list, "methods": list, "reference": str},
    "entries": {},
    "run": {"folder": str},
}
_ENTRY = {**{key: kind for key, kind in _SHARED.items() if key not in ("loss", "metric_fn", "device")}, **_OWN}
_DEFAULTS = ("metric", "epochs", "alpha", "temperature", "noise", "schedule", "teacher")  # of fxprune.prune
Table = dict[str, Any]


def read_plan(path: Path, folder: str | None) -> tuple[Plan, Table]:
    """The plan, and the sections as they were written; ``folder`` takes the place of [run] folder."""
    found = prune_config.read_toml(path)
    if "compare" not in found and "budget" in found.get("prune", {}):
        raise OptionError(f"{path} describes one run", fix=f"fxprune prune {path}")
    for section, table in found.items():
        if section != "entries" or not isinstance(table, dict):
            _check_keys(path, section, table, KEYS.get(section))
    for name, table in found.get("entries", {}).items():
        _check_keys(path, f'entries."{name}"', table, _ENTRY)
    prune_config.check_required(path, found, "compare", ("budgets", "seeds"))
    kept = folder or found.get("run", {}).get("folder")
    if not kept:
        raise OptionError("the comparison has no folder", fix='add --run FOLDER, or under [run]: folder = "runs/first"')
    compared = found["compare"]
    entries = _entries(found)
    reference = compared.get("reference", next(iter(entries)))
    if reference not in entries:
        raise OptionError(f"[compare] reference {reference!r} is no entry", fix=near(reference, entries, "entries"))
    teacher = _teacher(found.get("teacher", {}))
    return Plan(
        entries, _seeds(compared["seeds"]), reference, found["model"], found["data"], teacher, Path(kept)
    ), found  # fmt: skip


def _check_keys(path: Path, section: str, table: Any, keys: Table | None) -> None:
    if isinstance(table, dict) and section == "prune":
        for key in {"budget", "seed", "method"}.intersection(table):
            hint = "budgets, seeds and methods are what is compared: write them under [compare]"
            raise OptionError(f"{path}: [{section}] has no key {key!r}", fix=hint)
    check_keys(path, section, table, keys, KEYS)
    for key in ("data", "optimizer") if section == "teacher" or section.startswith("entries.") else ():
        if key in table:
            check_keys(path, f"{section}.{key}", table[key], _DATA, KEYS)


def _seeds(given: list[Any]) -> tuple[int, ...]:
    for seed in given:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise OptionError(f"[compare] seed {seed!r} is not a whole number", fix="write seeds = [0, 1, 2]")
    if not given:
        raise OptionError("[compare] seeds are empty", fix="write seeds = [0, 1, 2]")
    if len(set(given)) < len(given):
        twice = next(seed for seed in given if given.count(seed) > 1)
        raise OptionError(f"[compare] seed {twice} is there twice", fix="it would be the same run: write it once")
    return tuple(given)


def _budgets(given: list[Any], where: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for budget in given:
        share = parse_budget(str(budget), f"{where} budgets")
        if share in found.values():
            raise OptionError(f"{where} has the budget {budget} twice", fix="write it once")
        found[str(budget)] = share
    if not found:
        raise OptionError(f"{where} budgets are empty", fix='write budgets = ["1/2", "1/8"]')
    return found


def _entries(found: Table) -> dict[str, Entry]:
    compared, tables = found["compare"], found.get("entries", {})
    methods = compared.get("methods", [])
    made: dict[str, Entry] = {}
    for method in map(str, methods):
        if method in made or method in tables:
            raise OptionError(f"the entry {method!r} is there twice", fix="give one of them another name")
        made[method] = _entry(found, method, {"method": method}, "[compare] methods")
    for name, table in tables.items():
        made[name] = _entry(found, name, table, f'[entries."{name}"]')
    if not made:
        raise OptionError("there is nothing to compare", fix='under [compare]: methods = ["bar", "wm"]')
    if TEACHER in made:
        raise OptionError(f"an entry cannot be named {TEACHER!r}", fix="give it another name")
    return made


def _entry(found: Table, name: str, table: Table, where: str) -> Entry:
    own = dict(table)
    method, tool = own.pop("method", None), own.pop("tool", None)
    if (method is None) == (tool is None):
        raise OptionError(
            f"{where} has {'no method and no tool' if method is None else 'a method and a tool'}",
            fix='write method = "bar", or tool = "tools.py:function"',
        )
    if method is not None and prune_config.method(method) not in METHODS:
        raise OptionError(f"{where}: there is no method {method!r}", fix=near(method, METHODS, "methods"))
    given = own.pop("budgets", None)
    budgets = _budgets(found["compare"]["budgets"] if given is None else given, "[compare]" if given is None else where)
    optimizer, options = own.pop("optimizer", found.get("optimizer", {})), own.pop("options", {})
    parameters = inspect.signature(prune).parameters
    defaults = {key: parameters[key].default for key in _DEFAULTS}
    start = own.pop("start", STARTS[0])
    check_choice(f"{where} start", start, STARTS)
    settings = {**defaults, **found.get("prune", {}), **own}
    _check_values(settings, where)
    return Entry(name, method, tool, budgets, settings, optimizer, options, start)


def _check_values(settings: Table, where: str) -> None:
    """What would only show when the teachers are trained."""
    choices = {"metric": (*METRICS, LATENCY), "noise": NOISES, "schedule": SCHEDULES, "teacher": ("self", "none")}
    for key, known in choices.items():
        check_choice(f"{where} {key}", settings[key], known)
    settings["epochs"] = _whole(settings["epochs"], 3, f"{where} epochs", "[80, 40, 10]")


def _teacher(table: Table) -> Table:
    if ("epochs" in table) == ("weights" in table):
        raise OptionError(
            "[teacher] has both epochs and weights" if table.get("weights") else "[teacher] has no epochs",
            fix='write epochs = [12, 4] to train teachers, or weights = "teachers/{seed}.pt"',
        )
    if "epochs" in table:
        _whole(table["epochs"], 2, "[teacher] epochs", "[12, 4]")
    return table


def _whole(given: Any, many: int, where: str, example: str) -> list[int]:
    if not are_epochs(given, many):
        raise OptionError(f"{where}: {given!r} are not {many} numbers of epochs", fix=f"write epochs = {example}")
    return list(given)
