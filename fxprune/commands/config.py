"""The TOML files of ``fxprune prune`` and ``fxprune compare``: read, and every key checked before anything is done."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from fxprune.api import prune
from fxprune.commands.options import parse_budget
from fxprune.commands.user_code import method as find_method
from fxprune.commands.user_code import near
from fxprune.compare.plan import STARTS, TEACHER, Entry, Plan
from fxprune.errors import OptionError, check_choice
from fxprune.files import as_path
from fxprune.methods import METHODS
from fxprune.train.settings import CHOICES, are_epochs

Table = dict[str, Any]
# How TOML writes an argument of a type; one of any other type (a function, a module) is given as a text, by name
_KINDS: dict[Any, tuple[type, ...]]
_KINDS = {str: (str,), int: (int,), float: (int, float), Sequence: (list,), Mapping: (dict,)}
_WORDS = {int: "a whole number", float: "a number", str: "a text", dict: "a table", list: "a list"}


def _kinds(hint: Any) -> tuple[type, ...]:
    """
    >>> _kinds(float | str | None), _kinds(Sequence[int]), _kinds(Path | None)
    ((<class 'int'>, <class 'float'>, <class 'str'>), (<class 'list'>,), (<class 'str'>,))
    """
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(kind for part in parts for kind in _KINDS.get(get_origin(part) or part, ())) or (str,)


def in_words(kinds: Any) -> str:
    """
    >>> in_words((int, float, str)), in_words(list)
    ('a number or a text', 'a list')
    """
    each = kinds if isinstance(kinds, tuple) else (kinds,)
    return " or ".join(_WORDS[kind] for kind in each if kind is not int or float not in each)


_ELSEWHERE = ("optimizer", "run", "resume", "example_inputs", "progress")  # in sections of their own, or not for TOML
_PARAMETERS = inspect.signature(prune, eval_str=True).parameters
_PRUNE: Table = {
    name: _kinds(parameter.annotation) for name, parameter in _PARAMETERS.items()
    if parameter.kind is parameter.KEYWORD_ONLY and name not in _ELSEWHERE
}  # fmt: skip
_MODEL: Table = {"target": str, "arguments": dict, "weights": str}
_CALL: Table = {"target": str, "arguments": dict}
PRUNE_KEYS: dict[str, Table] = {
    "model": _MODEL, "data": _CALL, "teacher": _MODEL, "optimizer": _CALL, "prune": _PRUNE, "run": {"folder": str},
}  # fmt: skip

_COMPARED = ("budget", "seed", "method", "method_options")  # that differ from entry to entry
_SHARED = {key: kind for key, kind in _PRUNE.items() if key not in _COMPARED}
ENTRY_KEYS: Table = {
    **{key: kind for key, kind in _SHARED.items() if key not in ("loss", "metric_fn", "device")},
    "method": str, "tool": str, "budgets": list, "optimizer": dict, "options": dict, "start": str,
}  # fmt: skip
COMPARE_KEYS: dict[str, Table] = {
    "model": _MODEL, "data": _CALL, "teacher": {"epochs": list, "weights": str, "data": dict, "optimizer": dict},
    "optimizer": _CALL, "prune": _SHARED,
    "compare": {"budgets": list, "seeds": list, "methods": list, "reference": str}, "entries": {},
    "run": {"folder": str},
}  # fmt: skip
# Settings whose defaults are written into rows. With more of them, rows written before would count as other settings.
_DEFAULTS = ("metric", "epochs", "alpha", "temperature", "noise", "schedule", "teacher")
_EXAMPLE = {
    "model": 'target = "models.py:resnet8"',
    "data": 'target = "data.py:loaders"',
    "prune": 'budget = "1/8"',
    "compare": 'budgets = ["1/2", "1/8"], seeds = [0, 1, 2], methods = ["bar", "wm"]',
}


def read_config(path: Path) -> dict[str, Table]:
    """Section -> key -> value; sections that are left out are empty."""
    config = _read_toml(path)
    if "compare" in config:
        raise OptionError(f"{path} describes a comparison", fix=f"fxprune compare {path}")
    _check_sections(path, config, PRUNE_KEYS)
    _check_required(path, config, "prune", ("budget",))
    return {section: config.get(section, {}) for section in PRUNE_KEYS}


def read_plan(path: Path, folder: str | None) -> tuple[Plan, Table]:
    """The plan, and the sections as they were written; ``folder`` takes the place of [run] folder."""
    config = _read_toml(path)
    if "compare" not in config and "budget" in config.get("prune", {}):
        raise OptionError(f"{path} describes one run", fix=f"fxprune prune {path}")
    _check_sections(path, config, COMPARE_KEYS)
    _check_required(path, config, "compare", ("budgets", "seeds"))
    place = folder or config.get("run", {}).get("folder")
    if not place:
        raise OptionError("the comparison has no folder", fix='add --run FOLDER, or under [run]: folder = "runs/first"')
    compared = config["compare"]
    entries = _entries(config)
    reference = compared.get("reference", next(iter(entries)))
    if reference not in entries:
        raise OptionError(f"[compare] reference {reference!r} is no entry", fix=meant(reference, entries, "entries"))
    teacher, seeds = _teacher(config.get("teacher", {})), _seeds(compared["seeds"])
    return Plan(entries, seeds, reference, config["model"], config["data"], teacher, Path(place)), config


# ---------------------------------------------------------------- files, sections and keys


def _read_toml(path: Path) -> Table:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        reader = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise OptionError("Python 3.10 cannot read TOML by itself", fix="pip install tomli") from error
    try:
        config: Table = reader.loads(as_path(path, "config").read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}", fix="name a TOML file") from error
    except (ValueError, RecursionError) as error:  # of TOML, or of UTF-8
        raise OptionError(f"{path} is not TOML: {error}", fix='write lines [section] and key = "value"') from error
    return config


def _check_required(path: Path, config: Table, what: str, keys: tuple[str, ...]) -> None:
    """Whether there are a model, data, and the ``keys`` of the section that says ``what`` is done."""
    for section, key in [("model", "target"), ("data", "target"), *((what, key) for key in keys)]:
        if key not in config.get(section, {}):
            missing = f"key {key!r} in [{section}]" if section in config else f"section [{section}]"
            raise OptionError(f"{path} has no {missing}", fix=f"add under [{section}]: {_EXAMPLE[section]}")


def _check_sections(path: Path, config: Table, sections: dict[str, Table]) -> None:
    for section, table in config.items():
        if section not in sections:
            what = f"section [{section}]" if isinstance(table, dict) else f"key {section!r} outside any section"
            raise OptionError(f"{path}: there is no {what}", fix=meant(section, sections, "sections"))
        if section == "entries" and isinstance(table, dict):
            for name, entry in table.items():
                _check_keys(path, f'entries."{name}"', entry, ENTRY_KEYS)
        else:
            _check_keys(path, section, table, sections[section])


def _check_keys(path: Path, section: str, table: Any, keys: Table) -> None:
    """Whether a section is a table of these keys, and their values are of the right kinds."""
    if not isinstance(table, dict):
        got = _WORDS.get(type(table), "something else")
        raise OptionError(f"{path}: {section} is {got}, not a section", fix=f"write [{section}], and its keys below it")
    for key, value in table.items():
        if key not in keys:
            fix = meant(key, keys, "keys")
            if keys is _SHARED and key in ("budget", "seed", "method"):
                fix = "budgets, seeds and methods are what is compared: write them under [compare]"
            raise OptionError(f"{path}: [{section}] has no key {key!r}", fix=fix)
        if not isinstance(value, keys[key]) or isinstance(value, bool):
            got = _WORDS.get(type(value), "something else")
            fix = f"write {in_words(keys[key])}" + (": epochs = [80, 40, 10]" if key == "epochs" else "")
            raise OptionError(f"{path}: {key} in [{section}] is {got}", fix=fix)
        if key in ("data", "optimizer"):
            _check_keys(path, f"{section}.{key}", value, _CALL)


def meant(name: str, known: Iterable[str], what: str) -> str:
    """A guess at what was meant, or what there is."""
    return near(name, known, f"the {what} are {', '.join(known)}", most=1)


# ---------------------------------------------------------------- what is compared


def _seeds(seeds: list[Any]) -> tuple[int, ...]:
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise OptionError(f"[compare] seed {seed!r} is not a whole number", fix="write seeds = [0, 1, 2]")
    if not seeds:
        raise OptionError("[compare] seeds are empty", fix="write seeds = [0, 1, 2]")
    if len(set(seeds)) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise OptionError(f"[compare] seed {twice} is there twice", fix="it would be the same run: write it once")
    return tuple(seeds)


def _budgets(budgets: list[Any], where: str) -> dict[str, float]:
    shares: dict[str, float] = {}
    for budget in budgets:
        share = parse_budget(str(budget), f"{where} budgets")
        if share in shares.values():
            raise OptionError(f"{where} has the budget {budget} twice", fix="write it once")
        shares[str(budget)] = share
    if not shares:
        raise OptionError(f"{where} budgets are empty", fix='write budgets = ["1/2", "1/8"]')
    return shares


def _entries(config: Table) -> dict[str, Entry]:
    tables = config.get("entries", {})
    entries: dict[str, Entry] = {}
    for method in map(str, config["compare"].get("methods", [])):
        if method in entries or method in tables:
            raise OptionError(f"the entry {method!r} is there twice", fix="give one of them another name")
        entries[method] = _entry(config, method, {"method": method}, "[compare] methods")
    for name, table in tables.items():
        entries[name] = _entry(config, name, table, f'[entries."{name}"]')
    if not entries:
        raise OptionError("there is nothing to compare", fix='under [compare]: methods = ["bar", "wm"]')
    if TEACHER in entries:
        raise OptionError(f"an entry cannot be named {TEACHER!r}", fix="give it another name")
    return entries


def _entry(config: Table, name: str, table: Table, where: str) -> Entry:
    own = dict(table)
    method, tool = own.pop("method", None), own.pop("tool", None)
    if (method is None) == (tool is None):
        raise OptionError(
            f"{where} has {'no method and no tool' if method is None else 'a method and a tool'}",
            fix='write method = "bar", or tool = "tools.py:function"',
        )
    if method is not None and find_method(method) not in METHODS:
        raise OptionError(f"{where}: there is no method {method!r}", fix=meant(method, METHODS, "methods"))
    given = own.pop("budgets", None)
    budgets = _budgets(config["compare"]["budgets"], "[compare]") if given is None else _budgets(given, where)
    optimizer, options = own.pop("optimizer", config.get("optimizer", {})), own.pop("options", {})
    start = own.pop("start", STARTS[0])
    check_choice(f"{where} start", start, STARTS)
    settings = {**{key: _PARAMETERS[key].default for key in _DEFAULTS}, **config.get("prune", {}), **own}
    for key, choices in {**CHOICES, "teacher": ("self", "none")}.items():  # before teachers are trained
        check_choice(f"{where} {key}", settings[key], choices)
    settings["epochs"] = _whole(settings["epochs"], 3, f"{where} epochs", "[80, 40, 10]")
    return Entry(name, method, tool, budgets, settings, optimizer, options, start)


def _teacher(table: Table) -> Table:
    if ("epochs" in table) == ("weights" in table):
        raise OptionError(
            "[teacher] has both epochs and weights" if table.get("weights") else "[teacher] has no epochs",
            fix='write epochs = [12, 4] to train teachers, or weights = "teachers/{seed}.pt"',
        )
    if "epochs" in table:
        _whole(table["epochs"], 2, "[teacher] epochs", "[12, 4]")
    return table


def _whole(epochs: Any, many: int, where: str, example: str) -> list[int]:
    if not are_epochs(epochs, many):
        raise OptionError(f"{where}: {epochs!r} are not {many} numbers of epochs", fix=f"write epochs = {example}")
    return list(epochs)
