"""One rule per op, found by lookup: a function, a method's name, or a module class.

A rule has two halves. *Relate* says which ids come out for the ids that go in; liveness, probability, need and cost
follow from that. *Emit* writes the op into the slim graph; the default runs the same op on the compact operand, which
is right for everything that looks at one channel at a time. Adding an op::

    @rule(torch.relu, nn.ReLU, "relu")
    def relu(op: Op) -> Flow:
        return op.flow()

Whether a channel of zeros stays zero is declared (``Flow.clean``) and never tried out: a bias that happens to be zero
today would pass the trial.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn

from fxprune.channels import Affine, Heads, Mixer, Product, Uncut
from fxprune.channels.ids import ONE, Ids, IdTable, distinct
from fxprune.errors import RuleError
from fxprune.trace.values import Values

if TYPE_CHECKING:
    from fxprune.rules.operands import GridPiece, Piece, Slim


@dataclass(frozen=True)
class Flow:
    """The channels of one tensor: an id per element, with size 1 along every axis on which the id does not depend."""

    ids: Ids
    clean: bool = True  # False: a dead channel does not stay zero behind this op, so a mask follows
    scaler: bool = False  # the output of a sigmoid or softmax, which is there to scale other channels
    writer: fx.Node | None = None  # the layer whose untouched output this is
    filled: bool = False  # with clean=False: zeros of padding became numbers too, which the mask leaves
    gate_of: fx.Node | None = None  # a layer whose gate stands behind this op, not behind the layer itself

    @property
    def axis(self) -> int | None:
        """The only axis along which ids vary; None if there is none, or more than one."""
        varying = [axis for axis, size in enumerate(self.ids.shape) if size > 1]
        return varying[0] if len(varying) == 1 else None

    def along(self, axis: int, table: IdTable, size: int) -> Ids:
        """One id per position of ``axis``: *any* over the others."""
        ids = np.moveaxis(self.ids, axis, 0).reshape(self.ids.shape[axis], -1)
        first: Ids = ids[:, 0]
        if not bool((ids == ids[:, :1]).all()):
            first = table.any(*distinct(ids.T)[0])
        return np.array(np.broadcast_to(first, (size,)), dtype=np.int64)


class NoChannels(Exception):
    """A rule asked for the channels of an argument that has none: the rule does not know this use of the op."""


@dataclass
class Op:
    """One node, as a rule sees it."""

    node: fx.Node
    module: nn.Module | None
    table: IdTable
    flows: dict[fx.Node, Any]
    notes: Notes

    @property
    def out(self) -> Any:
        """What the node computes for the example (a meta tensor, a tuple of them ...)."""
        return self.node.meta["value"]

    def value(self, position: int = 0, *names: str) -> Any:
        """One argument, a node replaced by the example's value."""
        raw = self.raw(position, *(names or ("input",)))
        return raw.meta["value"] if isinstance(raw, fx.Node) else raw

    def raw(self, position: int, *names: str) -> Any:
        """One argument as it stands in the graph (a node, a number, ...), by its position or one of its names."""
        if position < len(self.node.args):
            return self.node.args[position]
        return next((self.node.kwargs[name] for name in names if name in self.node.kwargs), None)

    def get(self, name: str, position: int, default: Any = None) -> Any:
        """A setting: the module's attribute, the keyword, or the positional argument."""
        if self.module is not None:
            return getattr(self.module, name, default)
        setting = self.node.kwargs.get(name, self.node.args[position] if position < len(self.node.args) else default)
        return fx.node.map_arg(setting, lambda n: n.meta["value"])

    def flow(self, position: int = 0, name: str = "input") -> Flow:
        """The flow of a tensor argument; a parameter or a number has none."""
        flow = self.find(self.raw(position, name))
        if flow is None:
            raise NoChannels(f"{self.node.name}: argument {position} carries no channels")
        return flow

    def known(self, argument: Any) -> Any:
        """An argument with every constant tensor replaced by its value; raises where one depends on the input."""

        def value(node: fx.Node) -> Any:
            if not isinstance(node.meta["value"], torch.Tensor):
                return node.meta["value"]
            try:
                return self.notes.constants.constant(node).cpu()
            except ValueError:
                raise NoChannels(f"{self.node.name}: the positions depend on data") from None

        return fx.node.map_arg(argument, value)

    def find(self, argument: Any) -> Flow | None:
        flow = self.flows.get(argument) if isinstance(argument, fx.Node) else None
        return flow if isinstance(flow, Flow) else None

    @property
    def inputs(self) -> list[fx.Node]:
        """The arguments that carry channels."""
        return [node for node in self.node.all_input_nodes if self.find(node) is not None]


@dataclass
class Notes:
    """What rules write down for the passes after them."""

    constants: Values
    batch: int  # of the example
    mixers: list[Mixer] = field(default_factory=list)
    affines: list[Affine] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    uncut: list[Uncut] = field(default_factory=list)
    sized: list[tuple[fx.Node, Ids]] = field(default_factory=list)  # tensors whose size the model reads
    tied: list[Ids] = field(default_factory=list)  # groups x channels that a group norm treats together
    heads: list[Heads] = field(default_factory=list)
    met: list[Ids] = field(default_factory=list)  # products of two tensors: where tokens get to know each other
    blind: dict[fx.Node, tuple[int, frozenset[int]]] = field(default_factory=dict)  # tokens that begin as constants
    seen: list[tuple[fx.Node, Ids]] = field(default_factory=list)  # where they are read alone, what tells them anything


Relate = Callable[[Op], Any]
Emit = Callable[[Op, "Slim"], "Piece | GridPiece | None"]


@dataclass(frozen=True, eq=False)
class Cut:
    """The ids (groups x channels, as in ``Affine``) with which a constant is cut; or only whole groups of it."""

    ids: Ids
    by_group: bool = False


Cuts = Callable[[Op, Flow, fx.Node, npt.NDArray[np.bool_]], Cut | None]


def beside(op: Op, flow: Flow, constant: fx.Node, of_heads: npt.NDArray[np.bool_]) -> Cut | None:
    """A constant that meets channels, or heads and their channels, element by element is cut with them."""
    lead = op.out.ndim - constant.meta["value"].ndim
    axes = [axis for axis, size in enumerate(flow.ids.shape) if size > 1]
    along = [axis >= lead and constant.meta["value"].shape[axis - lead] > 1 for axis in axes]
    if len(axes) == 2 and any(along) and bool(of_heads[flow.ids].all()):
        return Cut(flow.ids.reshape([flow.ids.shape[axis] for axis in axes]), by_group=not along[1])
    return Cut(flow.ids.reshape(1, -1)) if along == [True] else None


def in_full(op: Op, flow: Flow, constant: fx.Node, of_heads: npt.NDArray[np.bool_]) -> None:
    """The slim net reads it as it is."""


@dataclass
class Rule:
    """How an op treats channels. ``lazy`` ops are written only when a reader asks for them (pure data movement);
    ``cuts`` says how much of a constant the slim op reads."""

    relate: Relate
    emit: Emit | None = None
    lazy: bool = False
    cuts: Cuts = beside

    def emitter(self, emit: Emit) -> Emit:
        """Decorator: how to write the op into the slim graph, where "the same op on the compact operand" is wrong."""
        self.emit = emit
        return emit

    def constants(self, cuts: Cuts) -> Cuts:
        """Decorator: how constants are cut, if not to one entry per channel."""
        self.cuts = cuts
        return cuts


RULES: dict[Hashable, Rule] = {}


def rule(*targets: Hashable, lazy: bool = False) -> Callable[[Relate], Rule]:
    """Register a rule for functions, method names and module classes."""

    def register(relate: Relate) -> Rule:
        registered = Rule(relate, lazy=lazy)
        for target in dict.fromkeys(targets):  # some functions go by two names
            if target in RULES:
                raise RuleError(f"two rules for {target}", fix="remove one: an op has exactly one rule")
            RULES[target] = registered
        return registered

    return register


def find_rule(node: fx.Node, module: nn.Module | None) -> Rule | None:
    if node.meta.get("identity"):
        return RULES[nn.Identity]
    if node.meta.get("hooked"):  # its hooks may change what its class computes
        return None
    if module is not None:
        forward = getattr(type(module), "forward", None)  # a scripted module's class has none
        for cls in type(module).__mro__:
            if cls in RULES and getattr(cls, "forward", None) is forward:
                return RULES[cls]
        return None
    try:
        return RULES.get(node.target)
    except TypeError:  # an unhashable target
        return None


def name_of(node: fx.Node) -> str:
    """The name of its function or method: the same for ``torch.sum(x)`` and ``x.sum()``."""
    return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", ""))


def same_value(one: Any, other: Any) -> bool:
    """Do two nodes compute the same from the same parameters? (Two different slices of one parameter do not.)"""
    if isinstance(one, fx.Node) and isinstance(other, fx.Node):
        same = (one.op, one.target) == (other.op, other.target)
        return one is other or (same and same_value((one.args, one.kwargs), (other.args, other.kwargs)))
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(same_value, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_value(one[key], other[key]) for key in one)
    if isinstance(one, slice) and isinstance(other, slice):
        return same_value((one.start, one.stop, one.step), (other.start, other.stop, other.step))
    return type(one) is type(other) and bool(one == other)


def note_product(op: Op, ids: Ids, flops: int, needs: Ids | None = None, *, same_width: bool = False) -> None:
    """``flops`` of the example's batch; the last axis of ``ids`` are channels, the others heads; it runs in full where
    none of the ids is there that it ``needs``; products of ``same_width`` have as many channels as the widest."""
    grid = ids.reshape(-1, ids.shape[-1])
    each, rest = divmod(flops, grid.size * max(op.notes.batch, 1))
    if rest:  # channels that lie among the samples
        note_in_full(op, ids, flops)
    else:
        needed = np.array([ONE]) if needs is None else np.unique(needs)
        op.notes.products.append(Product(op.node, grid, each, np.unique(ids), needed, same_width))


def note_in_full(op: Op, ids: Ids, flops: int) -> None:
    """A product that runs at full width as long as any of ``ids`` is there."""
    own = np.unique(ids)
    op.notes.uncut.append(Uncut(op.node, op.node.name, own, own, 0, flops // max(op.notes.batch, 1)))


def unwritten(flow: Flow) -> Flow:
    """The same channels, but no longer the direct output of a layer: its gate cannot move behind the next op."""
    return replace(flow, writer=None) if flow.writer is not None else flow


def constant_flow(value: Any, identity: int = ONE) -> Any:
    """The flow of tensors that carry no prunable channel: one immortal id."""
    if isinstance(value, torch.Tensor):
        return Flow(np.full((1,) * value.ndim, identity, dtype=np.int64))
    if isinstance(value, (tuple, list)):
        parts = tuple(constant_flow(entry, identity) for entry in value)
        return None if all(part is None for part in parts) else parts
    if isinstance(value, dict):
        return {key: constant_flow(entry, identity) for key, entry in value.items()}
    return None
