"""Weights from a file of the user's: read without running code in it, and compared with what the model holds."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fxprune.errors import FxPruneError, TargetError, one_line
from fxprune.files import load_tensors, reason
from fxprune.report.text import listing, plural

Weights = dict[str, Any]
NESTED = ("state_dict", "model", "model_state_dict")  # where checkpoints keep the weights
COUNTERS = "num_batches_tracked"  # of batch norms; nothing depends on it, and old files do not have it
_SAVED = "name a file that torch.save(model.state_dict(), file) wrote"
_AS_TRAINED = "make the model as it was trained, for example with another number of classes, or name its own weights"


def load_weights(net: nn.Module, file: str, target: str) -> None:
    """Read a .safetensors file, or what torch.save wrote, into ``net``; ``target`` is what it is called.

    A checkpoint may hold the weights under one of ``NESTED``, with a prefix (``module.``) before all of their names.
    """
    try:
        given = _without_prefix(_named_tensors(_read(Path(file))), net)
        _load(given, net, Path(file).name)
    except FxPruneError as error:
        raise _failed(file, target, error.cause, error.fix) from error
    except OSError as error:
        raise _failed(file, target, reason(error), _SAVED) from error
    except Exception as error:  # a file that is damaged can raise anything
        raise _failed(file, target, one_line(error), _SAVED) from error


def _failed(file: str, target: str, why: str, fix: str | None) -> TargetError:
    return TargetError(f"the weights {file} cannot be loaded into {target}: {why}", fix=fix)


def _read(file: Path) -> Any:
    if file.suffix == ".safetensors":
        try:
            read = importlib.import_module("safetensors.torch").load_file
        except ImportError as error:
            raise FxPruneError("the package safetensors is missing", fix="pip install safetensors") from error
        with file.open("rb"):  # an error of the system, if there is no such file
            return read(file)
    try:
        return load_tensors(file)
    except pickle.UnpicklingError as error:
        raise FxPruneError(
            "it holds other Python objects beside tensors, or is no file of torch.save, and is not opened, because "
            "that could run code in it",
            fix="where you trust it: torch.save(torch.load(file, weights_only=False).state_dict(), file)",
        ) from error


def _named_tensors(content: Any) -> Weights:
    """The state dict, also of a checkpoint that holds one beside other things."""
    for _ in range(2):  # a checkpoint may hold a dict that holds one
        inner = [content[name] for name in NESTED if isinstance(content, Mapping) and name in content]
        content = next((each for each in inner if isinstance(each, Mapping)), content)
    if not isinstance(content, Mapping):
        raise FxPruneError(f"it holds an object of type {type(content).__name__}, not weights by name", fix=_SAVED)
    if not any(isinstance(value, torch.Tensor) for value in content.values()):
        holds = f"it holds {listing(map(str, content))}" if content else "it is empty"
        raise FxPruneError(f"{holds}, and no weights by name", fix=_SAVED)
    return {str(name): value for name, value in content.items()}


def _without_prefix(given: Weights, net: nn.Module) -> Weights:
    """What a wrapper around the model has put before every name is taken away, where the model's names come out."""
    own = set(net.state_dict())
    stripped = given
    while len({name.partition(".")[0] for name in stripped}) == 1 and all("." in name for name in stripped):
        if own & set(stripped):
            return stripped
        stripped = {name.partition(".")[2]: value for name, value in stripped.items()}
    return stripped if own & set(stripped) else given


def _load(given: Weights, net: nn.Module, file: str) -> None:
    own = net.state_dict(keep_vars=True)
    try:
        lacking, unknown = net.load_state_dict(given, strict=False)
    except RuntimeError:
        for name, value in given.items():
            if name in own and isinstance(value, torch.Tensor) and value.shape != own[name].shape:
                shapes = f"{_told(value)} in the file and {_told(own[name])} in the model"
                raise FxPruneError(f"{name} is {shapes}", fix=_AS_TRAINED) from None
        raise
    loaded = {id(own[name]) for name in own if name in given}  # tied weights may be in the file once
    missing = [name for name in lacking if id(own[name]) not in loaded and not name.endswith(COUNTERS)]
    parts = [f"it has no {listing(missing)}"] * bool(missing)
    parts += [f"the model has no {listing(unknown)}"] * bool(unknown)
    if parts:
        raise FxPruneError(
            f"of {plural(len(own), 'tensor')} of the model {len(own) - len(missing)} are in {file}: "
            + ", and ".join(parts), fix=_AS_TRAINED,
        )  # fmt: skip


def _told(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"
