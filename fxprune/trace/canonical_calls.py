"""One form for calls that torch accepts in several forms: in-place ops become functional ones, ``axis=`` becomes
``dim=``, and every argument that a rule looks at gets its usual place."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

_ALIASES = {"axis": "dim", "keepdims": "keepdim"}  # for people who come from numpy
_INPUT_IS_NOT_FIRST = (torch.where, torch.searchsorted)
_SHAPED = ("view", "reshape", "expand", torch.reshape, torch.broadcast_to)


def usual_spelling(kind: str, target: Any, args: Any, kwargs: dict[str, Any], root: nn.Module) -> tuple[Any, Any]:
    """The arguments of a call to torch in their most common form; arguments of other calls stay as they are."""
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


WRITTEN_AS: dict[Any, Any] = {torch.ops.aten.index.Tensor: operator.getitem}  # in the user's code


def picked(x: Any, index: Any, is_known: Callable[[fx.Node], bool]) -> tuple[Any, Any] | None:
    """``x[i, j]`` and ``x[:, i]`` with positions that depend on the input: an op of its own, which moves nothing else.

    Bools would make a size that depends on the input, too.
    """
    entries = list(index) if isinstance(index, tuple) else [index]
    tensors = [entry for entry in entries if isinstance(entry, fx.Node)]
    if not all(entry == slice(None) or entry in tensors for entry in entries) or all(map(is_known, tensors)):
        return None
    if any(not is_index(tensor.meta["value"]) for tensor in tensors):
        return None
    return torch.ops.aten.index.Tensor, (x, [entry if entry in tensors else None for entry in entries])


def is_index(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.int64


def _is_torchs(kind: str, target: Any, root: nn.Module) -> bool:
    if kind == "call_module":
        forward = getattr(type(root.get_submodule(target)), "forward", None)
        return str(getattr(forward, "__module__", "")).startswith("torch.nn.")
    module = getattr(target, "__module__", None) or "torch"  # functions that are written in C have none
    return kind == "call_method" or (kind == "call_function" and module.split(".")[0] == "torch")


def added_product(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """``torch.addmm`` and ``torch.baddbmm``; of a parameter, as in GPT-2, a linear layer, whose weight is turned."""
    tracer: Any = getattr(mat2, "tracer", None)
    if tracer is None or mat2.ndim != 2 or not tracer.values.is_constant(mat2.node):
        product = torch.matmul(mat1, mat2)
    elif alpha == beta == 1 and input.ndim == 1:
        return F.linear(mat1, mat2.t(), input)
    else:
        product = F.linear(mat1, mat2.t())
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (input if beta == 1 else input * beta)


WRITTEN_OUT: dict[Any, Callable[..., Any]] = {torch.addmm: added_product, torch.baddbmm: added_product}


_FUNCTIONAL: dict[Any, Any] = {  # what computes the same without a write to the first operand
    torch.ops.aten.add_.Tensor: torch.add,  # of slim nets
    **{
        getattr(operator, f"i{name}"): getattr(operator, name)
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
    },
    **{
        in_place: getattr(owner, name[:-1])
        for owner in (torch, F)
        for name, in_place in vars(owner).items()
        if name.endswith("_") and not name.startswith("_") and callable(in_place) and hasattr(owner, name[:-1])
    },
}


def functional_form(kind: str, target: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """The call that returns the same and leaves its operand as it was."""
    if kind == "call_method" and _is_in_place_method(target):
        target = target[:-1]
        if target == "scatter_add":
            target, args = _one_index(args)
    elif kind == "call_function":
        target = _FUNCTIONAL.get(target, target)
    if kwargs.get("inplace") is True:  # torch's functions pass it on as a keyword, however it was given
        kwargs = {**kwargs, "inplace": False}
    return target, args, kwargs


def overwritten(kind: str, target: Any, args: Any, kwargs: Any, root: nn.Module) -> Any:
    """The operand that the user's call writes to, or None."""
    if kind == "call_module":
        writes = getattr(root.get_submodule(target), "inplace", False) is True
    elif kind == "call_method":
        writes = _is_in_place_method(target)
    else:
        writes = target in _FUNCTIONAL or kwargs.get("inplace") is True
    return args[0] if writes and args else None


def _is_in_place_method(name: str) -> bool:
    writes = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
    return writes and hasattr(torch.Tensor, name[:-1])


def _one_index(args: Any) -> tuple[str, Any]:
    """``x.scatter_add(-1, index.expand_as(y), y)`` is written with one index for all positions, as slim nets have it.

    ``scatter_add`` also takes maps that are smaller than ``x``: these keep their form.
    """
    if len(args) != 4 or not isinstance(args[2], fx.Node) or args[2].target != "expand_as" or args[2].kwargs:
        return "scatter_add", args
    x, axis, index, y = args
    places, shape = index.args
    taken, given = (node.meta["value"].shape for node in (x, y))
    one_for_all = shape is y and places.meta["value"].shape == given[-1:] and axis in (-1, len(taken) - 1)
    return ("index_add", (x, axis, places, y)) if one_for_all and taken[:-1] == given[:-1] else ("scatter_add", args)
