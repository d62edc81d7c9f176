"""One form for calls that torch takes in several: in-place ops become functional ones, ``axis=`` is ``dim=``, and what
a rule looks at has its own argument."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from fxprune.torch_private import memory_of

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


_OPERATORS = {
    getattr(operator, f"i{name}"): getattr(operator, f"{name}")
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
}
_FUNCTIONS: dict[Any, Any] = {
    torch.ops.aten.add_.Tensor: torch.add,  # of slim nets
}
_FUNCTIONS |= {
    in_place: getattr(owner, name[:-1])
    for owner in (torch, F)
    for name, in_place in vars(owner).items()
    if name.endswith("_") and not name.startswith("_") and callable(in_place) and hasattr(owner, name[:-1])
}


def _is_in_place_method(name: str) -> bool:
    writes = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
    return writes and hasattr(torch.Tensor, name[:-1])


class _FunctionalForm:
    """Maps a call onto the call that returns its result without touching the operand."""

    def __call__(self, kind: str, target: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        if kind == "call_method" and _is_in_place_method(target):
            target = target[:-1]
            if target == "scatter_add":
                target, args = _one_index(args)
        elif kind == "call_function":
            target = _OPERATORS.get(target) or _FUNCTIONS.get(target, target)
        if kwargs.get("inplace") is True:
            kwargs = {**kwargs, "inplace": False}
        if kind == "call_function":
            args = _positional_flag_off(target, args)
        return target, args, kwargs

    def overwritten(self, kind: str, target: Any, args: Any, kwargs: Any, root: nn.Module) -> Any:
        """The operand that the user's call writes to, if it does."""
        if not args:
            return None
        if kind == "call_module":
            in_place = getattr(root.get_submodule(target), "inplace", False) is True
        elif kind == "call_method":
            in_place = _is_in_place_method(target)
        else:
            in_place = target in _OPERATORS or _hashable_in(target, _FUNCTIONS) or kwargs.get("inplace") is True
            in_place = in_place or _positional_flag_off(target, args) is not args
        return args[0] if in_place else None


functional_form = _FunctionalForm()


def _one_index(args: Any) -> tuple[str, Any]:
    """``x.scatter_add(-1, index.expand_as(y), y)`` with one index for all positions, as slim nets have it."""
    if len(args) != 4 or not isinstance(args[2], fx.Node) or args[2].target != "expand_as" or args[2].kwargs:
        return "scatter_add", args
    x, axis, index, y = args
    places, shape = index.args
    taken, given = (node.meta["value"].shape for node in (x, y))
    one_for_all = shape is y and places.meta["value"].shape == given[-1:] and axis in (-1, len(taken) - 1)
    if not one_for_all or taken[:-1] != given[:-1]:  # scatter_add takes smaller maps, too
        return "scatter_add", args
    return "index_add", (x, axis, places, y)


# Position of the `inplace` flag of the functionals that take one.
_FLAG = {
    F.relu: 1, F.relu6: 1, F.hardtanh: 3, F.elu: 2, F.leaky_relu: 2, F.selu: 1, F.celu: 2, F.silu: 1, F.mish: 1,
    F.hardswish: 1, F.hardsigmoid: 1, F.threshold: 3, F.dropout: 3, F.dropout2d: 3, F.dropout3d: 3,
}  # fmt: skip


def _positional_flag_off(target: Any, args: Any) -> Any:
    at = _FLAG.get(target) if _hashable_in(target, _FLAG) else None
    if at is None or len(args) <= at or args[at] is not True:
        return args
    return (*args[:at], False, *args[at + 1 :])


def _hashable_in(target: Any, table: dict[Any, Any]) -> bool:
    try:
        return target in table
    except TypeError:
        return False


def overlapping(one: Any, other: torch.Tensor) -> bool:
    """Do two meta tensors share memory, element for element?"""
    if not isinstance(one, torch.Tensor) or memory_of(one) != memory_of(other):
        return False
    size = other.untyped_storage().nbytes() // max(other.element_size(), 1)
    if one.dtype != other.dtype or size > 1 << 22:
        return True
    memory = np.zeros(size, dtype=bool)
    for tensor, write in ((one, True), (other, False)):
        strides = tuple(stride * memory.itemsize for stride in tensor.stride())
        view = np.lib.stride_tricks.as_strided(memory[tensor.storage_offset() :], tuple(tensor.shape), strides)
        if write:
            view[...] = True
        else:
            return bool(view.any())
    return False
