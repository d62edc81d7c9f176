"""Joins and activations write into an operand instead of a new tensor, where that changes no result.

It changes none if the operand has no other reader, owns its memory, and comes from an op that does not need its own
result to compute gradients.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx, nn

from fxprune.rules.operands import ADD_TO
from fxprune.torch_private import AnyConv

_MAKERS = (
    AnyConv, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
)  # fmt: skip
_JOINS = (torch.cat, operator.add)
_METHODS = ("clone", "add_", "index_add_", "scatter_add_")


def write_in_place(graph: fx.Graph, root: nn.Module, activations: Collection[str]) -> None:
    """Edit the slim graph: copies that nobody needs go, sums of equal sets are written to one of their operands.

    ``activations`` are the modules that write in place in the original: they do so again.
    """
    calls: dict[str, list[fx.Node]] = {}
    for node in list(graph.nodes):
        if node.op == "call_method" and node.target == "clone" and _is_spare(node.args[0], root):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target is operator.add and node.meta.get("plain"):
            one, other = node.args
            if one is not other and (_is_spare(one, root) or _is_spare(other, root)):
                node.op, node.target = "call_method", "add_"
                node.args = (one, other) if _is_spare(one, root) else (other, one)
        elif node.op == "call_module":
            calls.setdefault(str(node.target), []).append(node)
    for name in activations:
        if name in calls and all(_is_spare(call.args[0], root) for call in calls[name]):
            root.get_submodule(name).inplace = True  # type: ignore[assignment]


def _is_written_slice(node: fx.Node) -> bool:
    """A part of a join: what it writes is there before anyone reads."""
    return node.target == "narrow" and all(user.target is ADD_TO and user.args[0] is node for user in node.users)


def _is_spare(node: Any, root: nn.Module) -> bool:
    if not isinstance(node, fx.Node) or sum(not _is_written_slice(user) for user in node.users) > 1:
        return False
    if node.op == "call_module":
        return isinstance(root.get_submodule(str(node.target)), _MAKERS)
    if node.op == "call_method" and node.target == "permute":  # of a join whose channels lie side by side
        total: Any = node.args[0]
        return total.target in ("scatter_add_", torch.cat) and len(total.users) == 1
    return node.target in (_JOINS if node.op == "call_function" else _METHODS if node.op == "call_method" else ())
