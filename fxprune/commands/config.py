"""The TOML file of ``fxprune prune``: read, every key checked before anything is done, and what it names (networks,
loaders, optimizers, functions) found."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import torch
from torch import nn

from fxprune.api import prune
from fxprune.commands.failures import blamed
from fxprune.commands.target import called, failed, find, load_model
from fxprune.errors import OptionError, TargetError, named
from fxprune.files import as_path, load_tensors
from fxprune.methods import METHODS, Method, register
from fxprune.train.search import SEARCH


def network(section: str, table: dict[str, Any]) -> nn.Module:
    """The model that a section names, with its weights."""
    if "target" not in table:
        raise OptionError(f"[{section}] has no target", fix='write target = "models.py:resnet8"')
    net = load_model(table["target"], table.get("arguments", {}), f"[{section}] arguments")
    if "weights" in table:
        try:
            net.load_state_dict(load_tensors(table["weights"]))
        except Exception as error:  # there are many ways for a file not to fit
            raise TargetError(
                f"the weights {table['weights']} cannot be loaded into {table['target']}: {named(error)}",
                fix="name a file that torch.save(model.state_dict(), file) wrote",
            ) from error
    return net


def loaders(table: dict[str, Any]) -> tuple[Any, ...]:
    """For training, for validation and, perhaps, for the test at the end."""
    target = table["target"]
    function = find(target, "function")
    if not callable(function):
        raise TargetError(f"{target} is not a function", fix="name one that returns (train, val, test) loaders")
    made = called(target, function, table.get("arguments", {}), "[data] arguments")
    if not isinstance(made, (tuple, list)) or len(made) not in (2, 3):
        what = f"{len(made)} objects" if isinstance(made, (tuple, list)) else f"an object of type {type(made).__name__}"
        raise TargetError(f"{target} returned {what}, not two loaders or three", fix="return train, val")
    return tuple(made)


def optimizer(table: dict[str, Any]) -> Callable[[list[dict[str, Any]]], torch.optim.Optimizer]:
    """What makes the optimizer that a section names."""
    if "target" not in table:
        raise OptionError("[optimizer] has no target", fix='write target = "torch.optim:SGD"')
    kind, arguments = find(table["target"], "optimizer"), table.get("arguments", {})

    def make(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        with blamed(lambda error: failed(table["target"], error, "correct [optimizer] arguments")):
            made = kind(groups, **arguments)
        if not isinstance(made, torch.optim.Optimizer):
            raise TargetError(f"{table['target']} made no optimizer", fix='name one: target = "torch.optim:SGD"')
        return made

    return make


def method(name: str) -> str:
    """A method's name; ``"methods.py:Mine"`` makes a class of the user's known by that."""
    if ":" in name and name not in METHODS:
        found = find(name, "method")
        if not isinstance(found, type) or not issubclass(found, Method):
            raise TargetError(
                f"{name} is no fxprune.methods.Method", fix="name a class that is (docs/how-to/add-method.md)"
            )
        register(name)(found)
    return name


def check_options(name: str, options: dict[str, Any], where: str) -> None:
    """Whether a method knows them, before anything is trained."""
    try:
        METHODS[name].check_options(options)
    except TypeError as error:
        raise OptionError(
            f"{where}: method {name!r}: {error}", fix="look them up in docs/reference/methods.md"
        ) from error
    if options.get("strength") == SEARCH and not METHODS[name].searchable:
        raise OptionError(f"{where}: method {name!r} has no strength to search for", fix="write a number")


def guarded(name: str, target: str) -> Callable[..., Any]:
    """A function of the user's; what it raises is told as its own fault."""
    function = find(target, name)
    if not callable(function):
        raise TargetError(f"{target} is not a function", fix=f"name a function of (output, target) for {name}")

    @functools.wraps(function)
    def guarded(*args: Any) -> Any:
        with blamed(lambda error: failed(target, error, "correct it")):
            return function(*args)

    return guarded


def tool(target: str) -> Callable[..., Any]:
    """Another tool; what it raises is told as its own fault."""
    function = find(target, "tool")
    if not callable(function):
        raise TargetError(
            f"{target} is not a function", fix="name one that returns a smaller net (docs/how-to/compare.md)"
        )

    def guarded(*args: Any, **keywords: Any) -> Any:
        try:
            inspect.signature(function).bind(*args, **keywords)
        except (TypeError, ValueError) as error:
            raise TargetError(
                f"{target} cannot be called: {error}", fix="see docs/how-to/compare.md for what a tool is called with"
            ) from error
        with blamed(lambda error: failed(target, error, "correct it")):
            return function(*args, **keywords)

    return guarded


# of values of TOML; anything else that an argument may be (a function, a module) is named by a text
_KINDS: dict[Any, tuple[type, ...]]
_KINDS = {str: (str,), int: (int,), float: (int, float), Sequence: (list,), Mapping: (dict,)}


def _kinds(hint: Any) -> tuple[type, ...]:
    """
    >>> _kinds(float | str | None), _kinds(Sequence[int]), _kinds(Callable[..., int] | None)
    ((<class 'int'>, <class 'float'>, <class 'str'>), (<class 'list'>,), (<class 'str'>,))
    """
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(kind for part in parts for kind in _KINDS.get(get_origin(part) or part, ())) or (str,)


_ELSEWHERE = ("optimizer", "run", "resume", "example_inputs", "progress")  # in sections of their own, or not in TOML
_MODEL: dict[str, Any] = {"target": str, "arguments": dict, "weights": str}
KEYS: dict[str, dict[str, Any]] = {
    "model": _MODEL,
    "data": {"target": str, "arguments": dict},
    "teacher": _MODEL,
    "optimizer": {"target": str, "arguments": dict},
    "prune": {
        name: _kinds(parameter.annotation)
        for name, parameter in inspect.signature(prune, eval_str=True).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in _ELSEWHERE
    },
    "run": {"folder": str},
}  # fmt: skip
_EXAMPLE = {
    "model": 'target = "models.py:resnet8"',
    "data": 'target = "data.py:loaders"',
    "prune": 'budget = "1/8"',
    "compare": 'budgets = ["1/2", "1/8"], seeds = [0, 1, 2], methods = ["bar", "wm"]',
}
WORDS = {int: "a whole number", float: "a number", str: "a text", dict: "a table", list: "a list"}


def read_config(path: Path) -> dict[str, dict[str, Any]]:
    """Section -> key -> value; sections that are left out are empty."""
    found = read_toml(path)
    if "compare" in found:
        raise OptionError(f"{path} describes a comparison", fix=f"fxprune compare {path}")
    for section, table in found.items():
        check_keys(path, section, table, KEYS.get(section), KEYS)
    check_required(path, found, "prune", ("budget",))
    return {section: found.get(section, {}) for section in KEYS}


def check_required(path: Path, found: dict[str, Any], what: str, keys: tuple[str, ...]) -> None:
    """Whether there are a model, data, and the ``keys`` of the section that says ``what`` is done."""
    for section, key in [("model", "target"), ("data", "target"), *((what, key) for key in keys)]:
        if key not in found.get(section, {}):
            missing = f"key {key!r} in [{section}]" if section in found else f"section [{section}]"
            raise OptionError(f"{path} has no {missing}", fix=f"add under [{section}]: {_EXAMPLE[section]}")


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
        got = WORDS.get(type(table), "something else")
        raise OptionError(f"{path}: {section} is {got}, not a section", fix=f"write [{section}], and its keys below it")
    if keys is None:
        what = f"section [{section}]" if isinstance(table, dict) else f"key {section!r} outside any section"
        raise OptionError(f"{path}: there is no {what}", fix=near(section, sections, "sections"))
    for key, value in table.items():
        if key not in keys:
            raise OptionError(f"{path}: [{section}] has no key {key!r}", fix=near(key, keys, "keys"))
        kinds = keys[key] if isinstance(keys[key], tuple) else (keys[key],)
        if not isinstance(value, kinds) or isinstance(value, bool):
            wanted = " or ".join(WORDS[kind] for kind in kinds if kind is not int or float not in kinds)
            got = WORDS.get(type(value), "something else")
            fix = f"write {wanted}" + (": epochs = [80, 40, 10]" if key == "epochs" else "")
            raise OptionError(f"{path}: {key} in [{section}] is {got}", fix=fix)


def near(name: str, known: Iterable[str], what: str) -> str:
    """A guess at what was meant, or what there is."""
    found = get_close_matches(name, list(known), n=1)
    return f"did you mean {found[0]}?" if found else f"the {what} are {', '.join(known)}"
