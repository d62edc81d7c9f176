"""The user's code: found by name, called, and checked for what it returns. What it raises becomes an error with the
place in that code; what it prints is kept out of a command's output."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from fxprune.commands.weights import load_weights
from fxprune.errors import FxPruneError, OptionError, TargetError, named
from fxprune.methods import METHODS, Method, register
from fxprune.report.text import listing
from fxprune.train.search import SEARCH

_FORM = "write package.module:function or path/to/file.py:function, for example torchvision.models:resnet18"
_NO_OPERATOR = (
    "this torchvision was built for another torch: install the matching one, or import something first that declares "
    "its operators (--preload benchmarks/torchvision_ops.py in a checkout of fxprune)"
)
_NOT_THE_CAUSE = (str(Path(__file__).parent), str(importlib.__file__))


# ---------------------------------------------------------------- find and call


def find(target: str, what: str) -> Any:
    """The object that ``package.module:name`` or ``path/to/file.py:name`` names."""
    reference, colon, path = target.rpartition(":")
    if not colon or not reference or not path:
        raise TargetError(f"{target!r} names no {what}", fix=_FORM)
    owner: Any = load_module(reference)
    reached, separator = reference, ":"
    for name in path.split("."):
        with calling(target, "make it work in Python first"):
            has = hasattr(owner, name)  # this may run a property or __getattr__
        if not has:
            raise TargetError(f"{reached} has no attribute {name!r}", fix=near(name, _public(owner), _offer(owner)))
        owner = getattr(owner, name)
        reached, separator = reached + separator + name, "."
    return owner


def load_module(reference: str) -> ModuleType:
    """A module by its name, or by the path of its file."""
    _search(os.getcwd())  # where a console script does not search
    is_file = reference.endswith(".py") or os.sep in reference or "/" in reference
    if is_file and not os.path.isfile(reference):
        raise TargetError(f"there is no file {reference}", fix=_FORM)
    with _explained(lambda error: _not_imported(reference, error)):
        return _load_file(Path(reference)) if is_file else importlib.import_module(reference)


def _load_file(path: Path) -> ModuleType:
    """Run once, however many things are taken from it: a rule in it can be registered only once."""
    name = f"_fxprune_file_{path.stem}"  # must not hide an installed module of the same name
    before = sys.modules.get(name)
    if before is not None and before.__file__ == str(path.resolve()):
        return before
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise TargetError(f"{path} is not a Python file", fix=_FORM)
    _search(str(path.resolve().parent))  # the file may import its neighbours
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _search(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _not_imported(reference: str, error: BaseException) -> TargetError:
    if isinstance(error, ModuleNotFoundError) and error.name and f"{reference}.".startswith(f"{error.name}."):
        return TargetError(f"there is no module {error.name}", fix=near(error.name, _siblings(error.name), _FORM))
    command = f"python {reference}" if reference.endswith(".py") else f"python -c 'import {reference}'"
    fix = f"make `{command}` work first"
    if "operator torchvision::" in str(error):
        fix = _NO_OPERATOR
    elif isinstance(error, ModuleNotFoundError):
        fix = f"install {error.name}, or run where it can be imported"
    return TargetError(f"importing {reference} failed: {named(error)}", where=where_of(error), fix=fix)


def call(target: str, function: Any, arguments: dict[str, Any], option: str, fix: str | None = None) -> Any:
    """``function(**arguments)``; ``option`` is where the arguments come from, for messages."""
    _check_arguments(target, function, arguments, option)
    with calling(target, fix or f"change what it gets with {option} name=value"):
        return function(**arguments)


def _check_arguments(target: str, function: Any, arguments: dict[str, Any], option: str) -> None:
    """Would the call be a TypeError? Say which argument is missing or unknown."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have none
        return
    kinds = inspect.Parameter
    stars = (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    known = {name: p for name, p in signature.parameters.items() if p.kind not in stars}
    takes_any = any(p.kind is kinds.VAR_KEYWORD for p in signature.parameters.values())
    for name in arguments:
        if name not in known and not takes_any:
            raise OptionError(f"{target} takes no argument {name!r}", fix=near(name, known, "leave it out"))
    missing = [name for name, p in known.items() if p.default is kinds.empty and name not in arguments]
    if missing:
        given = " ".join(f"{option} {name}=..." for name in missing)
        raise TargetError(f"{target} needs arguments: {', '.join(missing)}", fix=f"add {given}")


def near(name: str, known: Iterable[str], otherwise: str, most: int = 3) -> str:
    """A guess at what was meant.

    >>> near("metrc", ["metric", "method"], "leave it out"), near("seed", ["metric"], "leave it out")
    ('did you mean metric?', 'leave it out')
    """
    guesses = get_close_matches(name, list(known), n=most)
    return f"did you mean {' or '.join(guesses)}?" if guesses else otherwise


def _public(owner: Any) -> list[str]:
    return [name for name in dir(owner) if not name.startswith("_")]


def _offer(owner: Any) -> str:
    """What a module defines itself; if that is nothing, how a target is written."""
    own = [name for name in _public(owner) if getattr(getattr(owner, name), "__module__", None) == owner.__name__]
    return f"it has {listing(own, 8)}" if own else _FORM


def _siblings(name: str) -> list[str]:
    """All modules in the package of this one, by their full names."""
    parent, dot, _ = name.rpartition(".")
    places = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    return [parent + dot + module.name for module in pkgutil.iter_modules(places)]


# ---------------------------------------------------------------- models, loaders, optimizers, methods, functions


def load_model(target: str, arguments: dict[str, Any], option: str = "--arg") -> nn.Module:
    """The model that a target names, or that it makes when it is called with ``arguments``."""
    source = find(target, "model")
    if isinstance(source, nn.Module):
        if arguments:
            raise OptionError(f"{target} is a model already and takes no arguments", fix=f"leave out {option}")
        return source
    if not callable(source):
        raise TargetError(
            f"{target} is of type {type(source).__name__}, not a model",
            fix="name an nn.Module, or a function or class that makes one",
        )
    model = call(target, source, arguments, option)
    if not isinstance(model, nn.Module):
        raise TargetError(
            f"{target} returned an object of type {type(model).__name__}, not a model",
            fix="name a function or class whose call gives a torch.nn.Module",
        )
    return model


def network(section: str, table: dict[str, Any]) -> nn.Module:
    """The model that a section of a config names, with its weights."""
    if "target" not in table:
        raise OptionError(f"[{section}] has no target", fix='write target = "models.py:resnet8"')
    net = load_model(table["target"], table.get("arguments", {}), f"[{section}] arguments")
    if "weights" in table:
        load_weights(net, table["weights"], table["target"])
    return net


def loaders(table: dict[str, Any]) -> tuple[Any, ...]:
    """For training, for validation and, if there is a third, for the test at the end."""
    target = table["target"]
    function = _function(target, "function", "name one that returns (train, val, test) loaders")
    returned = call(target, function, table.get("arguments", {}), "[data] arguments")
    is_sequence = isinstance(returned, (tuple, list))
    if not is_sequence or len(returned) not in (2, 3):
        what = f"{len(returned)} objects" if is_sequence else f"an object of type {type(returned).__name__}"
        raise TargetError(f"{target} returned {what}, not two loaders or three", fix="return train, val")
    return tuple(returned)


def optimizer(table: dict[str, Any]) -> Callable[[list[dict[str, Any]]], torch.optim.Optimizer]:
    """What makes the optimizer that a section names."""
    if "target" not in table:
        raise OptionError("[optimizer] has no target", fix='write target = "torch.optim:SGD"')
    kind, arguments = find(table["target"], "optimizer"), table.get("arguments", {})

    def make(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        with calling(table["target"], "correct [optimizer] arguments"):
            optimizer = kind(groups, **arguments)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TargetError(f"{table['target']} made no optimizer", fix='name one: target = "torch.optim:SGD"')
        return optimizer

    return make


def method(name: str) -> str:
    """A method's name; a class of the user's (``"methods.py:Mine"``) is registered under that name."""
    if ":" in name and name not in METHODS:
        kind = find(name, "method")
        if not isinstance(kind, type) or not issubclass(kind, Method):
            raise TargetError(
                f"{name} is no fxprune.methods.Method", fix="name a class that is (docs/how-to/add-method.md)"
            )
        register(name)(kind)
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
    """The user's function for the option ``name``; an error in it becomes an error of the user's code."""
    function = _function(target, name, f"name a function of (output, target) for {name}")

    @functools.wraps(function)
    def called(*args: Any, **keywords: Any) -> Any:
        with calling(target, "correct it"):
            return function(*args, **keywords)

    return called


def tool(target: str) -> Callable[..., Any]:
    """Another pruning tool; an error in it becomes an error of the user's code."""
    function = _function(target, "tool", "name one that returns a smaller net (docs/how-to/compare.md)")

    def called(*args: Any, **keywords: Any) -> Any:
        try:
            inspect.signature(function).bind(*args, **keywords)
        except (TypeError, ValueError) as error:
            fix = "see docs/how-to/compare.md for what a tool is called with"
            raise TargetError(f"{target} cannot be called: {error}", fix=fix) from error
        with calling(target, "correct it"):
            return function(*args, **keywords)

    return called


def _function(target: str, what: str, fix: str) -> Callable[..., Any]:
    function = find(target, what)
    if not callable(function):
        raise TargetError(f"{target} is not a function", fix=fix)
    return function  # type: ignore[no-any-return]


# ---------------------------------------------------------------- what it raises and prints


def where_of(error: BaseException) -> str | None:
    """``file:line`` of the innermost frame that is neither a command's nor the import machinery's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    where, step = None, error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        if not name.startswith("<") and not name.startswith(_NOT_THE_CAUSE):
            where = f"{name}:{step.tb_lineno}"
        step = step.tb_next
    return where


@contextlib.contextmanager
def _explained(explain: Callable[[BaseException], FxPruneError]) -> Iterator[None]:
    """All that the user's code raises, even SystemExit, becomes the error of ``explain``; except Ctrl-C."""
    try:
        yield
    except (FxPruneError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise explain(error) from error


def calling(target: str, fix: str) -> contextlib.AbstractContextManager[None]:
    """What is raised inside is the fault of the target's code."""
    return _explained(
        lambda error: TargetError(f"{target} failed: {named(error)}", where=where_of(error), fix=fix)
    )


@contextlib.contextmanager
def unprinted() -> Iterator[None]:
    """What is printed meanwhile goes to stderr, also by child processes and by code that is not Python."""
    out = sys.__stdout__
    real = out is not None and out is sys.stdout
    with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as after:
        if out is not None and real:
            out.flush()
            with contextlib.suppress(OSError, ValueError, AttributeError):  # one of them may be closed
                kept = os.dup(out.fileno())
                after.callback(os.close, kept)
                os.dup2(sys.stderr.fileno(), out.fileno())
                after.callback(os.dup2, kept, out.fileno())
                after.callback(out.flush)
        yield
