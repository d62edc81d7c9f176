"""Example inputs as JSON: structure, shapes and types, but no data."""

from __future__ import annotations

from typing import Any

import torch

from fxprune.errors import OptionError, RunError

_CONTAINERS: dict[str, Any] = {"tuple": tuple, "list": list}


def described(value: Any) -> Any:
    """
    >>> described((torch.zeros(1, 3), {"scale": 2}))
    {'tuple': [{'shape': [1, 3], 'dtype': 'float32'}, {'dict': {'scale': 2}}]}
    """
    if isinstance(value, torch.Tensor):
        return {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    for name, kind in _CONTAINERS.items():
        if type(value) is kind:
            return {name: list(map(described, value))}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: described(entry) for key, entry in value.items()}}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise OptionError(
        f"an example input of type {type(value).__module__}.{type(value).__qualname__} cannot be written down",
        fix="use tensors, numbers and texts, in tuples, lists and dicts, as example_inputs",
    )


def restored(text: Any) -> Any:
    """What ``described`` was given, with tensors of zeros (those of floats without data: they only have a shape).

    >>> restored({"tuple": [{"shape": [1, 3], "dtype": "int64"}, {"dict": {"scale": 2}}]})
    (tensor([[0, 0, 0]]), {'scale': 2})
    """
    if not isinstance(text, dict):
        return text
    if set(text) == {"shape", "dtype"}:
        dtype = getattr(torch, str(text["dtype"]), None)
        if isinstance(dtype, torch.dtype) and all(type(size) is int and size >= 0 for size in text["shape"]):
            return torch.zeros(text["shape"], dtype=dtype, device="meta" if dtype.is_floating_point else "cpu")
    for name, kind in _CONTAINERS.items():
        if set(text) == {name}:
            return kind(restored(entry) for entry in text[name])
    if set(text) == {"dict"}:
        return {key: restored(entry) for key, entry in text["dict"].items()}
    raise RunError(f"{text} describes no example input")
