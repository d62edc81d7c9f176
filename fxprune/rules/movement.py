"""Pure data movement needs no rule of its own: run the op on a tensor of ids and read the result. In the slim graph it
is a gather that costs nothing, the same op on a narrower tensor, or runs at full width."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from fxprune.channels.ids import FIXED, Ids
from fxprune.rules.operands import Piece, Slim, wanted_of, whole_op
from fxprune.rules.registry import Flow, Op, find_rule, name_of, rule

_METHODS = (
    "view", "reshape", "flatten", "unflatten", "ravel", "permute", "transpose", "swapaxes", "swapdims", "movedim",
    "moveaxis", "t", "squeeze", "unsqueeze", "expand", "repeat", "tile", "repeat_interleave", "narrow", "select",
    "unfold",
    "chunk", "split", "tensor_split", "split_with_sizes", "unbind", "hsplit", "vsplit", "roll", "flip", "rot90",
    "diagonal", "index_select",
)  # fmt: skip
_FUNCTIONS = (
    "reshape", "flatten", "unflatten", "ravel", "permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis",
    "t", "squeeze", "unsqueeze", "broadcast_to", "tile", "repeat_interleave", "narrow", "select", "chunk", "split",
    "tensor_split", "unbind", "hsplit", "vsplit", "roll", "flip", "rot90", "diagonal",
    "index_select",
)  # fmt: skip


MODULES = (nn.ChannelShuffle, nn.Flatten, nn.Unflatten)


@rule(*_METHODS, *(getattr(torch, name) for name in _FUNCTIONS), F.channel_shuffle, *MODULES, lazy=True)
def move(op: Op) -> Any:
    scaler = _scales(op)
    moved = run_on_ids(op)
    if isinstance(moved, torch.Tensor):
        return Flow(_beside_batch(op, compress(moved)), scaler=scaler)
    return tuple(Flow(compress(part), scaler=scaler) for part in moved)


def _beside_batch(op: Op, ids: Ids) -> Ids:
    """Channels that a view puts among the samples, ``x.view(b * 2, c // 2, h, w)``: alive in one of them, alive in all.

    The positions along such an axis are those of this example's batch size, and no other.
    """
    name = name_of(op.node)
    if ids.ndim < 2 or ids.shape[0] == 1:
        return ids
    if name == "flatten":
        among = op.value().ndim > 1 and op.get("start_dim", 1, 0) == 0
    elif name in ("view", "reshape"):
        given: Any = op.node.args[1:]
        first = given[0][0] if given and isinstance(given[0], (tuple, list)) else given[0] if given else None
        among = first == -1 or (isinstance(first, fx.Node) and _counts_samples(first))
    else:
        among = False
    return op.table.any(*(ids[k : k + 1] for k in range(ids.shape[0]))) if among else ids


def _counts_samples(number: fx.Node) -> bool:
    """Is it computed from the size of an axis 0?"""
    owner, *index = number.args
    if number.target in ("size", operator.getitem) and index == [0] and isinstance(owner, fx.Node):
        return True
    return any(
        _counts_samples(node) for node in number.all_input_nodes if not isinstance(node.meta["value"], torch.Tensor)
    )


@rule(torch.hstack, torch.vstack, torch.dstack, torch.select_scatter, torch.slice_scatter)
def put_together(op: Op) -> Flow | None:
    if isinstance(op.raw(0, "tensors"), fx.Node) and not isinstance(op.value(0, "tensors"), torch.Tensor):
        return None  # one node that stands for several tensors
    return Flow(compress(run_on_ids(op)), scaler=_scales(op))


@rule(torch.stack)
def stack(op: Op) -> Flow | None:
    if isinstance(op.raw(0, "tensors"), fx.Node):
        return None
    return Flow(compress(run_on_ids(op)), scaler=_scales(op))


@rule(torch.cat, torch.concat, torch.concatenate)
def cat(op: Op) -> Flow | None:
    """Along the channels; along another axis ids simply come to vary there."""
    tensors = op.raw(0, "tensors")
    if isinstance(tensors, fx.Node):
        return None
    dim = op.get("dim", 1, 0)
    values = [node.meta["value"] for node in tensors]
    axis = int(dim) % op.out.ndim
    parts = []
    for node, value in zip(tensors, values, strict=True):
        flow = op.find(node)
        ids = flow.ids if flow is not None else np.full((1,) * value.ndim, FIXED, dtype=np.int64)
        if value.ndim == op.out.ndim:  # torch.cat skips empty one-dimensional tensors
            parts.append(np.repeat(ids, value.shape[axis], axis) if ids.shape[axis] == 1 else ids)
    shape = [max(part.shape[k] for part in parts) for k in range(op.out.ndim)]
    if any(size > 1 for k, size in enumerate(shape) if k != axis):  # a dead part still has its size along this axis
        op.notes.sized += [(op.node, op.flows[node].ids.reshape(-1)) for node in tensors if op.find(node) is not None]
    wide = [np.broadcast_to(part, [*shape[:axis], part.shape[axis], *shape[axis + 1 :]]) for part in parts]
    return Flow(compress(torch.from_numpy(np.concatenate(wide, axis))), scaler=_scales(op))


@rule(operator.getitem, lazy=True)
def getitem(op: Op) -> Any:
    source, index = op.node.args[0], op.known(op.node.args[1])
    owner = op.flows.get(source)  # type: ignore[arg-type]
    if isinstance(owner, (tuple, dict)):
        return owner[index] if not isinstance(index, slice) else tuple(owner[index])
    if not isinstance(owner, Flow):
        return None
    return Flow(compress(expanded(op, source)[index]), scaler=owner.scaler)  # type: ignore[arg-type]


def run_on_ids(op: Op) -> Any:
    """The op itself, executed on the ids of its operands at the example's full size."""

    def ids_of(node: fx.Node) -> Any:
        value = node.meta["value"]
        if node is op.raw(2, "index") and isinstance(value, torch.Tensor):  # of index_select
            return op.known(node)
        return expanded(op, node) if isinstance(value, torch.Tensor) else value

    args, kwargs = fx.node.map_arg(op.node.args, ids_of), fx.node.map_arg(op.node.kwargs, ids_of)
    if op.module is not None:
        return op.module(*args, **kwargs)
    if op.node.op == "call_method":
        method = "reshape" if op.node.target == "view" else str(op.node.target)
        return getattr(args[0], method)(*args[1:], **kwargs)
    assert callable(op.node.target)
    return op.node.target(*args, **kwargs)


def expanded(op: Op, node: fx.Node) -> torch.Tensor:
    """The ids of a tensor, one per element; axes on which they do not depend have stride 0 and cost nothing."""
    shape = node.meta["value"].shape
    flow = op.find(node)
    ids = np.full((1,) * len(shape), FIXED, dtype=np.int64) if flow is None else flow.ids
    return torch.from_numpy(ids).expand(shape)


def compress(ids: torch.Tensor) -> Ids:
    """Back to size 1 along every axis on which the ids do not depend."""
    for axis in range(ids.ndim):
        if ids.shape[axis] > 1 and (ids.stride(axis) == 0 or bool((ids == ids.narrow(axis, 0, 1)).all())):
            ids = ids.narrow(axis, 0, 1)
    return np.ascontiguousarray(ids.numpy())


def _scales(op: Op) -> bool:
    flows = [op.find(node) for node in op.node.all_input_nodes]
    return all(flow.scaler for flow in flows if flow is not None)


@cat.emitter
def _cat(op: Op, slim: Slim) -> Piece | None:
    """Along the channels: the parts that live, one after the other. Along another axis: the same channels of each."""
    tensors: Any = op.raw(0, "tensors")
    axis = int(op.get("dim", 1, 0)) % op.out.ndim
    flow = slim.flow(op.node)
    assert flow is not None
    other = [k for k, size in enumerate(flow.ids.shape) if size > 1 and k != axis]
    if other:
        if len(other) > 1:
            return whole_op(op, slim)
        return _aligned(op, slim, tensors, other[0], lambda parts: slim.graph.call_function(torch.cat, (parts, axis)))
    offset, parts, positions = 0, [], []
    for node in tensors:
        size = node.meta["value"].shape[axis] if node.meta["value"].ndim == op.out.ndim else 0
        piece = slim.compact(node, axis) if slim.flow(node) is not None else Piece(slim.argument(node))
        if piece is not None and size:
            parts.append(piece.node)
            positions.append(piece.along(axis, size) + offset)
        offset += size
    existing = np.concatenate(positions)
    node = slim.graph.call_function(torch.cat, (parts, axis)) if len(parts) > 1 else parts[0]
    complete = np.array_equal(existing, np.arange(offset))
    return Piece(node) if complete else Piece(node, axis, existing)


@stack.emitter
def _stack(op: Op, slim: Slim) -> Piece | None:
    tensors: Any = op.raw(0, "tensors")
    dim = int(op.get("dim", 1, 0)) % op.out.ndim
    flow = slim.flow(op.node)
    assert flow is not None
    axes = [axis for axis, size in enumerate(flow.ids.shape) if size > 1 and axis != dim]
    if len(axes) != 1:
        return whole_op(op, slim)
    return _aligned(
        op, slim, tensors, axes[0], lambda parts: slim.graph.call_function(torch.stack, (parts, dim)), new=dim
    )


def _aligned(op: Op, slim: Slim, tensors: Any, axis: int, join: Any, new: int | None = None) -> Piece | None:
    """Every part at the channels along ``axis`` that any of them has, zeros where one lacks them."""
    flow = slim.flow(op.node)
    assert flow is not None
    along = np.moveaxis(slim.present[flow.ids], axis, 0).reshape(flow.ids.shape[axis], -1).any(1)
    positions = np.flatnonzero(along)
    own = axis - 1 if new is not None and new < axis else axis
    parts: list[Any] = []
    for node in tensors:
        if slim.flow(node) is None:
            parts.append(slim.constant(node, own, positions))
        else:
            parts.append(None if slim.piece(node) is None else slim.fetch(node, own, positions))
    living = next(part for part in parts if part is not None)
    parts = [slim.graph.call_function(torch.zeros_like, (living,)) if part is None else part for part in parts]
    return Piece(join(parts), axis, positions)


@put_together.emitter
def _put_together(op: Op, slim: Slim) -> Piece | None:
    return whole_op(op, slim)


@getitem.emitter
@move.emitter
def _move(op: Op, slim: Slim) -> Piece | None:
    """Three outcomes: only the labels of channels change; the op runs on the compact tensor, or on the full one."""
    source, steps = _source(op.node, slim)
    if source is None:  # a part of what an op with several results returned
        owner = op.node.args[0]
        assert isinstance(owner, fx.Node)
        found = slim.pieces.get(owner)
        base = found if found is not None else Piece(slim.whole(owner))
        return Piece(
            slim.graph.call_function(operator.getitem, (base.node, op.node.args[1])), base.axis, base.positions
        )
    piece = slim.piece(source)
    if piece is None:
        return None
    if piece.axis is not None:
        relabelled = _relabel(op, slim, piece, source, steps)
        if relabelled is not None:
            return relabelled
    parent, own = _parent(op.node)
    piece = slim.piece(parent)
    if piece is None:
        return None
    if piece.axis is None:
        return wanted_of(op, slim, Piece(_write(slim, own, piece.node)))
    return _replay(op, slim, piece, parent, own) or wanted_of(op, slim, Piece(_write(slim, own, slim.full(parent))))


def _parent(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """The tensor that a movement op reads, and the op itself: one node, or ``chunk`` and the ``getitem`` behind it.

    Of an input that is a list or dict of tensors there is no one tensor: it is read as a whole.
    """
    steps = [node]
    owner = node.args[0]
    while (
        isinstance(owner, fx.Node) and owner.op != "placeholder" and not isinstance(owner.meta["value"], torch.Tensor)
    ):
        steps.insert(0, owner)
        owner = owner.args[0]
    assert isinstance(owner, fx.Node)
    return owner, steps


def _source(node: fx.Node, slim: Slim) -> tuple[fx.Node | None, list[fx.Node]]:
    """Back through the chain of movement ops to the tensor that was computed (None: by an op with several results)."""
    steps: list[fx.Node] = []
    while True:
        parent, own = _parent(node)
        if not all(_is_movement(step, slim) for step in own):
            return (node if steps else None), steps
        steps[:0] = own
        if not _is_movement(parent, slim):
            return parent, steps
        node = parent


def _is_movement(node: fx.Node, slim: Slim) -> bool:
    module = slim.channels.trace.root.get_submodule(str(node.target)) if node.op == "call_module" else None
    rule = find_rule(node, module) if node.op.startswith("call") else None
    known = node not in slim.channels.opaque and slim.reads_channels(node)
    return rule is not None and rule.lazy and known


def _run(
    steps: list[fx.Node], value: torch.Tensor, slim: Slim, sizes: dict[fx.Node, tuple[Any, ...]] | None = None
) -> torch.Tensor:
    """Execute movement ops on an index tensor."""
    current: Any = value
    for step in steps:
        arguments = (sizes or {}).get(step)
        rest = fx.node.map_arg(step.args[1:], slim.known) if arguments is None else arguments
        kwargs: Any = fx.node.map_arg(step.kwargs, slim.known)
        if step.op == "call_module":
            current = slim.channels.trace.root.get_submodule(str(step.target))(current)
        elif step.op == "call_method":
            current = getattr(current, "reshape" if step.target == "view" else str(step.target))(*rest, **kwargs)
        else:
            current = step.target(current, *rest, **kwargs)  # type: ignore[operator]
    found: torch.Tensor = current
    return found


def _write(
    slim: Slim, steps: list[fx.Node], operand: fx.Node, sizes: dict[fx.Node, tuple[Any, ...]] | None = None
) -> fx.Node:
    """The same ops in the slim graph. ``view`` becomes ``reshape``: what was cut out is not contiguous."""
    for step in steps:
        arguments = (sizes or {}).get(step)
        rest = tuple(slim.argument(argument) for argument in step.args[1:]) if arguments is None else arguments
        kwargs = {key: slim.argument(entry) for key, entry in step.kwargs.items()}
        target = "reshape" if step.target == "view" else step.target
        if step.op == "call_module":
            slim.module(str(target))
        operand = slim.graph.create_node(step.op, target, (operand, *rest), kwargs)
    return operand


def _relabel(op: Op, slim: Slim, piece: Piece, source: fx.Node, steps: list[fx.Node]) -> Piece | None:
    """Nothing moved but channels along their own axis (chunk, shuffle, flip): the order of channels is ours anyway."""
    value, axis = source.meta["value"], piece.axis
    assert axis is not None
    if op.out.ndim != value.ndim or any(
        a != b for k, (a, b) in enumerate(zip(op.out.shape, value.shape, strict=True)) if k != axis
    ):
        return None
    shape = [1] * value.ndim
    shape[axis] = -1
    moved = compress(_run(steps, _positions(value.shape[axis]).reshape(shape).expand(value.shape), slim))
    if moved.size != moved.shape[axis]:
        return None
    if moved.shape[axis] != op.out.shape[axis]:
        return None
    if _crops(steps, value, axis, slim):
        return None
    others = [size for k, size in enumerate(value.shape) if k != axis]
    rest = _positions(math.prod(others)).reshape([*value.shape[:axis], 1, *value.shape[axis + 1 :]])
    if not torch.equal(_run(steps, rest.expand(value.shape), slim), rest.expand(op.out.shape)):
        return None
    origin = moved.reshape(-1)  # position here -> position in the source
    flow = slim.flow(op.node)
    assert flow is not None
    living = slim.present[flow.ids]
    rows = np.moveaxis(living, axis, 0).reshape(living.shape[axis], -1)
    wanted = np.broadcast_to(np.logical_or.reduce(rows, axis=1), [op.out.shape[axis]])
    label = np.full(value.shape[axis], -1, dtype=np.int64)
    kept = np.flatnonzero(wanted)
    if np.unique(origin[kept]).size != kept.size:
        return None
    label[origin[kept]] = kept
    existing = piece.along(axis, value.shape[axis])
    inside = existing[label[existing] >= 0]
    if inside.size != kept.size:
        return None
    node = slim.select(piece, axis, inside, value)
    return Piece(node, axis, label[inside])


def _crops(steps: list[fx.Node], value: torch.Tensor, axis: int, slim: Slim) -> bool:
    """Would a step drop something of a larger map, along an axis on which channels do not depend? ``x[:, :, :7]`` is
    nothing at all for an example of that size."""
    shape = [1] * value.ndim
    shape[axis] = -1
    current: Any = _positions(value.shape[axis]).reshape(shape).expand(value.shape)
    before, unit = current, []  # type: Any, list[fx.Node]
    for step in steps:
        unit.append(step)
        current = _run([step], current, slim)
        if not isinstance(current, torch.Tensor):
            continue  # chunk() and the like, of which the next step takes a part
        if not all(name_of(each) in _REARRANGES for each in unit):
            varying = compress(before).shape
            larger = [size + (varying[k] == 1) for k, size in enumerate(before.shape)]
            try:
                made = _run(unit, torch.zeros(()).expand(larger), slim)
            except (RuntimeError, IndexError, ValueError):
                return True
            if made.numel() * before.numel() != current.numel() * math.prod(larger):
                return True
        before, unit = current, []
    return False


_REARRANGES = (
    "view", "reshape", "flatten", "unflatten", "ravel", "permute", "transpose", "swapaxes", "swapdims", "movedim",
    "moveaxis", "t", "squeeze", "unsqueeze",
)  # fmt: skip


def _replay(op: Op, slim: Slim, piece: Piece, parent: fx.Node, steps: list[fx.Node]) -> Piece | None:
    """The op on the compact tensor, if that gives the compact result: found out on element indices."""
    value, axis = parent.meta["value"], piece.axis
    assert axis is not None
    flow = slim.flow(op.node)
    assert flow is not None
    shape = [1] * value.ndim
    shape[axis] = -1
    moved = compress(_run(steps, _positions(value.shape[axis]).reshape(shape).expand(value.shape), slim))
    elements = _positions(value.numel()).reshape(value.shape)
    target = _run(steps, elements, slim)
    existing = set(piece.along(axis, value.shape[axis]).tolist())
    for onto in sorted((k for k, size in enumerate(moved.shape) if size > 1), key=lambda k: -moved.shape[k]):
        present = np.broadcast_to(slim.present[flow.ids], np.broadcast_shapes(flow.ids.shape, moved.shape))
        positions = np.flatnonzero(np.moveaxis(present, onto, 0).reshape(present.shape[onto], -1).any(1))
        needed = moved.take(positions, onto).reshape(-1)
        _, first = np.unique(needed, return_index=True)
        rows = needed[np.sort(first)]
        if piece.positions is not None and set(rows.tolist()) == existing and moved.size == moved.shape[onto]:
            reordered = _in_order_of(piece.positions, moved, positions, onto)
            if reordered is not None:
                rows, positions = piece.positions, reordered
        sizes = _adapted(steps, slim, op, onto, int(positions.size), graph=False)
        try:
            got = _run(steps, elements.index_select(axis, torch.from_numpy(rows)), slim, sizes)
        except (RuntimeError, IndexError, ValueError):  # for example fewer channels left than chunks
            continue
        if got.shape[onto] == positions.size and torch.equal(
            got, target.index_select(onto, torch.from_numpy(positions))
        ):
            node = slim.select(piece, axis, rows, value)
            node = _write(slim, steps, node, _adapted(steps, slim, op, onto, int(positions.size), graph=True))
            return Piece(node, onto, positions)
    return None


def _in_order_of(existing: Ids, moved: Ids, positions: Ids, onto: int) -> Ids | None:
    """The result's positions when the operand keeps the order that it has."""
    along = moved.reshape(-1)
    groups = {int(row): [] for row in existing}  # type: dict[int, list[int]]
    for position in positions:
        row = int(along[position])
        if row not in groups:
            return None
        groups[row].append(int(position))
    return np.array([position for row in existing for position in groups[int(row)]], dtype=np.int64)


_SHAPED = ("view", "reshape", torch.reshape, "expand", torch.broadcast_to)


def _adapted(
    steps: list[fx.Node], slim: Slim, op: Op, axis: int, size: int, *, graph: bool
) -> dict[fx.Node, tuple[Any, ...]]:
    """Shape arguments with the entry of the pruned axis replaced: the model's author wrote the original width there."""
    last = steps[-1]
    if last.target not in _SHAPED or size == op.out.shape[axis]:
        return {}
    given = tuple(last.args[1:])
    dims: list[Any] = list(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else list(given)
    if len(dims) != op.out.ndim:
        return {}
    values = [n.meta["value"] if isinstance(n, fx.Node) else n for n in dims]
    free = last.target in ("view", "reshape", torch.reshape) and -1 not in [
        v for k, v in enumerate(values) if k != axis
    ]
    entries = [slim.argument(entry) for entry in dims] if graph else values
    entries[axis] = -1 if free else size
    return {last: (tuple(entries),)}


def _positions(count: int) -> torch.Tensor:
    """On the CPU, whatever torch's default device is."""
    return torch.arange(count, device="cpu")
