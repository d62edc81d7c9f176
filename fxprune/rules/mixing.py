"""Ops that mix channels: convolutions, linear layers, matrix products."""

from __future__ import annotations

import math
import operator
import string
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from fxprune.channels import Mixer
from fxprune.channels.ids import ZERO, Ids
from fxprune.count import positions
from fxprune.rules.contraction import contract
from fxprune.rules.elementwise import not_zero
from fxprune.rules.heads import meeting, scores_of_heads, values_of_heads
from fxprune.rules.operands import Grid, GridPiece, Piece, Slim, even_columns, living_only, scaled_by_gate, whole_op
from fxprune.rules.registry import Flow, Op, in_full, note_in_full, note_product, rule, same_value
from fxprune.torch_private import AnyTransposedConv, SpectralNorm, WeightNorm, pre_hooks


def _owner(op: Op, weight: Any) -> str:
    """What users call the layer: the path of its module, or of its weight where a function is called directly."""
    if op.module is not None:
        return str(op.node.target)
    if "layer" in op.node.meta:  # a layer inside a module that has no submodules for its layers
        return str(op.node.meta["layer"])
    while isinstance(weight, fx.Node) and weight.op != "get_attr":  # a weight computed from a parameter
        weight = next((node for node in weight.all_input_nodes if node.op != "placeholder"), None)
    path = str(weight.target) if isinstance(weight, fx.Node) else ""
    return op.node.name if path in ("", "weight") else path.removesuffix(".weight")


def name_of_layer(op: Op, ids: Ids, inputs: Ids, kernel: int, bias: bool) -> str:
    """A weight that is called as a function is the layer that owns it, or one of its own."""
    name = _owner(op, op.raw(1, "weight"))
    fits = op.module is not None or _fits(op, name, ids, inputs, kernel, bias)
    return name if fits else f"{name}_{op.node.name}"


def _fits(op: Op, name: str, ids: Ids, inputs: Ids, kernel: int, bias: bool) -> bool:
    """Does a functional call use the weight of layer ``name`` as the layer does? If not it is a layer of its own.

    A tied decoder uses its encoder's weight transposed; a blur kernel only takes the device of a weight.
    """
    weight = op.raw(1, "weight")
    if any(node.op == "call_module" and node.target == name for node in op.node.graph.nodes):
        if weight.op != "get_attr":  # computed from it
            return False
        owner: Any = op.notes.constants.root.get_submodule(name)
        if isinstance(owner, nn.Embedding) != (op.node.target is F.embedding):
            return False
        turned = isinstance(owner, AnyTransposedConv)
        own = owner.weight.shape, turned, getattr(owner, "groups", 1), getattr(owner, "bias", None) is not None
        if own != (op.get("weight", 1).shape, is_transposed(op), ids.shape[0], bias):
            return False
    others = [mixer for mixer in op.notes.mixers if mixer.name == name]
    used = ids.shape, inputs.shape, kernel, bias
    calls = [other.node for other in others if other.node.op == "call_function"]
    return all((other.ids.shape, other.inputs.shape, other.kernel, other.bias) == used for other in others) and all(
        same_value(weight, call.args[1] if len(call.args) > 1 else call.kwargs["weight"]) for call in calls
    )


_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


@rule(
    nn.Conv1d, nn.Conv2d, nn.Conv3d, F.conv1d, F.conv2d, F.conv3d, torch.conv1d, torch.conv2d, torch.conv3d,
    nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, *_TRANSPOSED,
)  # fmt: skip
def convolution(op: Op) -> Flow | None:
    weight, value = op.get("weight", 1), op.value()
    if _computed(op):
        return None
    groups = op.get("groups", 6, 1)  # (input, weight, bias, stride, padding, dilation or output_padding, groups)
    axis = op.out.ndim - weight.ndim + 1
    inputs = op.flow().along(axis, op.table, value.shape[axis]).reshape(groups, -1)
    area = positions(op.out.shape, axis, op.notes.batch)
    sites = positions(value.shape, axis, op.notes.batch) if is_transposed(op) else area
    return _mix(op, inputs, op.out.shape[axis] // groups, axis, area=area, sites=sites, is_conv=True)


def _computed(op: Op) -> bool:
    """Not a layer: its weight or bias is computed from the input, or its settings from the size of the input."""
    if op.module is not None:
        return False
    if any(op.find(op.raw(position, name)) is not None for position, name in ((1, "weight"), (2, "bias"))):
        return True
    places = {"stride": 3, "padding": 4, "output_padding": 5, "dilation": 7} if is_transposed(op) else (
        {"stride": 3, "padding": 4, "dilation": 5})  # fmt: skip
    try:
        fx.node.map_arg([op.raw(position, name) for name, position in places.items()], op.notes.constants.constant)
    except ValueError:
        return True
    return False


def is_transposed(op: Op) -> bool:
    return isinstance(op.module, AnyTransposedConv) or op.node.target in _TRANSPOSED


@rule(nn.Linear, F.linear)
def linear(op: Op) -> Flow | None:
    """A 1x1 convolution whose channels come last, at as many positions as there are."""
    weight, value = op.get("weight", 1), op.value()
    if _computed(op):
        return None
    axis = op.out.ndim - 1
    inputs = op.flow().along(axis, op.table, value.shape[axis]).reshape(1, -1)
    area = positions(op.out.shape, axis, op.notes.batch)
    return _mix(op, inputs, weight.shape[0], axis, area=area, sites=area, is_conv=False)


def _mix(op: Op, inputs: Ids, rows: int, axis: int, *, area: int, sites: int, is_conv: bool) -> Flow:
    padding = (inputs == ZERO).all(1, keepdims=True)  # a group that reads nothing but padding still writes its bias
    inputs = np.where(padding, not_zero(op, inputs), inputs) if bool(padding.any()) else inputs
    ids = op.table.mix(inputs, rows, owner=op.node.name)
    kernel, bias = math.prod(op.get("weight", 1).shape[2:]), op.get("bias", 2) is not None
    name = name_of_layer(op, ids, inputs, kernel, bias)
    op.notes.mixers.append(Mixer(op.node, name, ids, inputs, kernel, area, sites, bias, is_conv))
    shape = [1] * op.out.ndim
    shape[axis] = ids.size
    return Flow(ids.reshape(shape), writer=op.node if axis == 1 else None)  # a batch norm's channels are on axis 1


_RIGHT = ("other", "mat2", "tensor2")


@rule(torch.matmul, torch.bmm, operator.matmul, "matmul", "bmm", "__matmul__", torch.mm, "mm")
def matmul(op: Op) -> Flow | None:
    """``sum_k a[.., n, k] b[.., k, m]``: over space it keeps channels; over channels it mixes those alive in both."""
    operands = op.raw(0), op.raw(1, *_RIGHT)
    (left, right), (a, b) = map(op.find, operands), (op.value(0), op.value(1, *_RIGHT))
    if min(a.ndim, b.ndim) < 2 or (left is None and right is None):
        return None
    one, other = _matrix_ids(left, a), _matrix_ids(right, b)
    flops = 2 * op.out.numel() * a.shape[-1]
    if one.shape[-1] == 1 and other.shape[-2] == 1:
        product = op.table.all(one, other)
        op.notes.met.append(product)
        for values, scores in ((np.swapaxes(one, -1, -2), other), (other, np.swapaxes(one, -1, -2))):
            if scores.shape[-1] == 1:  # values, weighted by scores
                result = product if values is other else np.swapaxes(product, -1, -2)
                values_of_heads(op, np.broadcast_to(values, result.shape)[..., 0, :], result[..., 0, :])
        if (product.shape[-2] > 1) == (product.shape[-1] > 1):  # along both, or along neither
            note_in_full(op, product, flops)
        else:
            note_product(op, product if product.shape[-1] > 1 else np.swapaxes(product, -1, -2), flops)
        return Flow(product)
    if one.shape[-2] > 1 or other.shape[-1] > 1:  # channels along both axes, as in attention between channels
        lead = string.ascii_lowercase[: op.out.ndim - 2]
        letters = [lead[len(lead) - (value.ndim - 2) :] + ends for value, ends in ((a, "NK"), (b, "KM"))]
        flow = contract(op, operands, letters, f"{lead}NM")
        note_in_full(op, flow.ids, flops)
        return flow
    queries, keys = np.broadcast_arrays(np.swapaxes(one, -1, -2), other)  # .., k, 1
    pairs = op.table.all(queries, keys)
    scores_of_heads(op, queries[..., 0], keys[..., 0])
    batch = pairs.shape[:-2]
    mixed = op.table.mix(pairs.reshape(-1, pairs.shape[-2]), rows=1, owner=op.node.name)
    if left is None or right is None:  # a constant is not cut
        note_in_full(op, mixed, flops)
    else:
        note_product(op, pairs.swapaxes(-1, -2), flops)
    return Flow(mixed.reshape(*batch, 1, 1))


matmul.constants(in_full)


def _matrix_ids(flow: Flow | None, value: torch.Tensor) -> Ids:
    return flow.ids if flow is not None else np.zeros((1,) * value.ndim, dtype=np.int64)


@convolution.emitter
@linear.emitter
def _layer(op: Op, slim: Slim) -> Piece | None:
    """Rows and columns of the weight, in the order in which the operand happens to have its channels."""
    calls: list[Mixer] = slim.calls[slim.owner[op.node]]
    this = next(call for call in calls if call.node is op.node)
    source = op.inputs[0]
    axis = op.out.ndim - op.get("weight", 1).ndim + 1
    kept = np.logical_or.reduce([slim.present[call.ids] for call in calls])  # groups x rows
    read = np.logical_or.reduce([slim.present[call.inputs] for call in calls])  # groups x columns
    piece = slim.compact(source, axis)
    if piece is None:
        return None
    if this.groups == 1:
        rows = np.flatnonzero(kept[0])
        if this.name in slim.rank:
            rows = rows[np.argsort(slim.rank[this.name][rows])]
        groups, rows = np.array([0]), rows[None]
        existing = piece.along(axis, read.size) if len(calls) == 1 else np.arange(read.size)
        columns = existing[read[0][existing]][None]
    else:
        groups = np.flatnonzero(kept.any(1))
        within = np.flatnonzero(kept[groups].any(0))
        rows = np.broadcast_to(within, (groups.size, within.size))
        columns = even_columns(read[groups])
        if this.is_depthwise and len(calls) == 1:  # any order of groups is right: take the operand's
            existing = piece.along(axis, read.size)
            order = existing[np.isin(existing, groups)]
            groups = np.concatenate([order, groups[~np.isin(groups, order)]])
    node = slim.fetch(source, axis, (groups[:, None] * read.shape[1] + columns).reshape(-1))
    if columns.size == 1 and slim.side_by_side(axis, op.out.ndim):
        node = slim.one_channel_last(node)
    written = (groups[:, None] * kept.shape[1] + rows).reshape(-1)
    values = slim.gate_values.get(this.name)
    own_gate = values is not None and this.node not in slim.channels.anchors
    fold = own_gate and all(call.node not in slim.channels.anchors for call in calls)
    layer = cut_layer(op, slim, groups, rows, columns, values if fold else None, written)
    if op.module is None and len(calls) > 1:
        called = next((call.node for call in calls if call.node.op == "call_module"), None)
        if called is not None:  # the module holds the shared weight, whichever call comes first
            cut = cut_layer(slim.op(called), slim, groups, rows, columns, values if fold else None, written)
            slim.module(this.name, cut)
        node = _functional(op, slim, this.name, layer, node)
    else:
        more: Any = slim.argument(tuple(op.node.args[1:])) if op.module is not None else ()
        named: Any = slim.argument(dict(op.node.kwargs)) if op.module is not None else {}  # the size of what is written
        node = slim.graph.call_module(slim.module(this.name, layer), (node, *more), named)
    complete = written.size == this.ids.size and np.array_equal(written, np.arange(written.size))
    result = Piece(node) if complete else Piece(node, axis, written)
    if len(calls) > 1:
        result = living_only(op, slim, result, axis)
    if own_gate and not fold:
        assert values is not None
        return scaled_by_gate(slim, result, axis, values, op.out.ndim)
    return result


def cut_layer(
    op: Op, slim: Slim, groups: Ids, rows: Ids, columns: Ids, gate: torch.Tensor | None, written: Ids
) -> nn.Module:
    """A plain torch layer with these rows and columns of each group, its gate multiplied in."""
    transposed = is_transposed(op)
    weight, weight_grad = weight_or_bias(op, slim, "weight", 1)
    bias, bias_grad = weight_or_bias(op, slim, "bias", 2)
    assert weight is not None
    count = op.get("groups", 6, 1) if weight.ndim > 2 else 1
    grouped = weight.detach().reshape(count, weight.shape[0] // count, *weight.shape[1:])
    grouped = grouped.transpose(1, 2) if transposed else grouped  # groups, rows, columns, kernel
    at, row, column = (torch.from_numpy(index.copy()).to(weight.device) for index in (groups, rows, columns))
    if groups.size == 1:  # twice index_select is several times faster than the one indexing that would do for all
        cut = grouped[groups[0]].index_select(0, row[0]).index_select(1, column[0])[None]
    else:
        cut = grouped[at[:, None, None], row[:, :, None], column[:, None, :]]
    offset = bias.detach()[torch.from_numpy(written)] if bias is not None else None
    if gate is not None:
        z = gate[torch.from_numpy(written)].to(cut)
        cut = cut * z.reshape(*cut.shape[:2], *(1,) * (cut.ndim - 2))
        offset = offset * z if offset is not None else None
    cut = cut.transpose(1, 2) if transposed else cut
    layer = _empty_layer(op, columns.size, written.size, int(groups.size), transposed, bias is not None)
    cut = cut.reshape(cut.shape[0] * cut.shape[1], *cut.shape[2:]).contiguous(memory_format=_memory_format(weight))
    layer.weight = nn.Parameter(cut, weight_grad)
    if offset is not None:
        layer.bias = nn.Parameter(offset.clone(), bias_grad)
    return layer


def _memory_format(weight: torch.Tensor) -> torch.memory_format:
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(weight.ndim)
    if last is None or weight.is_contiguous() or not weight.is_contiguous(memory_format=last):
        return torch.contiguous_format
    return last


def weight_or_bias(op: Op, slim: Slim, name: str, position: int) -> tuple[torch.Tensor | None, bool]:
    """A weight or bias, and whether it is to be trained."""
    if op.module is not None:
        with torch.enable_grad():  # a computed weight is trained if anything that it is computed from is trained
            _refresh(op.module, name)
            held: torch.Tensor | None = getattr(op.module, name)
        return held, held is not None and held.requires_grad
    raw = op.raw(position, name)
    if not isinstance(raw, fx.Node):
        return None, False
    return slim.constants.constant(raw), bool(slim.grad(raw))


def _refresh(module: nn.Module, name: str) -> None:
    """The old ``weight_norm`` and ``spectral_norm`` compute the weight before each call: do so now, it may be old."""
    for hook in pre_hooks(module):
        if isinstance(hook, (WeightNorm, SpectralNorm)) and hook.name == name:
            hook(module, ())


def _empty_layer(op: Op, inputs: int, outputs: int, groups: int, transposed: bool, bias: bool) -> nn.Module:
    weight = op.get("weight", 1)
    rank = weight.ndim - 2
    if rank == 0:
        return nn.Linear(inputs, outputs, bias=bias, device="meta")
    kind: Any = getattr(nn, f"Conv{'Transpose' if transposed else ''}{rank}d")
    settings: dict[str, Any] = {
        "stride": op.get("stride", 3, 1),
        "padding": op.get("padding", 4, 0),
        "dilation": op.get("dilation", 7 if transposed else 5, 1),
    }
    if transposed:
        settings["output_padding"] = op.get("output_padding", 5, 0)
    if op.module is not None:
        settings["padding_mode"] = op.module.padding_mode
    return kind(inputs, outputs, tuple(weight.shape[2:]), groups=groups, bias=bias, device="meta", **settings)  # type: ignore[no-any-return]


def _functional(op: Op, slim: Slim, name: str, layer: nn.Module, operand: fx.Node) -> fx.Node:
    """A weight that several functional calls share stays one parameter."""

    def shared(leaf: str) -> fx.Node | None:
        held = getattr(layer, leaf)
        return None if held is None else slim.attribute(f"{name}.{leaf}", held.detach(), grad=held.requires_grad)

    assert callable(op.node.target)
    names = ("stride", "padding", "output_padding", "dilation", "groups") if is_transposed(op) else (
        "stride", "padding", "dilation", "groups")  # fmt: skip
    settings = {key: getattr(layer, key) for key in names if hasattr(layer, key)}
    return slim.graph.call_function(op.node.target, (operand, shared("weight"), shared("bias")), settings)


def _scores(op: Op, slim: Slim, left: fx.Node, right: fx.Node) -> Piece | None:
    """Queries times keys, head by head, with the channels that live in both."""
    one, other = (slim.flow(node) for node in (left, right))
    if one is None or other is None or slim.laid_out(left) is None or slim.laid_out(right) is None:
        return None
    if min(one.ids.ndim, other.ids.ndim) < 2 or one.ids.shape[-2] > 1 or other.ids.shape[-1] > 1:
        return None  # they differ along an axis that no sum runs over
    met = meeting(slim, one.ids, np.swapaxes(other.ids, -1, -2))
    if met is None or met.outer >= op.out.ndim - 2:
        return None
    turned = Grid(met.outer, met.heads, other.ids.ndim - 2, met.positions)
    operands = {left: slim.fetch_grid(left, met), right: slim.fetch_grid(right, turned)}
    return Piece(slim.same(op, operands), met.outer, met.heads)


def _weighted(op: Op, slim: Slim, left: fx.Node, right: fx.Node) -> GridPiece | None:
    """Values weighted by scores."""
    flow = slim.flow(op.node)
    grid = slim.grid(flow.ids) if flow is not None else None
    if grid is None or grid.axis < op.out.ndim - 2 or grid.outer >= op.out.ndim - 2:
        return None
    values, by = (right, left) if grid.axis == op.out.ndim - 1 else (left, right)
    flow, scores = slim.flow(values), slim.flow(by)
    same_rank = left.meta["value"].ndim == right.meta["value"].ndim == op.out.ndim
    if flow is None or not same_rank or slim.laid_out(values) is None:
        return None
    if scores is not None and slim.laid_out(by) is None:
        return None
    heads = by.meta["value"].shape[grid.outer] > 1
    if scores is None:
        weights = slim.constant(by, grid.outer if heads else None, grid.heads)
    else:
        weights = slim.fetch(by, grid.outer, grid.heads) if heads else slim.full(by)
    return GridPiece(slim.same(op, {by: weights, values: slim.fetch_grid(values, grid)}), grid)


@matmul.emitter
def _matmul(op: Op, slim: Slim) -> Piece | GridPiece | None:
    """A sum over channels runs over those alive in both. Channels that are kept stay on their side."""
    left, right = op.raw(0), op.raw(1, *_RIGHT)
    assert isinstance(left, fx.Node) and isinstance(right, fx.Node)
    by_heads = _scores(op, slim, left, right) or _weighted(op, slim, left, right)
    if by_heads is not None:
        return by_heads
    one, other = (slim.piece(node) if slim.flow(node) is not None else None for node in (left, right))
    ranks = left.meta["value"].ndim, right.meta["value"].ndim
    inner = (one is not None and one.axis == ranks[0] - 1, other is not None and other.axis == ranks[1] - 2)
    if (
        one is not None
        and other is not None
        and all(axis or p.axis is None for axis, p in zip(inner, (one, other), strict=True))
    ):
        size = left.meta["value"].shape[-1]
        common = np.intersect1d(one.along(ranks[0] - 1, size), other.along(ranks[1] - 2, size))
        operands = {left: slim.fetch(left, ranks[0] - 1, common), right: slim.fetch(right, ranks[1] - 2, common)}
        return Piece(slim.same(op, operands))
    if one is not None and one.axis == ranks[0] - 2 and (other is None or other.axis is None):
        operands = {left: one.node, right: slim.argument(right)}
        return Piece(slim.same(op, operands), op.out.ndim - 2, one.positions)
    if other is not None and other.axis == ranks[1] - 1 and (one is None or one.axis is None):
        operands = {left: slim.argument(left), right: other.node}
        return Piece(slim.same(op, operands), op.out.ndim - 1, other.positions)
    return whole_op(op, slim)
