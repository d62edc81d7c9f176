"""The slim graph while it is written: rules ask it for operands and add ops to it.

A tensor of the original net lives here as a ``Piece``: along one axis only some of the original positions exist, in
some order. Readers ask for it *compact* (whatever exists), *fetched* (exactly these positions, zeros where one does not
exist) or *full* (the original width, which is exact for any op because a dead channel is zero).
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn

from fxprune.core import Channels
from fxprune.ids import Ids
from fxprune.rules.registry import Flow, Op, find_rule
from fxprune.rules.writer import Writer
from fxprune.tracing.values import Values

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Piece:
    """A node of the slim graph; along ``axis`` it holds ``positions`` of the original. No axis: it is complete."""

    node: fx.Node
    axis: int | None = None
    positions: Ids | None = None

    def along(self, axis: int, size: int) -> Ids:
        """The original positions that exist along ``axis`` (of original size ``size``)."""
        return self.positions if axis == self.axis and self.positions is not None else np.arange(size)


class Gone(Exception):
    """Something was asked of a tensor that the slim net does not compute."""


class Slim(Writer):
    """The net and the pieces written so far."""

    def __init__(
        self,
        channels: Channels,
        model: nn.Module,
        present: Bools,
        gate_values: dict[str, torch.Tensor],
        rank: dict[str, Ids],
    ) -> None:
        super().__init__(model)
        self.channels, self.present = channels, present
        self.gate_values, self.rank = gate_values, rank
        self.pieces: dict[fx.Node, Any] = {}
        self.values: dict[fx.Node, Any] = {}  # sizes and numbers: plain, or nodes, or tuples of both
        self.constants = Values(channels.trace.root, model, torch.device("cpu"))
        self.grads: dict[fx.Node, bool | None] = {}
        self.joins: dict[str, str] = {}  # op of the original -> how it is written here
        self.masked = frozenset(channels.masks)
        self.times = Counter(node.target for node in channels.trace.graph.nodes if node.op == "call_module")
        self.owner = {mixer.node: mixer.name for mixer in channels.mixers}
        self.calls: dict[str, list[Any]] = {}
        layers: list[Any] = [*channels.mixers, *channels.affines]
        for layer in layers:
            self.calls.setdefault(layer.name, []).append(layer)

    # ------------------------------------------------------------ operands

    def flow(self, node: fx.Node) -> Flow | None:
        found = self.channels.flows.get(node)
        return found if isinstance(found, Flow) else None

    def reads_channels(self, node: fx.Node) -> bool:
        return any(isinstance(self.channels.flows.get(parent), (Flow, tuple, dict)) for parent in node.all_input_nodes)

    def piece(self, node: Any) -> Piece | None:
        """The tensor as it exists; None if nothing of it lives."""
        if node not in self.pieces:
            flow = self.flow(node)
            dead = flow is not None and not bool(self.present[flow.ids].any())
            rule = find_rule(node, None)
            assert rule is not None and rule.emit is not None
            self.pieces[node] = None if dead else rule.emit(self.op(node), self)
        found: Piece | None = self.pieces[node]
        return found

    def compact(self, node: fx.Node, axis: int) -> Piece | None:
        """The tensor with nothing missing along any other axis than ``axis``."""
        piece = self.piece(node)
        if piece is None or piece.axis in (None, axis):
            return piece
        return Piece(self.full(node))

    def fetch(self, node: fx.Node, axis: int, positions: Ids) -> fx.Node:
        """Exactly these positions along ``axis``, zeros where one does not exist."""
        piece = self.compact(node, axis)
        assert piece is not None
        return self.select(piece, axis, positions, node.meta["value"])

    def full(self, node: fx.Node) -> fx.Node:
        """The original width."""
        piece = self.piece(node)
        if piece is None:
            raise Gone(f"{node.name} is needed in full but nothing of it lives")
        if piece.axis is None:
            return piece.node
        value = node.meta["value"]
        return self.select(piece, piece.axis, np.arange(value.shape[piece.axis]), value)

    def select(self, piece: Piece, axis: int, positions: Ids, value: torch.Tensor) -> fx.Node:
        existing = piece.along(axis, value.shape[axis])
        if np.array_equal(existing, positions):
            return piece.node
        where = np.full(value.shape[axis] + 1, -1, dtype=np.int64)
        where[existing] = np.arange(existing.size)
        index = where[positions]
        node = piece.node
        if (index < 0).any():  # one zero channel at the end stands for all that do not exist
            if np.array_equal(positions[: existing.size], existing):
                return self.pad(node, axis, value.ndim, positions.size - existing.size)
            node = self.pad(node, axis, value.ndim, 1)
            index = np.where(index < 0, existing.size, index)
        if index.size and np.array_equal(index, np.arange(index[0], index[0] + index.size)):
            return self.graph.call_method("narrow", (node, axis, int(index[0]), int(index.size)))
        return self.graph.call_method("index_select", (node, axis, self.buffer("index", torch.from_numpy(index))))

    def wanted(self, ids: Ids) -> Ids:
        """Positions of a vector of ids that the slim net computes."""
        return np.flatnonzero(self.present[ids])

    # ------------------------------------------------------------ numbers and constants

    def argument(self, argument: Any) -> Any:
        """Any non-channel argument, for the slim graph: sizes by value, constants as attributes, tensors in full."""
        if isinstance(argument, fx.Node):
            if self.flow(argument) is not None:
                return self.full(argument)
            if argument in self.values:
                return self.values[argument]
            if argument in self.channels.flows and self.channels.flows[argument] is None:
                self.values[argument] = self._number(argument)
                return self.values[argument]
            if isinstance(argument.target, type):
                return self.replay(argument)
            if isinstance(self.channels.flows.get(argument), (tuple, dict)):
                return self.whole(argument)
            return self.constant(argument)
        if isinstance(argument, tuple):
            entries = [self.argument(entry) for entry in argument]
            return type(argument)(*entries) if hasattr(argument, "_fields") else tuple(entries)
        if isinstance(argument, list):
            return [self.argument(entry) for entry in argument]
        if isinstance(argument, dict):
            return {key: self.argument(entry) for key, entry in argument.items()}
        if isinstance(argument, slice):
            return slice(self.argument(argument.start), self.argument(argument.stop), self.argument(argument.step))
        return argument

    def _number(self, node: fx.Node) -> Any:
        """A size, a comparison: folded as far as it is known."""
        rule = find_rule(node, None) if node.op != "call_module" else None
        if rule is not None and rule.emit is not None and node.target in ("size", getattr):
            return rule.emit(self.op(node), self)
        if node.op != "call_function":
            return self.replay(node)
        args = tuple(self.argument(argument) for argument in node.args)
        kwargs = {key: self.argument(argument) for key, argument in node.kwargs.items()}
        return fold(node.target, args, kwargs, self.graph)

    def whole(self, node: fx.Node) -> fx.Node:
        """An op of several results, run on its complete operands."""
        if node not in self.pieces:
            self.pieces[node] = Piece(self.replay(node))
        found: Piece = self.pieces[node]
        return found.node

    def replay(self, node: fx.Node) -> fx.Node:
        """The op as it is, on complete operands."""
        if node.op == "call_module":
            self.module(str(node.target))
        args, kwargs = self.argument(tuple(node.args)), self.argument(dict(node.kwargs))
        made = self.graph.create_node(node.op, node.target, args, kwargs)
        if node.meta.get("is_wrapped"):
            made.meta["is_wrapped"] = True
        return made

    def constant(self, node: fx.Node, axis: int | None = None, positions: Ids | None = None) -> Any:
        """A parameter, a buffer or what is computed from them alone, cut to ``positions`` along ``axis``."""
        if node.op == "get_attr" and str(node.target).rpartition(".")[2] == "training":
            return self.training_flag(str(node.target))
        value = self.constants.constant(node)
        if not isinstance(value, torch.Tensor):
            return value
        if axis is not None and positions is not None and value.shape[axis] > 1:
            value = value.index_select(axis, torch.from_numpy(positions).to(value.device))
        name = str(node.target) if node.op == "get_attr" else node.name
        return self.attribute(name, value.detach().clone(), grad=self.grad(node))

    def known(self, node: fx.Node) -> Any:
        """The example's size, or the value of an index that the model holds."""
        value = node.meta["value"]
        return self.constants.constant(node).cpu() if isinstance(value, torch.Tensor) else value

    def grad(self, node: fx.Node) -> bool | None:
        """``requires_grad`` of a constant: that of any parameter it is computed from; None if there is none."""
        if node not in self.grads:
            self.grads[node] = self._grad(node)
        return self.grads[node]

    def _grad(self, node: fx.Node) -> bool | None:
        if node.op == "get_attr":
            value = self.constants.constant(node)
            return value.requires_grad if isinstance(value, nn.Parameter) else None
        found = [self.grad(parent) for parent in node.all_input_nodes]
        if node.op == "call_module":
            found += [parameter.requires_grad for parameter in self.op(node).module.parameters()]  # type: ignore[union-attr]
        known = [flag for flag in found if flag is not None]
        return any(known) if known else None

    # ------------------------------------------------------------ ops

    def op(self, node: fx.Node) -> Op:
        module = self.model.get_submodule(str(node.target)) if node.op == "call_module" else None
        return Op(node, module, self.channels.table, self.channels.flows, None)  # type: ignore[arg-type]

    def same(self, op: Op, operands: dict[fx.Node, fx.Node]) -> fx.Node:
        """The same op with some operands replaced by what stands for them here."""
        if op.node.op == "call_module":
            self.module(str(op.node.target))

        def put(argument: Any) -> Any:
            if isinstance(argument, fx.Node) and argument in operands:
                return operands[argument]
            if type(argument) in (tuple, list, fx.immutable_collections.immutable_list):
                return [put(entry) for entry in argument]
            return self.argument(argument)

        args = tuple(put(argument) for argument in op.node.args)
        kwargs = {key: put(argument) for key, argument in op.node.kwargs.items()}
        return self.graph.create_node(op.node.op, op.node.target, args, kwargs)

    def joined(self, op: Op, kind: str) -> None:
        self.joins[op.node.name] = kind


def fold(function: Any, args: Sequence[Any], kwargs: dict[str, Any], graph: fx.Graph) -> Any:
    """Arithmetic on sizes: done now if all operands are known, else written into the graph."""
    if function is operator.getitem and isinstance(args[0], (tuple, list)) and not isinstance(args[1], fx.Node):
        return args[0][args[1]]
    if not _has_node((args, kwargs)):
        return function(*args, **kwargs)
    return graph.call_function(function, tuple(args), kwargs)


def _has_node(tree: Any) -> bool:
    found: list[fx.Node] = []
    fx.node.map_arg(tree, found.append)
    return bool(found)
