"""One spelling for calls that torch takes in several: ``axis=`` is ``dim=``, and what a rule looks at has its place."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_ALIASES = {"axis": "dim", "keepdims": "keepdim"}  # for people who come from numpy
_INPUT_IS_NOT_FIRST = (torch.where, torch.searchsorted)
_SHAPED = ("view", "reshape", "expand", torch.reshape, torch.broadcast_to)


def usual_spelling(kind: str, target: Any, args: Any, kwargs: dict[str, Any], root: nn.Module) -> tuple[Any, Any]:
    """The arguments of a call to torch, as most people write them; those of any other are left alone."""
    if not kwargs or not _is_torchs(kind, target, root):
        return args, kwargs
    kwargs = dict(kwargs)
    if not args and "input" in kwargs and target not in _INPUT_IS_NOT_FIRST:
        args = (kwargs.pop("input"),)
    if kind != "call_module" and "quantize" not in getattr(target, "__name__", str(target)):
        kwargs = {_ALIASES.get(name, name): value for name, value in kwargs.items()}
    if target in _SHAPED and len(args) == 1:
        args = (*args, *(kwargs.pop(name) for name in ("shape", "size") if name in kwargs))
    return args, kwargs


def _is_torchs(kind: str, target: Any, root: nn.Module) -> bool:
    if kind == "call_module":
        forward = getattr(type(root.get_submodule(target)), "forward", None)
        return str(getattr(forward, "__module__", "")).startswith("torch.nn.")
    module = getattr(target, "__module__", None) or ""  # those written in C have none
    return kind == "call_method" or (kind == "call_function" and (module == "" or module.split(".")[0] == "torch"))
