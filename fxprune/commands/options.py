"""Options as they are typed, turned into values, with an example of the right form where that fails."""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fxprune.commands.user_code import load_model, load_module
from fxprune.cost.target import as_share
from fxprune.errors import OptionError
from fxprune.files import as_path, reason, told
from fxprune.run.folder import Run
from fxprune.run.layout import KEPT

DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "float16", "int64", "int32", "bool")}
_DIGITS = 30  # more than any size has, and less than Python refuses to read
_INPUT = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:x\d+)*)")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """How a model is made and what it is called with."""
    add = parser.add_argument
    add("--input", action="append", required=True, metavar="[NAME=]1x3x224x224", help="shape of an input; repeatable")
    add("--dtype", choices=DTYPES, default="float32", help="type of the inputs (default: float32)")
    add("--arg", action="append", default=[], metavar="NAME=VALUE", help="argument of the callable; repeatable")
    add("--preload", action="append", default=[], metavar="MODULE", help="module or file to import first; repeatable")


def model_and_example(
    options: argparse.Namespace, target: str, load: Callable[[str, dict[str, Any]], nn.Module] = load_model
) -> tuple[nn.Module, Any]:
    """What these options ask for, as ``fxprune.inspect`` takes it."""
    inputs, arguments = parse_inputs(options.input, DTYPES[options.dtype]), parse_arguments(options.arg)
    for module in options.preload:
        load_module(module)
    model = load(target, arguments)
    return model, example_of(model, *inputs)


def parse_inputs(texts: Sequence[str], dtype: torch.dtype) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Zeros of the shapes asked for: positional ones, and those with a name.

    >>> positional, named = parse_inputs(["1x3x8x8", "mask=1x8"], torch.float32)
    >>> [tuple(t.shape) for t in positional], {name: tuple(t.shape) for name, t in named.items()}
    ([(1, 3, 8, 8)], {'mask': (1, 8)})
    """
    positional: list[torch.Tensor] = []
    named: dict[str, torch.Tensor] = {}
    for text in texts:
        match = _INPUT.fullmatch(text)
        shape = [int(size[:_DIGITS]) for size in match["shape"].split("x")] if match else []
        if match is None or 0 in shape:
            what = "an empty tensor" if match else "not a shape"
            raise OptionError(
                f"--input {text!r} is {what}",
                fix="write sizes with x between them: --input 1x3x224x224, or --input name=1x3x224x224 for a keyword",
            )
        if match["name"] in named:
            raise OptionError(f"--input {match['name']} is given twice", fix="keep one of them")
        try:
            tensor = torch.zeros(shape, dtype=dtype)
        except (RuntimeError, OverflowError, TypeError) as error:
            raise OptionError(f"--input {text!r} is too large", fix="the batch size may be 1") from error
        if match["name"]:
            named[match["name"]] = tensor
        else:
            positional.append(tensor)
    return positional, named


def example_of(model: nn.Module, positional: list[torch.Tensor], named: dict[str, torch.Tensor]) -> Any:
    """What ``fxprune.inspect`` takes: a tuple or a dict. In a mixture, the positional ones get their names."""
    if not named:
        return tuple(positional)
    if not positional:
        return named
    try:
        return dict(inspect.signature(model.forward).bind_partial(*positional, **named).arguments)
    except TypeError as error:
        raise OptionError(
            f"--input does not fit the model's forward: {error}", fix="give every input its name: --input name=1x3x8x8"
        ) from error


def parse_arguments(texts: Sequence[str]) -> dict[str, Any]:
    """``k=v`` pairs; values are Python literals where they can be, text otherwise.

    >>> parse_arguments(["width=2", "norm=batch", "sizes=(1, 2)"])
    {'width': 2, 'norm': 'batch', 'sizes': (1, 2)}
    """
    arguments: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise OptionError(f"--arg {text!r} has no name and value", fix="write --arg name=value: --arg width=2")
        try:
            arguments[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            arguments[name] = value
    return arguments


def parse_budget(text: str, option: str = "--budget") -> float:
    """
    >>> parse_budget("1/8"), parse_budget("0.125"), parse_budget("12.5%")
    (0.125, 0.125, 0.125)
    """
    example = f"write a fraction of the full cost: {option} 1/8, {option} 0.125 or {option} 12.5%"
    if option.startswith("["):  # of a TOML file
        key = option.rpartition(" ")[2]
        example = f"write a fraction of the full cost: {key} = " + ('["1/8"]' if key == "budgets" else '"1/8"')
    try:
        share = as_share(text)
    except ValueError as error:
        raise OptionError(f"{option} {text!r} is not a number", fix=example) from error
    if not 0 < share <= 1:
        raise OptionError(f"{option} {text} is outside (0, 1]", fix=example)
    return share


def check_writable(option: str, path: Path, name: str) -> None:
    """Refuse a path before the work, not after it; ``name`` is an example of a file name."""
    as_path(path, option)
    with told("written", path, OptionError):
        if path.is_dir():
            raise OptionError(f"{option} {path} is a directory", fix=f"name a file: {option} {path / name}")
        if not path.parent.is_dir():
            missing = f"{option} {path}: there is no directory {path.parent}"
            raise OptionError(missing, fix="create it, or write elsewhere")


def check_outside(option: str, path: Path | None, run: Run) -> None:
    """Refuse to write over a part of the run."""
    own = [(run.folder / part).resolve() for part in KEPT]
    if path is not None and any(path.resolve().is_relative_to(part) for part in own):
        raise OptionError(f"{option} {path} is a part of the run", fix="write elsewhere")


@contextlib.contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """An error of the system in this block is one about ``path``."""
    try:
        yield
    except OSError as error:
        raise OptionError(f"{option} {path} cannot be written: {reason(error)}", fix="write elsewhere") from error
