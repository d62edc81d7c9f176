"""From ``package.module:callable`` or ``path/to/file.py:callable`` to a model."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from fxprune.commands.failures import blamed, where_of
from fxprune.errors import OptionError, TargetError, named
from fxprune.report.text import listing

_FORM = "write package.module:function or path/to/file.py:function, for example torchvision.models:resnet18"
_NO_OPERATOR = (
    "this torchvision was built for another torch: install the matching one, or import something first that declares "
    "its operators (--preload benchmarks/torchvision_ops.py in a checkout of fxprune)"
)


def load_model(target: str, arguments: dict[str, Any], option: str = "--arg") -> nn.Module:
    """Import the target, call it with ``arguments`` unless it is a model already, and check what came back.

    ``option`` is where the arguments come from, for messages.
    """
    found = find(target, "model")
    if isinstance(found, nn.Module):
        if arguments:
            raise OptionError(f"{target} is a model already and takes no arguments", fix=f"leave out {option}")
        return found
    if not callable(found):
        raise TargetError(
            f"{target} is of type {type(found).__name__}, not a model",
            fix="name an nn.Module, or a function or class that makes one",
        )
    made = called(target, found, arguments, option)
    if not isinstance(made, nn.Module):
        raise TargetError(
            f"{target} returned an object of type {type(made).__name__}, not a model",
            fix="name a function or class whose call gives a torch.nn.Module",
        )
    return made


def find(target: str, what: str) -> Any:
    """The object that a target names."""
    reference, colon, path = target.rpartition(":")
    if not colon or not reference or not path:
        raise TargetError(f"{target!r} names no {what}", fix=_FORM)
    found: Any = load_module(reference)
    reached = reference
    for name in path.split("."):
        with blamed(lambda error: failed(target, error, "make it work in Python first")):
            has = hasattr(found, name)  # which may run code of its own
        if not has:
            raise TargetError(f"{reached} has no attribute {name!r}", fix=_near(name, _public(found), _offer(found)))
        found = getattr(found, name)
        reached = f"{reached}:{name}" if reached == reference else f"{reached}.{name}"
    return found


def load_module(reference: str) -> ModuleType:
    """A module by its name, or by the path of its file."""
    sys.path[:0] = [entry for entry in [os.getcwd()] if entry not in sys.path]  # a console script does not look there
    is_file = reference.endswith(".py") or os.sep in reference or "/" in reference
    if is_file and not os.path.isfile(reference):
        raise TargetError(f"there is no file {reference}", fix=_FORM)
    with blamed(lambda error: _not_imported(reference, error)):
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
    folder = str(path.resolve().parent)
    sys.path[:0] = [folder] if folder not in sys.path else []  # the file may import its neighbours
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _not_imported(reference: str, error: BaseException) -> TargetError:
    if isinstance(error, ModuleNotFoundError) and error.name and f"{reference}.".startswith(f"{error.name}."):
        return TargetError(f"there is no module {error.name}", fix=_near(error.name, _siblings(error.name), _FORM))
    fix = f"make `python -c 'import {reference}'` work first"
    if reference.endswith(".py"):
        fix = f"make `python {reference}` work first"
    if "operator torchvision::" in str(error):
        fix = _NO_OPERATOR
    elif isinstance(error, ModuleNotFoundError):
        fix = f"install {error.name}, or run where it can be imported"
    return TargetError(f"importing {reference} failed: {named(error)}", where=where_of(error), fix=fix)


def called(target: str, function: Any, arguments: dict[str, Any], option: str) -> Any:
    """``function(**arguments)``; what fails is told in terms of the target."""
    _check_arguments(target, function, arguments, option)
    with blamed(lambda error: failed(target, error, f"change what it gets with {option} name=value")):
        return function(**arguments)


def failed(target: str, error: BaseException, fix: str) -> TargetError:
    """The code of a target raised something."""
    return TargetError(f"{target} failed: {named(error)}", where=where_of(error), fix=fix)


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
            raise OptionError(f"{target} takes no argument {name!r}", fix=_near(name, known, "leave it out"))
    missing = [name for name, p in known.items() if p.default is kinds.empty and name not in arguments]
    if missing:
        given = " ".join(f"{option} {name}=..." for name in missing)
        raise TargetError(f"{target} needs arguments: {', '.join(missing)}", fix=f"add {given}")


def _near(name: str, candidates: Iterable[str], otherwise: str) -> str:
    near = get_close_matches(name, list(candidates), n=3)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def _public(found: Any) -> list[str]:
    return [name for name in dir(found) if not name.startswith("_")]


def _offer(found: Any) -> str:
    """What a module defines itself; without anything, how a target is written."""
    own = [name for name in _public(found) if getattr(getattr(found, name), "__module__", None) == found.__name__]
    return f"it has {listing(own, 8)}" if own else _FORM


def _siblings(name: str) -> list[str]:
    """All modules beside one, by their full names."""
    parent, dot, _ = name.rpartition(".")
    places = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    return [parent + dot + module.name for module in pkgutil.iter_modules(places)]
