"""What a TOML file names: networks, loaders, optimizers, functions, other tools."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fxprune.commands.failures import blamed, told
from fxprune.commands.target import called, failed, find, load_model
from fxprune.emit.tensors import load_tensors
from fxprune.errors import OptionError, TargetError
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
                f"the weights {table['weights']} cannot be loaded into {table['target']}: {told(error)}",
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
