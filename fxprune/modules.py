"""Copies of modules, several times faster than ``copy.deepcopy``; their modes; and a pause for Python's garbage
collector while graphs of thousands of nodes are made."""

from __future__ import annotations

import copy
import gc
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn

_PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device, types.FunctionType, type)
_COPYING = ("__deepcopy__", "__getstate__", "__reduce__", "__reduce_ex__")


def copy_module(module: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """``copy.deepcopy``, but without its slow treatment of the dozen empty dicts that each module carries.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> copied = copy_module(net)
    >>> copied[0].weight is net[0].weight, torch.equal(copied[0].weight, net[0].weight)
    (False, True)
    """
    memo = {} if memo is None else memo
    copied: nn.Module
    if id(module) in memo:
        copied = memo[id(module)]
        return copied
    if isinstance(module, torch.jit.ScriptModule):
        with torch.no_grad():  # it would make its copy a function of the original
            copied = copy.deepcopy(module, memo)
        for parameter, source in zip(copied.parameters(), module.parameters(), strict=True):
            parameter.requires_grad_(source.requires_grad)
        return copied
    kind = type(module)
    if any(getattr(kind, name, None) is not getattr(nn.Module, name, None) for name in _COPYING):
        return copy.deepcopy(module, memo)
    copied = kind.__new__(kind)
    memo[id(module)] = copied
    for name, held in vars(module).items():
        if name == "_modules":
            held = {key: copy_module(child, memo) if child is not None else None for key, child in held.items()}
        elif name in ("_parameters", "_buffers"):
            held = {key: copy.deepcopy(tensor, memo) for key, tensor in held.items()}
        elif isinstance(held, torch.Tensor) and not held.is_leaf:  # computed before a call, as by the old weight_norm
            held = memo.setdefault(id(held), held.detach().clone())
        elif isinstance(held, (dict, set)) and not held:
            held = type(held)()
        elif type(held) in (tuple, list) and all(isinstance(entry, _PLAIN) for entry in held):  # sizes, strides
            held = held if type(held) is tuple else memo.setdefault(id(held), [*held])
        elif not isinstance(held, _PLAIN):
            # What Python cannot copy (the keys of a dict, a lock, an open file) is no state of the net: it is shared.
            with suppress(TypeError):
                held = copy.deepcopy(held, memo)
        copied.__dict__[name] = held
    return copied


def meta_copy(model: nn.Module) -> nn.Module:
    """A copy that shares no state with ``model`` and holds no data: tracing may change it."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
    for buffer in model.buffers():
        memo.setdefault(id(buffer), buffer.detach().to("meta"))
    return copy_module(model, memo).eval()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode for a while: in training mode a call may change the model's state (spectral norm, batch norm)."""
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def share_tensors(net: nn.Module, source: nn.Module) -> nn.Module:
    """Let ``net`` hold the very tensors of ``source``, path by path; modules that both hold have them already."""
    others = dict(source.named_modules(remove_duplicate=False))
    for path, module in net.named_modules():
        other = others.get(path)
        if other is None or vars(other) is vars(module):
            continue
        for held in (module._parameters, module._buffers, vars(module)):
            for name in held:
                tensor = other._parameters.get(name, other._buffers.get(name))
                if tensor is not None and isinstance(held[name], torch.Tensor):
                    held[name] = tensor
    return net


def copy_modes(source: nn.Module, net: nn.Module) -> None:
    """Each module gets the mode of the one of the same name (a batch norm may be frozen), others that of the source."""
    modes = {name: module.training for name, module in source.named_modules(remove_duplicate=False)}
    for name, module in net.named_modules(remove_duplicate=False):
        module.training = modes.get(name, source.training)


@contextmanager
def collected_later() -> Iterator[None]:
    """Python's collector visits every live object again and again while new ones are made: a fifth of a long wrap."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
