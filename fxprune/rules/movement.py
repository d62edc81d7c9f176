"""Pure data movement needs no rule per op: run the op on a tensor of ids and read the result. In the slim graph it is
free (only the order of channels changes), or the same op on a narrower tensor, or the op at full width."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import fx, nn

from fxprune.channels import Zeros
from fxprune.channels.ids import FIXED, Ids, immortal
from fxprune.rules.elementwise import also_reads
from fxprune.rules.operands import Grid, GridPiece, Piece, Slim, wanted_of, whole_op, zeros
from fxprune.rules.registry import RULES, Cut, Flow, Op, find_rule, name_of, rule

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
    if name_of(op.node) == "select":
        _note_blind(op, int(op.get("dim", 1)), [int(op.get("index", 2))])
    moved = run_on_ids(op)
    if isinstance(moved, torch.Tensor):
        return Flow(_beside_batch(op, compress(moved)), scaler=scaler)
    return tuple(Flow(compress(part), scaler=scaler) for part in moved)


def _beside_batch(op: Op, ids: Ids) -> Ids:
    """Channels that a view puts beside samples, ``x.view(b * 2, c // 2, h, w)``: alive in one part means alive in all.

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
    """Along the channels their ids follow one another; along another axis ids vary there. A constant beside tokens (a
    class token) has their channels."""
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
    if any(size > 1 for k, size in enumerate(shape) if k != axis):  # a dead part still adds its size
        op.notes.sized += [(op.node, op.flows[node].ids.reshape(-1)) for node in tensors if op.find(node) is not None]
    beside = _beside_tokens(op, tensors, parts, axis) if len(parts) == len(tensors) else None
    if beside is not None:
        return Flow(beside, clean=False, scaler=_scales(op))
    wide = [np.broadcast_to(part, [*shape[:axis], part.shape[axis], *shape[axis + 1 :]]) for part in parts]
    return Flow(compress(torch.from_numpy(np.concatenate(wide, axis))), scaler=_scales(op))


def _beside_tokens(op: Op, tensors: Sequence[fx.Node], parts: list[Ids], axis: int) -> Ids | None:
    """The channels of the tokens, if a tensor without channels of its own is put beside them; else None."""
    if any(part.size == 0 for part in parts):
        return None
    plain = [bool((part == part.flat[0]).all()) for part in parts]
    tokens = [part for part, is_plain in zip(parts, plain, strict=True) if not is_plain]
    if len(tokens) in (0, len(parts)) or any(not bool((part == part.take([0], axis)).all()) for part in tokens):
        return None
    ids = op.table.any(*(part.take([0], axis) for part in tokens))
    if bool(immortal(ids).any()):
        return None
    ends = np.cumsum([part.shape[axis] for part in parts])
    blind: set[int] = set()
    for node, part, is_plain, end in zip(tensors, parts, plain, ends, strict=True):
        if is_plain:
            ids = also_reads(op.table, ids, Flow(part.reshape(-1)[:1].reshape((1,) * part.ndim)))
            if _is_constant(node):
                blind.update(range(end - part.shape[axis], end))
    op.notes.blind[op.node] = axis, frozenset(blind)
    return ids


def _is_constant(node: fx.Node) -> bool:
    """Does it depend on nothing of the input but its sizes?"""
    sources = [source for source in node.all_input_nodes if isinstance(source.meta["value"], torch.Tensor)]
    return node.op == "get_attr" or (bool(sources) and all(map(_is_constant, sources)))


def _note_blind(op: Op, axis: int, positions: Iterable[int]) -> None:
    """Tokens that begin as constants are read alone: all they know of the input comes from attention."""
    source = op.node.args[0]
    assert isinstance(source, fx.Node)
    size = source.meta["value"].shape[axis]
    chosen = {position % size for position in positions}
    for node, (along, blind) in op.notes.blind.items():
        if along == axis and chosen <= blind and node.meta["value"].shape[axis] == size:
            attended = op.table.scaled(op.notes.met)
            readers = [mixer.ids for mixer in op.notes.mixers if attended[mixer.inputs].any()]
            if readers:
                op.notes.seen.append((op.node, np.unique(np.concatenate([ids.reshape(-1) for ids in readers]))))


@rule(operator.getitem, lazy=True)
def getitem(op: Op) -> Any:
    source, index = op.node.args[0], op.known(op.node.args[1])
    owner = op.flows.get(source)  # type: ignore[arg-type]
    if isinstance(owner, (tuple, dict)):
        return owner[index] if not isinstance(index, slice) else tuple(owner[index])
    if not isinstance(owner, Flow):
        return None
    entries = [entry for entry in (index if isinstance(index, tuple) else (index,)) if entry is not None]
    for axis, entry in enumerate(entries):
        if isinstance(entry, int) and not any(other is Ellipsis for other in entries):
            _note_blind(op, axis, [entry])
    return Flow(compress(expanded(op, source)[index]), scaler=owner.scaler)  # type: ignore[arg-type]


@rule(torch.ops.aten.index.Tensor)
def picked(op: Op) -> Flow | None:
    """Positions that depend on the input: channels stay the same as long as the positions are not along their axis."""
    flow, entries = op.flow(), op.raw(1, "indices")
    if any(entry is not None and flow.ids.shape[axis] > 1 for axis, entry in enumerate(entries)):
        return None
    positions = [index.ids for entry in entries if (index := op.find(entry)) is not None]
    if any(ids.size > 1 for ids in positions):
        return None
    anywhere = tuple(
        slice(None) if entry is None else torch.zeros(entry.meta["value"].shape, dtype=torch.int64) for entry in entries
    )
    source = op.node.args[0]
    assert isinstance(source, fx.Node)
    ids = compress(expanded(op, source)[anywhere])
    for position in positions:
        if not bool(immortal(position).all()):  # computed from the size of a tensor that may be removed
            ids = op.table.all(ids, position.reshape((1,) * ids.ndim))
    return Flow(ids, scaler=flow.scaler)


@picked.emitter
def _picked(op: Op, slim: Slim) -> Piece | None:
    source, entries = op.node.args[0], op.raw(1, "indices")
    piece, flow = slim.piece(source), slim.flow(op.node)
    if piece is None or flow is None:
        return None
    if piece.axis is not None and flow.axis is None:
        return whole_op(op, slim)
    index = tuple(slice(None) if entry is None else slim.argument(entry) for entry in entries)
    return Piece(slim.graph.call_function(operator.getitem, (piece.node, index)), flow.axis, piece.positions)


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


@cat.constants
def _cut_beside(op: Op, flow: Flow, constant: fx.Node, of_heads: npt.NDArray[np.bool_]) -> Cut | None:
    """Of a concat along the channels a constant part stays whole; along another axis it has the others' channels."""
    axis = int(op.get("dim", 1, 0)) % op.out.ndim
    others = [k for k, size in enumerate(flow.ids.shape) if size > 1 and k != axis]
    return _along(flow, others[0], constant, others[0]) if len(others) == 1 else None


@stack.constants
def _cut_stacked(op: Op, flow: Flow, constant: fx.Node, of_heads: npt.NDArray[np.bool_]) -> Cut | None:
    dim = int(op.get("dim", 1, 0)) % op.out.ndim
    others = [k for k, size in enumerate(flow.ids.shape) if size > 1 and k != dim]
    return _along(flow, others[0], constant, others[0] - (dim < others[0])) if len(others) == 1 else None


def _along(flow: Flow, axis: int, constant: fx.Node, own: int) -> Cut | None:
    if constant.meta["value"].shape[own] == 1:
        return None
    ids = np.moveaxis(flow.ids, axis, 0).reshape(flow.ids.shape[axis], -1)
    return Cut(ids[None, :, 0]) if bool((ids == ids[:, :1]).all()) else None  # channels that other parts lack stay


@move.constants
def _cut_spread(op: Op, flow: Flow, constant: fx.Node, of_heads: npt.NDArray[np.bool_]) -> Cut | None:
    """A class token that is given to every sample is cut as what it is put beside."""
    readers, sizes = list(op.node.users), op.node.args[1:]
    if op.node.target != "expand" or len(readers) != 1 or RULES.get(readers[0].target) is not cat:
        return None
    reader = Op(readers[0], None, op.table, op.flows, op.notes)
    channels = op.flows[readers[0]]
    kept = [axis for axis, size in enumerate(channels.ids.shape) if size > 1]
    if len(sizes) != op.out.ndim or len(kept) != 1 or sizes[kept[0]] != -1:
        return None
    return _cut_beside(reader, channels, op.node, of_heads)


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
    for node in tensors:  # in the order in which a part has them
        piece = None if slim.flow(node) is None or _is_constant(node) else slim.piece(node)
        if piece is not None and piece.axis == own and np.array_equal(np.sort(piece.along(own, 0)), positions):
            positions = piece.along(own, 0)
            break
    parts: list[Any] = []
    for node in tensors:
        if slim.flow(node) is None:
            parts.append(slim.constant(node, own, positions))
            continue
        spread = _spread_constant(node, slim, own, positions)
        parts.append(spread or (None if slim.piece(node) is None else slim.fetch(node, own, positions)))
    source, living = next((node, part) for node, part in zip(tensors, parts, strict=True) if part is not None)
    parts = [_zeros_beside(slim, node, source, living, own) if part is None else part
             for node, part in zip(tensors, parts, strict=True)]  # fmt: skip
    return Piece(join(parts), axis, positions)


def _zeros_beside(slim: Slim, node: fx.Node, source: fx.Node, living: fx.Node, channels: int) -> fx.Node:
    """Zeros for a part of which nothing is read, with the channels of a living part and sizes of its own."""
    own, theirs = node.meta["value"].shape, source.meta["value"].shape
    if all(size == other for axis, (size, other) in enumerate(zip(own, theirs, strict=True)) if axis != channels):
        return slim.graph.call_function(torch.zeros_like, (living,))
    return zeros(slim, node, source, living, channels)


def _spread_constant(node: fx.Node, slim: Slim, axis: int, positions: Ids) -> fx.Node | None:
    """A class token that is given to every sample: what is cut is the parameter."""
    sizes = node.args[1:]
    if node.target != "expand" or not _is_constant(node) or len(sizes) != node.meta["value"].ndim or sizes[axis] != -1:
        return None
    token: Any = node.args[0]
    own = axis - len(sizes) + token.meta["value"].ndim
    cut = slim.constant(token, own, positions)
    return slim.graph.call_method("expand", (cut, *(slim.argument(size) for size in sizes)))


@put_together.emitter
def _put_together(op: Op, slim: Slim) -> Piece | None:
    return whole_op(op, slim)


@getitem.emitter
@move.emitter
def _move(op: Op, slim: Slim) -> Piece | GridPiece | None:
    """One of three: only the order of channels changes, the op runs on the compact tensor, or on the full one."""
    source, steps = _source(op.node, slim)
    if source is None:  # a part of what an op with several results returned
        owner = op.node.args[0]
        assert isinstance(owner, fx.Node)
        written = slim.pieces.get(owner)
        base = written if written is not None else Piece(slim.whole(owner))
        return Piece(
            slim.graph.call_function(operator.getitem, (base.node, op.node.args[1])), base.axis, base.positions
        )
    laid_out = slim.laid_out(source)
    if laid_out is None:
        return None
    flow = slim.flow(op.node)
    grid = slim.grid(flow.ids) if flow is not None else None
    if isinstance(laid_out, GridPiece) or (grid is not None and laid_out.axis is not None):
        rearranged = _rearranged(op, slim, laid_out, source, steps, grid)
        if rearranged is not None:
            return rearranged
    piece = slim.piece(source)
    assert piece is not None
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

    If the input is a list or dict of tensors there is no such tensor: it is read as a whole.
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
    known = slim.channels.zeros.get(node) is not Zeros.UNKNOWN and slim.reads_channels(node)
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
    moved: torch.Tensor = current
    return moved


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
    """Only channels moved, along their own axis (chunk, shuffle, flip): that is free, for we choose their order."""
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


def _rearranged(
    op: Op, slim: Slim, piece: Piece | GridPiece, source: fx.Node, steps: list[fx.Node], grid: Grid | None
) -> Piece | GridPiece | None:
    """Channels split into heads, heads joined, or their axes in another order. However many views the model has, the
    slim net splits or joins once and permutes once. None if positions move too: checked on element indices."""
    flow, value = slim.flow(op.node), source.meta["value"]
    assert flow is not None
    before = piece.grid if isinstance(piece, GridPiece) else None
    ours: list[int] = [before.outer, before.axis] if before is not None else [piece.axis]  # type: ignore[union-attr, list-item]
    onto = [axis for axis, size in enumerate(flow.ids.shape) if size > 1]
    if grid is None and (len(onto) != 1 or before is None):
        return None
    elements = _positions(value.numel()).reshape(value.shape)
    target = _run(steps, elements, slim)
    runs = _axes_of_positions(value.shape, ours, target, onto)
    if runs is None:
        return None
    if grid is not None:
        onto = [grid.outer, grid.axis]
        kept = grid.take(target)
    else:
        kept = target.movedim(onto[0], 0)
    where = torch.unravel_index(kept.flatten(len(onto))[..., 0].reshape(-1), value.shape)
    if any(bool(where[axis].any()) for axis in range(value.ndim) if axis not in ours):
        return None  # the first position of a channel is not where it was
    channel = where[ours[0]] if before is None else where[ours[0]] * value.shape[ours[1]] + where[ours[1]]
    node, compact, positions = piece.node, elements, np.zeros(0, dtype=np.int64)
    if before is None:
        assert isinstance(piece, Piece)
        node = slim.select(piece, ours[0], channel.numpy(), value)
        compact = elements.index_select(ours[0], channel)
    elif grid is not None:
        heads, places = np.divmod(channel.numpy().reshape(grid.positions.shape), value.shape[ours[1]])
        if not (heads == heads[:, :1]).all():
            return None
        moved = Grid(before.outer, heads[:, 0], before.axis, places)
        node = slim.fetch_grid(source, moved)
        compact = moved.take(elements).movedim((0, 1), (before.outer, before.axis))
    else:
        place = np.full(value.shape[ours[0]] * value.shape[ours[1]], -1, dtype=np.int64)
        place[channel.numpy()] = np.arange(channel.numel())
        positions = place[before.numbered(value.shape[ours[1]])]
        if (positions < 0).any() or not np.isin(slim.wanted(flow.ids.reshape(-1)), positions).all():
            return None
        compact = before.take(elements).movedim((0, 1), (before.outer, before.axis))
        kept = kept[torch.from_numpy(positions)]
    ways = _permuted(value.ndim, ours, target.ndim, onto, runs, None if grid is None else grid.positions.shape)
    for method, arguments in ways:
        compact = getattr(compact, method)(*arguments)
    if not torch.equal(compact.movedim(onto, list(range(len(onto)))), kept):
        return None
    for method, arguments in ways:
        node = slim.graph.call_method(method, (node, *arguments))
    return Piece(node, onto[0], positions) if grid is None else GridPiece(node, grid)


def _axes_of_positions(
    shape: Sequence[int], channels: list[int], indices: torch.Tensor, onto: list[int]
) -> dict[int, list[int]] | None:
    """Of each axis of the result that is none of channels, the axes of the operand that it is made of: one, or several
    side by side. ``indices`` holds indices of the operand's elements; None where an axis was cut, or is new."""
    strides = torch.empty(shape, device="meta").stride()
    left = [axis for axis in range(len(shape)) if axis not in channels]
    runs: dict[int, list[int]] = {}
    for axis, size in enumerate(indices.shape):
        if axis in onto:
            continue
        if size == 1:
            last = next((k for k in left if shape[k] == 1), None)
        else:
            step = int(indices.select(axis, 1).flatten()[0] - indices.flatten()[0])
            last = next((k for k in left if strides[k] == step and shape[k] > 1), None)
        if last is None:
            return None
        run = [last]
        while math.prod(shape[k] for k in run) < size and run[0] - 1 in left:
            run.insert(0, run[0] - 1)
        if math.prod(shape[k] for k in run) != size:
            return None
        left = [k for k in left if k not in run]
        runs[axis] = run
    return None if left else runs


def _permuted(
    rank: int, ours: list[int], after: int, onto: list[int], runs: dict[int, list[int]], apart: Sequence[int] | None
) -> list[tuple[str, tuple[Any, ...]]]:
    """The methods that bring axes where they belong: channels into heads of size ``apart`` (None: out of heads), axes
    in another order, axes of positions into one."""
    ways: list[tuple[str, tuple[Any, ...]]] = []
    now: list[Any] = list(range(rank))
    if apart is not None and len(ours) == 1:
        ways.append(("unflatten", (ours[0], tuple(apart))))
        now[ours[0] : ours[0] + 1] = ["heads", "channels"]
    elif len(ours) == 2:
        now[ours[0]], now[ours[1]] = "heads", "channels"
    of_channels = [["heads", "channels"]] if apart is None else [["heads"], ["channels"]]
    parts = [of_channels[onto.index(axis)] if axis in onto else runs[axis] for axis in range(after)]
    order = [now.index(label) for part in parts for label in part]
    if order != list(range(len(order))):
        ways.append(("permute", tuple(order)))
    start = len(order)
    for part in reversed(parts):
        start -= len(part)
        if len(part) > 1:
            ways.append(("flatten", (start, start + len(part) - 1)))
    return ways


def _crops(steps: list[fx.Node], value: torch.Tensor, axis: int, slim: Slim) -> bool:
    """Would a step drop something of a map that is larger than the example's? ``x[:, :, :7]`` drops nothing of one with
    7 rows."""
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
                result = _run(unit, torch.zeros(()).expand(larger), slim)
            except (RuntimeError, IndexError, ValueError):
                return True
            if result.numel() * before.numel() != current.numel() * math.prod(larger):
                return True
        before, unit = current, []
    return False


_REARRANGES = (
    "view", "reshape", "flatten", "unflatten", "ravel", "permute", "transpose", "swapaxes", "swapdims", "movedim",
    "moveaxis", "t", "squeeze", "unsqueeze",
)  # fmt: skip


def _replay(op: Op, slim: Slim, piece: Piece, parent: fx.Node, steps: list[fx.Node]) -> Piece | None:
    """The op on the compact tensor, if that gives the compact result; this is tried on element indices."""
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
    """Shape arguments, with the original width of the pruned axis replaced by what is left of it."""
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
