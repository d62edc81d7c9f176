"""Reading a tensor's size: no channels flow, but the tensor must stay alive for its size to be read."""

from __future__ import annotations

import operator
from typing import Any

import torch

from fxprune.rules.registry import Flow, Op, constant_flow, rule

_SIZES = ("size", "numel", "nelement", "stride", "element_size", "get_device", "data_ptr")


@rule(*_SIZES, torch.numel)
def size(op: Op) -> None:
    _note(op)


@rule(getattr)
def attribute(op: Op) -> Any:
    owner = op.flows.get(op.node.args[0])  # type: ignore[arg-type]
    name = str(op.node.args[1])
    if isinstance(owner, tuple) and name in ("values", "indices"):  # the named tuple of max() and its kind
        return owner[("values", "indices").index(name)]
    if isinstance(op.out, torch.Tensor):
        return None if name not in ("data", "real") else owner
    if name == "shape":
        _note(op)
    return None


@rule(torch.zeros_like, torch.ones_like, torch.rand_like, torch.randn_like, torch.empty_like, torch.full_like)
@rule("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor")
def like(op: Op) -> Any:
    _note(op)
    return constant_flow(op.out)


@rule("expand_as", "view_as", "reshape_as")
def shaped_as(op: Op) -> Flow | None:
    flow, other = op.flow(), op.flow(1, "other")
    if op.node.target == "expand_as":
        op.notes.sized.append((op.node, other.ids.reshape(-1)))
        return flow
    return None


@rule(operator.truth, torch._assert)
def check(op: Op) -> None:
    return None


def _note(op: Op) -> None:
    flow = op.find(op.node.args[0])
    if flow is not None:
        op.notes.sized.append((op.node, flow.ids.reshape(-1)))
