"""The slim graph while it is written. Rules ask it for operands (compact, at given positions, or in full) and add ops
to it. Behind it: ways of writing an op that several rules share."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn

from fxprune.channels import Channels
from fxprune.channels.ids import Ids
from fxprune.modules import copy_module
from fxprune.rules.registry import Flow, Op, find_rule
from fxprune.trace.values import Values, attribute, has_attribute

_CHANNELS_LAST, _CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


class Writer:
    """A graph and the modules and tensors that it calls, under the names that they have in ``model``."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.graph, self.root = model, fx.Graph(), nn.Module()
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.buffers: dict[tuple[str, bytes], str] = {}  # kind and content of an index -> its name

    # ------------------------------------------------------------ ops whose form depends on the memory format

    def pad(self, node: fx.Node, axis: int, ndim: int, count: int) -> fx.Node:
        widths = [0, 0] * (ndim - 1 - axis) + [0, count]
        return self.graph.call_function(torch.nn.functional.pad, (node, widths))

    def scatter_add(self, base: fx.Node, axis: int, index: Ids, part: fx.Node, ndim: int) -> fx.Node:
        """Add ``part`` to these positions of ``base``, in place, in the form that is fastest for the memory format.

        ``index_add_`` goes channel by channel: in channels-last it is ten times slower than ``scatter_add_``.
        """
        call, at = self.graph.call_method, self.buffer("index", torch.from_numpy(index))
        part = call("type_as", (part, base))  # autocast may have made them differ
        if self.side_by_side(axis, ndim):
            base, part = self._channels_at_end(base), self._channels_at_end(part)
            total = call("scatter_add_", (base, 3, call("expand_as", (at, part)), part))
            return call("permute", (total, *_CHANNELS_FIRST))
        if axis == ndim - 1:
            return call("scatter_add_", (base, axis, call("expand_as", (at, part)), part))
        return call("index_add_", (base, axis, at, part))

    def concat(self, parts: list[fx.Node], axis: int, ndim: int) -> fx.Node:
        """Parts one after the other, in the form whose result keeps the memory format, in a compiled net too."""
        if self.side_by_side(axis, ndim):
            total = self.graph.call_function(torch.cat, ([self._channels_at_end(part) for part in parts], 3))
            return self.graph.call_method("permute", (total, *_CHANNELS_FIRST))
        return self.graph.call_function(torch.cat, (parts, axis))

    def one_channel_last(self, node: fx.Node) -> fx.Node:
        """A map of one channel, with the strides of channels-last. Norms leave it with contiguous strides; then the
        convolution that reads it would run in that format, which is slower, and pass it on."""
        call = self.graph.call_method
        return call("permute", (call("unsqueeze", (call("squeeze", (node, 1)), 3)), *_CHANNELS_FIRST))

    def _channels_at_end(self, node: fx.Node) -> fx.Node:
        if node.target == "permute" and node.args[1:] == _CHANNELS_FIRST:  # undo the permute that is there
            before = node.args[0]
            assert isinstance(before, fx.Node)
            return before
        return self.graph.call_method("permute", (node, *_CHANNELS_LAST))

    def side_by_side(self, axis: int, ndim: int) -> bool:
        return ndim == 4 and axis == 1 and self.channels_last

    @cached_property
    def channels_last(self) -> bool:
        """Are the model's filters in that memory format?"""
        maps = [parameter for parameter in self.model.parameters() if parameter.ndim == 4]
        return any(p.is_contiguous(memory_format=torch.channels_last) and not p.is_contiguous() for p in maps)

    # ------------------------------------------------------------ modules and tensors

    def attribute(self, path: str, value: torch.Tensor, *, grad: bool | None = None) -> fx.Node:
        """A parameter (``grad`` given) or buffer of the slim net; a number is added to a path that is taken."""
        value = value.to(self.device)
        name, number = path, 0
        while has_attribute(self.root, name):
            held = attribute(self.root, name)
            if isinstance(held, torch.Tensor) and held.shape == value.shape and torch.equal(held, value):
                return self.graph.get_attr(name)
            number += 1
            name = f"{path}_{number}"
        leaf, parent = name.rpartition(".")[2], self._parent(name)
        if grad is not None and value.is_floating_point():
            parent.register_parameter(leaf, nn.Parameter(value, grad))
        else:
            parent.register_buffer(leaf, value)
        return self.graph.get_attr(name)

    def buffer(self, stem: str, value: torch.Tensor) -> fx.Node:
        """An index; equal ones are shared."""
        key = stem, value.numpy().tobytes()
        if key in self.buffers:
            return self.graph.get_attr(self.buffers[key])
        held = self.attribute(f"{stem}_{len(self.buffers)}", value)
        self.buffers[key] = str(held.target)
        return held

    def module(self, path: str, module: nn.Module | None = None) -> str:
        """Install a module under its original name (a copy of the original if no ``module`` is given)."""
        held = attribute(self.root, path) if has_attribute(self.root, path) else None
        if held is None or type(held) is nn.Module:  # empty, there for a part installed before it
            module = copy_module(self.model.get_submodule(path)) if module is None else module
            for name, child in held.named_children() if held is not None else ():
                module.add_module(name, child)
            self._add(path, module)
        return path

    def _add(self, path: str, module: nn.Module) -> None:
        self._parent(path).add_module(path.rpartition(".")[2], module)

    def _parent(self, path: str) -> nn.Module:
        parent = self.root
        for atom in path.split(".")[:-1]:
            if atom not in parent._modules:
                parent.add_module(atom, nn.Module())
            parent = parent.get_submodule(atom)
        return parent

    def training_flag(self, path: str) -> fx.Node:
        """``self.training`` passed to a function."""
        owner, _, _ = path.rpartition(".")
        if owner and not has_attribute(self.root, owner):
            self._add(owner, nn.Module())
        return self.graph.get_attr(path)


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


@dataclass(frozen=True, eq=False)
class Grid:
    """Which heads are left along one axis, and along another one which channels of each: as many in all of them.

    ``positions`` (heads x channels) counts along ``axis``. A head that has fewer channels than
    others names removed ones, too: there the tensor holds zeros.
    """

    outer: int
    heads: Ids
    axis: int
    positions: Ids

    @property
    def alike(self) -> bool:
        """Whether all heads have the same channels."""
        return bool((self.positions == self.positions[:1]).all())

    def matches(self, other: Grid) -> bool:
        """The same channels in the same order; on whatever axes."""
        return np.array_equal(self.heads, other.heads) and np.array_equal(self.positions, other.positions)

    def numbered(self, width: int) -> Ids:
        """Its channels in order, numbered through heads of that ``width``."""
        return (self.heads[:, None] * width + self.positions).reshape(-1)

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """These heads and channels of a tensor; their axes come first."""
        moved = tensor.movedim((self.outer, self.axis), (0, 1))
        return moved[torch.from_numpy(self.heads)[:, None], torch.from_numpy(self.positions)]


@dataclass(frozen=True, eq=False)
class GridPiece:
    """A node of the slim graph that holds heads and channels of them."""

    node: fx.Node
    grid: Grid


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
        *,
        double: bool = False,
    ) -> None:
        super().__init__(model)
        self.channels, self.present = channels, present
        self.gate_values, self.rank = gate_values, rank
        self.pieces: dict[fx.Node, Any] = {}
        self.completed: dict[fx.Node, Piece] = {}  # grids, with zeros for what they lack
        self.values: dict[fx.Node, Any] = {}  # sizes and numbers: plain, or nodes, or tuples of both
        self.constants = Values(channels.trace.root, model, torch.device("cpu"), double=double)
        self.grads: dict[fx.Node, bool | None] = {}
        self.of_heads = channels.of_heads
        self.joins: dict[str, str] = {}  # op of the original -> how it is written here
        self.owner = {mixer.node: mixer.name for mixer in channels.mixers}
        self.calls: dict[str, list[Any]] = {}
        layers: list[Any] = [*channels.mixers, *channels.affines]
        for layer in layers:
            self.calls.setdefault(layer.name, []).append(layer)

    # ------------------------------------------------------------ operands

    def flow(self, node: fx.Node) -> Flow | None:
        flow = self.channels.flows.get(node)
        return flow if isinstance(flow, Flow) else None

    def reads_channels(self, node: fx.Node) -> bool:
        return any(isinstance(self.channels.flows.get(parent), (Flow, tuple, dict)) for parent in node.all_input_nodes)

    def laid_out(self, node: Any) -> Piece | GridPiece | None:
        """The tensor as it exists; pure data movement is written now, on demand. None if nothing of it lives."""
        if node not in self.pieces:
            rule = find_rule(node, None)
            assert rule is not None and rule.emit is not None
            moves = self.reads_channels(node)
            self.pieces[node] = rule.emit(self.op(node), self) if moves else Piece(self.replay(node))
        piece: Piece | GridPiece | None = self.pieces[node]
        return piece

    def piece(self, node: Any) -> Piece | None:
        """The same for rules that know one axis of channels only: for them heads are filled up to their full width."""
        piece = self.laid_out(node)
        if isinstance(piece, GridPiece):
            if node not in self.completed:
                heads, width = (node.meta["value"].shape[axis] for axis in (piece.grid.outer, piece.grid.axis))
                every = Grid(piece.grid.outer, np.arange(heads), piece.grid.axis, np.tile(np.arange(width), (heads, 1)))
                self.completed[node] = Piece(self.fetch_grid(node, every))
            return self.completed[node]
        return piece

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
        if (index < 0).any():  # one channel of zeros at the end is read for all that do not exist
            if np.array_equal(positions[: existing.size], existing):
                return self.pad(node, axis, value.ndim, positions.size - existing.size)
            node = self.pad(node, axis, value.ndim, 1)
            index = np.where(index < 0, existing.size, index)
        if index.size and np.array_equal(index, np.arange(index[0], index[0] + index.size)):
            return self.graph.call_method("narrow", (node, axis, int(index[0]), int(index.size)))
        return self.graph.call_method("index_select", (node, axis, self.buffer("index", torch.from_numpy(index))))

    def grid(self, ids: Ids) -> Grid | None:
        """What the slim net holds of ids that vary along two axes, heads first; None for other ids."""
        axes = [axis for axis, size in enumerate(ids.shape) if size > 1]
        if len(axes) != 2 or not bool(self.of_heads[ids].all()):
            return None
        living = self.present[ids].reshape(ids.shape[axes[0]], ids.shape[axes[1]])
        heads = np.flatnonzero(living.any(1))
        return Grid(axes[0], heads, axes[1], even_columns(living[heads])) if heads.size else None

    def fetch_grid(self, node: fx.Node, grid: Grid) -> fx.Node:
        """Exactly these heads and channels, zeros where one does not exist. A single head may stay single."""
        piece, value = self.laid_out(node), node.meta["value"]
        heads, width = (value.shape[axis] for axis in (grid.outer, grid.axis))
        before = Grid(grid.outer, np.arange(heads), grid.axis, np.tile(np.arange(width), (heads, 1)))
        if isinstance(piece, Piece) and heads == 1 and grid.alike:
            return self.fetch(node, grid.axis, grid.positions[0])
        if isinstance(piece, GridPiece) and (piece.grid.outer, piece.grid.axis) == (grid.outer, grid.axis):
            before, tensor = piece.grid, piece.node
        else:
            tensor = self.full(node)
        if before.matches(grid):
            return tensor
        if heads == 1:  # one for all
            if grid.alike:
                return self.select(Piece(tensor, grid.axis, before.positions[0]), grid.axis, grid.positions[0], value)
            grid = replace(grid, heads=np.zeros_like(grid.heads))
        if before.alike and grid.alike:
            tensor = self.select(Piece(tensor, grid.axis, before.positions[0]), grid.axis, grid.positions[0], value)
            return self.select(Piece(tensor, grid.outer, before.heads), grid.outer, grid.heads, value)
        call, last = self.graph.call_method, value.ndim - 1
        order = [axis for axis in range(value.ndim) if axis not in (grid.outer, grid.axis)] + [grid.outer, grid.axis]
        flat = call("flatten", (call("permute", (tensor, *order)), last - 1, last))
        channels = torch.empty([1] * (last - 1) + [heads * width], device="meta")
        flat = self.select(Piece(flat, last - 1, before.numbered(width)), last - 1, grid.numbered(width), channels)
        apart = call("unflatten", (flat, last - 1, grid.positions.shape))
        return call("permute", (apart, *np.argsort(order).tolist()))

    def cut_to_grid(self, node: fx.Node, grid: Grid, rank: int) -> fx.Node:
        """A constant that meets a tensor of ``rank`` axes, cut to these heads and channels along those it has."""
        value: torch.Tensor = self.constants.constant(node)
        value = value.reshape((1,) * (rank - value.ndim) + tuple(value.shape))
        if value.shape[grid.outer] > 1:
            value = value.index_select(grid.outer, torch.from_numpy(grid.heads).to(value.device))
        if value.shape[grid.axis] > 1:
            rows = grid.positions[:1] if grid.alike else grid.positions
            shape = [1] * rank
            shape[grid.outer], shape[grid.axis] = rows.shape
            index = torch.from_numpy(rows.copy() if grid.outer < grid.axis else rows.T.copy()).reshape(shape)
            value = torch.take_along_dim(value, index.to(value.device), grid.axis)
        return self.attribute(
            str(node.target) if node.op == "get_attr" else node.name, value.detach().clone(), grad=self.grad(node)
        )

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
        """A size or a comparison, computed now as far as it is known."""
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
        piece: Piece = self.pieces[node]
        return piece.node

    def replay(self, node: fx.Node) -> fx.Node:
        """The op as it is, on complete operands."""
        if node.op == "call_module":
            self.module(str(node.target))
        args, kwargs = self.argument(tuple(node.args)), self.argument(dict(node.kwargs))
        written = self.graph.create_node(node.op, node.target, args, kwargs)
        if node.meta.get("is_wrapped"):
            written.meta["is_wrapped"] = True
        return written

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
        flags = [self.grad(parent) for parent in node.all_input_nodes]
        if node.op == "call_module":
            flags += [parameter.requires_grad for parameter in self.op(node).module.parameters()]  # type: ignore[union-attr]
        known = [flag for flag in flags if flag is not None]
        return any(known) if known else None

    # ------------------------------------------------------------ ops

    def op(self, node: fx.Node) -> Op:
        module = self.model.get_submodule(str(node.target)) if node.op == "call_module" else None
        return Op(node, module, self.channels.table, self.channels.flows, None)  # type: ignore[arg-type]

    def same(self, op: Op, operands: dict[fx.Node, fx.Node]) -> fx.Node:
        """The same op, with some operands replaced by their nodes in the slim graph."""
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
    nodes: list[fx.Node] = []
    fx.node.map_arg(tree, nodes.append)
    return bool(nodes)


__all__ = [
    "ADD_TO", "Piece", "Slim", "cut_module", "living_only", "per_channel_function", "per_channel_module", "same_op",
    "scaled_by_gate", "sliced_constants", "wanted_of", "whole_op",
]  # fmt: skip


# ``view.add_(part)``; in this form the passes of torch.fx know that it is no dead code though nobody reads its result.
ADD_TO = torch.ops.aten.add_.Tensor


def same_op(op: Op, slim: Slim) -> Piece | None:
    """The same op on the compact operand: right for everything that looks at one channel at a time."""
    if len(op.inputs) != 1:
        return whole_op(op, slim)
    piece = slim.piece(op.inputs[0])
    if piece is None:
        return None
    operands = {op.inputs[0]: piece.node, **sliced_constants(op, slim, piece)}
    return Piece(slim.same(op, operands), piece.axis, piece.positions)


def element_by_element(op: Op, slim: Slim) -> Piece | GridPiece | None:
    """The same, for heads and channels of them as well."""
    piece = slim.laid_out(op.inputs[0]) if len(op.inputs) == 1 else None
    on_heads = on_grid(op, slim, piece.grid) if isinstance(piece, GridPiece) else None
    return on_heads or same_op(op, slim)


def on_grid(op: Op, slim: Slim, grid: Grid) -> GridPiece | None:
    """The op on operands that all have exactly the heads and channels of its result; None where one cannot."""
    operands: dict[fx.Node, Any] = {}
    for node in op.node.all_input_nodes:
        value = node.meta["value"]
        if not isinstance(value, torch.Tensor) or node in slim.values:
            continue
        lead = op.out.ndim - value.ndim
        own = Grid(grid.outer - lead, grid.heads, grid.axis - lead, grid.positions)
        heads, channels = (axis >= 0 and value.shape[axis] > 1 for axis in (own.outer, own.axis))
        if slim.flow(node) is None:
            operands[node] = slim.cut_to_grid(node, grid, op.out.ndim)
        elif slim.laid_out(node) is None or (channels and not heads):
            return None
        elif heads and channels:
            operands[node] = slim.fetch_grid(node, own)
        else:
            operands[node] = slim.fetch(node, own.outer, grid.heads) if heads else slim.full(node)
    return GridPiece(slim.same(op, operands), grid)


def sliced_constants(op: Op, slim: Slim, piece: Piece) -> dict[fx.Node, Any]:
    """Per-channel parameters and buffers among the arguments, cut to the channels that exist."""
    constants: dict[fx.Node, Any] = {}
    for node in op.node.all_input_nodes:
        value = node.meta["value"]
        if slim.flow(node) is None and node not in slim.values and isinstance(value, torch.Tensor):
            axis = None if piece.axis is None else piece.axis - (_ndim(op.out) - value.ndim)
            inside = axis is not None and axis >= 0
            constants[node] = slim.constant(node, axis if inside else None, piece.positions if inside else None)
    return constants


def living_only(op: Op, slim: Slim, piece: Piece, axis: int) -> Piece:
    """Each call of a module computes what any call needs: drop the channels that are dead in this call."""
    flow = slim.flow(op.node)
    assert flow is not None
    positions = piece.along(axis, op.out.shape[axis])
    living = positions[np.broadcast_to(slim.present[flow.ids].reshape(-1), (op.out.shape[axis],))[positions]]
    return Piece(slim.select(piece, axis, living, op.out), axis, living)


def per_channel_function(op: Op, slim: Slim) -> Piece | None:
    """A functional norm: its vectors (weight, bias, running statistics) cut to the channels of axis 1 that exist."""
    source = op.inputs[0]
    piece = slim.compact(source, 1)
    if piece is None:
        return None
    operands: dict[fx.Node, Any] = {source: piece.node}
    for node in op.node.all_input_nodes:
        value = node.meta["value"]
        if slim.flow(node) is None and isinstance(value, torch.Tensor):
            vector = value.ndim == 1 and value.numel() > 1
            operands[node] = slim.constant(node, 0 if vector else None, piece.positions)
    return Piece(slim.same(op, operands), piece.axis, piece.positions)


def whole_op(op: Op, slim: Slim) -> Piece | None:
    """The op on complete operands (exact for any op), then only the channels that are wanted."""
    dead = [node for node in op.inputs if slim.piece(node) is None]
    living = next((node for node in op.inputs if node not in dead), None)
    if living is None:
        return None
    operands = {node: zeros(slim, node, living) if node in dead else slim.full(node) for node in op.inputs}
    return wanted_of(op, slim, Piece(slim.same(op, operands)))


def zeros(
    slim: Slim, node: fx.Node, living: fx.Node, part: fx.Node | None = None, channels: int | None = None
) -> fx.Node:
    """Zeros for a dead tensor. Sizes equal to those of a living operand are read from it; others are fixed.

    ``part``: what exists of the living operand; its size is taken along ``channels``, whatever the dead one has there.
    """
    model, shape = slim.full(living) if part is None else part, node.meta["value"].shape
    same = living.meta["value"].shape if living.meta["value"].ndim == len(shape) else ()
    read = [axis == channels or bool(same and same[axis] == size) for axis, size in enumerate(shape)]
    sizes = [
        slim.graph.call_method("size", (model, axis)) if read[axis] else int(size) for axis, size in enumerate(shape)
    ]
    return slim.graph.call_method("new_zeros", (model, sizes))


def even_columns(read: Bools) -> Ids:
    """The columns that each group reads: the living ones, and dead ones (zeros) until all groups have as many."""
    count = int(read.sum(1).max())
    return np.sort(np.argsort(~read, axis=1, kind="stable")[:, :count], axis=1)


def wanted_of(op: Op, slim: Slim, piece: Piece) -> Piece:
    """Drop the channels of a complete result that nobody reads."""
    flow = slim.flow(op.node)
    if flow is None or flow.axis is None:
        return piece
    positions = slim.wanted(flow.ids.reshape(-1))
    if positions.size == flow.ids.size:
        return piece
    return Piece(slim.select(piece, flow.axis, positions, op.out), flow.axis, positions)


def per_channel_module(op: Op, slim: Slim) -> Piece | None:
    """A module with parameters per channel of axis 1: cut to the union of what its calls compute."""
    source = op.inputs[0]
    piece = slim.compact(source, 1)
    if piece is None:
        return None
    calls = slim.calls.get(str(op.node.target), [])
    if piece.axis is None and len(calls) < 2:
        return Piece(slim.same(op, {source: piece.node}))
    size = op.out.shape[1]
    positions = piece.along(1, size)
    if len(calls) > 1:
        positions = np.flatnonzero(np.logical_or.reduce([slim.present[call.ids] for call in calls]))
    path = slim.module(str(op.node.target), cut_module(op.module, positions, size))
    piece = Piece(slim.graph.call_module(path, (slim.fetch(source, 1, positions),)), 1, positions)
    return living_only(op, slim, piece, 1) if len(calls) > 1 else piece


def cut_module(module: nn.Module | None, positions: Ids, size: int) -> nn.Module:
    """A copy whose vectors of length ``size`` keep ``positions`` only."""
    assert module is not None
    index = torch.from_numpy(positions)
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        if tensor.ndim == 1 and tensor.shape[0] == size:
            cut = tensor.detach().index_select(0, index.to(tensor.device))
            memo[id(tensor)] = nn.Parameter(cut, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else cut
    cut_copy = copy_module(module, memo)
    for width in ("num_features", "num_parameters", "num_channels"):
        if hasattr(cut_copy, width):
            setattr(cut_copy, width, int(positions.size))
    return cut_copy


def scaled_by_gate(slim: Slim, piece: Piece, axis: int, values: torch.Tensor, ndim: int) -> Piece:
    """A gate that cannot be multiplied into a batch norm or a weight: an explicit multiply."""
    if bool((values == 1).all()):
        return piece
    shape = [1] * ndim
    shape[axis] = -1
    positions = piece.along(axis, values.numel())
    constant = slim.attribute("gate_0", values[torch.from_numpy(positions)].reshape(shape))
    return Piece(slim.graph.call_function(torch.mul, (piece.node, constant)), piece.axis, piece.positions)


def _ndim(value: Any) -> int:
    return value.ndim if isinstance(value, torch.Tensor) else _ndim(value[0])
