"""The TOML file of ``fxprune prune``: read, and every key checked before anything is done."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fxprune.emit.files import as_path
from fxprune.errors import OptionError

_NUMBER = (int, float)
_MODEL: dict[str, Any] = {"target": str, "arguments": dict, "weights": str}
KEYS: dict[str, dict[str, Any]] = {
    "model": _MODEL,
    "data": {"target": str, "arguments": dict},
    "teacher": _MODEL,
    "optimizer": {"target": str, "arguments": dict},
    "prune": {
        "budget": (*_NUMBER, str, dict), "metric": str, "epochs": list, "method": str, "method_options": dict,
        "teacher": str, "loss": str,
        "metric_fn": str, "alpha": _NUMBER, "temperature": _NUMBER, "ignore": list, "leaf": list, "noise": str,
        "schedule": str, "seed": int, "checkpoint_minutes": _NUMBER, "device": str,
        "batch_size": int,
    },
    "run": {"folder": str},
}  # fmt: skip
REQUIRED = {"model": "target", "data": "target", "prune": "budget"}
_EXAMPLE = {
    "model": 'target = "models.py:resnet8"',
    "data": 'target = "data.py:loaders"',
    "prune": 'budget = "1/8"',
}
_WORDS = {int: "a whole number", float: "a number", str: "a text", dict: "a table", list: "a list"}


def read_config(path: Path) -> dict[str, dict[str, Any]]:
    """Section -> key -> value; sections that are left out are empty."""
    found = read_toml(path)
    if "compare" in found:
        raise OptionError(f"{path} describes a comparison", fix=f"fxprune compare {path}")
    for section, table in found.items():
        check_keys(path, section, table, KEYS.get(section), KEYS)
    for section, key in REQUIRED.items():
        if key not in found.get(section, {}):
            missing = f"key {key!r} in [{section}]" if section in found else f"section [{section}]"
            raise OptionError(f"{path} has no {missing}", fix=f"add under [{section}]: {_EXAMPLE[section]}")
    return {section: found.get(section, {}) for section in KEYS}


def read_toml(path: Path) -> dict[str, Any]:
    """What is in a file, not checked."""
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        reader = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise OptionError("Python 3.10 cannot read TOML by itself", fix="pip install tomli") from error
    try:
        found: dict[str, Any] = reader.loads(as_path(path, "config").read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}", fix="name a TOML file") from error
    except (ValueError, RecursionError) as error:  # of TOML, or of UTF-8
        raise OptionError(f"{path} is not TOML: {error}", fix='write lines [section] and key = "value"') from error
    return found


def check_keys(path: Path, section: str, table: Any, keys: dict[str, Any] | None, sections: Iterable[str]) -> None:
    """Whether a section is one of ``sections``, and holds nothing but ``keys`` of the right kinds."""
    if keys is not None and not isinstance(table, dict):
        got = _WORDS.get(type(table), "something else")
        raise OptionError(f"{path}: {section} is {got}, not a section", fix=f"write [{section}], and its keys below it")
    if keys is None:
        what = f"section [{section}]" if isinstance(table, dict) else f"key {section!r} outside any section"
        raise OptionError(f"{path}: there is no {what}", fix=near(section, sections, "sections"))
    for key, value in table.items():
        if key not in keys:
            raise OptionError(f"{path}: [{section}] has no key {key!r}", fix=near(key, keys, "keys"))
        kinds = keys[key] if isinstance(keys[key], tuple) else (keys[key],)
        if not isinstance(value, kinds) or isinstance(value, bool):
            wanted = " or ".join(_WORDS[kind] for kind in kinds if kind is not int or float not in kinds)
            got = _WORDS.get(type(value), "something else")
            fix = f"write {wanted}" + (": epochs = [80, 40, 10]" if key == "epochs" else "")
            raise OptionError(f"{path}: {key} in [{section}] is {got}", fix=fix)


def near(name: str, known: Iterable[str], what: str) -> str:
    """A guess at what was meant, or what there is."""
    found = get_close_matches(name, list(known), n=1)
    return f"did you mean {found[0]}?" if found else f"the {what} are {', '.join(known)}"
