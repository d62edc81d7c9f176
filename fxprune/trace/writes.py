"""When the model's code writes to a tensor, every name for this memory means the new value from then on."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx

from fxprune.torch_private import memory_of
from fxprune.trace.patches import Untraceable
from fxprune.trace.proxy import ShapeProxy

if TYPE_CHECKING:
    from fxprune.trace.tracer import Tracer

Part = list[tuple[int, "slice | int"]]  # axis, what is taken of it
_WHOLE = slice(None)
_LARGEST = 1 << 22  # elements; larger tensors in the same memory are taken to overlap


def note_view(view: Any, target: Any, args: Any) -> None:
    """Remember which part of which tensor ``x[a:b, c]`` and ``x.narrow(...)`` are: a write to it is one to ``x``."""
    if type(view) is not ShapeProxy or not args or type(args[0]) is not ShapeProxy:
        return
    owner = args[0]
    if not isinstance(view.value, torch.Tensor) or not isinstance(owner.value, torch.Tensor):
        return
    if target == "narrow" and len(args) == 4 and all(type(entry) is int for entry in args[1:]):
        axis, start, count = args[1:]
        start %= owner.value.shape[axis]
        view.part = owner, [(axis % owner.value.ndim, slice(start, start + count))]
    elif target is operator.getitem:
        index = _entries(args[1], owner.value.ndim)
        if all(isinstance(entry, (slice, int)) for entry in index):
            view.part = owner, _part_of(index)
    if view.part is not None:
        owner.views = (*owner.views, view)


def update(tracer: Tracer, target: Any, new: Any, through: ShapeProxy | None = None) -> Any:
    """``target`` was overwritten by ``new``, maybe ``through`` a view of it."""
    if type(target) is not ShapeProxy or not isinstance(target.value, (torch.Tensor, list)):
        return new
    if target.part is not None:
        owner, part = target.part
        update(tracer, owner, _replaced(tracer, owner, part, new), through=target)
    if isinstance(target.value, torch.Tensor):
        reason = f"{target.node.name} was written in place through another view of it"
        written = target.value if through is None else _taken(target.value, through)
        for node in tracer.by_storage[memory_of(written)]:
            if node not in (target.node, new.node) and _overlap(node.meta["value"], written):
                tracer.stale[node] = reason
        for view in target.views:
            if view is not through and not (through is not None and _disjoint(view, through)):
                _outdate(tracer, view, reason)
    tracer.stale.pop(new.node, None)
    target.node = new.node
    return target


def _overlap(one: Any, other: torch.Tensor) -> bool:
    """Do two meta tensors share an element of their memory?"""
    if not isinstance(one, torch.Tensor) or memory_of(one) != memory_of(other):
        return False
    size = other.untyped_storage().nbytes() // max(other.element_size(), 1)
    if one.dtype != other.dtype or size > _LARGEST:
        return True
    memory = np.zeros(size, dtype=bool)  # whose elements are one byte: strides count bytes in numpy
    first, second = (
        np.lib.stride_tricks.as_strided(memory[tensor.storage_offset() :], tuple(tensor.shape), tensor.stride())
        for tensor in (one, other)
    )
    first[...] = True
    return bool(second.any())


def _taken(value: torch.Tensor, view: ShapeProxy) -> torch.Tensor:
    assert view.part is not None
    entries = dict(view.part[1])
    return value[tuple(entries.get(axis, _WHOLE) for axis in range(value.ndim))]


def _outdate(tracer: Tracer, view: ShapeProxy, reason: str) -> None:
    """In the graph a view is a tensor of its own, which does not change when the tensor that it views changes."""
    tracer.stale[view.node] = reason
    for inner in view.views:
        _outdate(tracer, inner, reason)


def _disjoint(one: ShapeProxy, other: ShapeProxy) -> bool:
    """Do two views of one tensor have nothing in common along some axis?"""
    assert one.part is not None and other.part is not None and one.part[0] is other.part[0]
    shape, taken, others = one.part[0].value.shape, dict(one.part[1]), dict(other.part[1])
    return any(
        set(_range(taken[axis], shape[axis])).isdisjoint(_range(others[axis], shape[axis]))
        for axis in taken.keys() & others.keys()
    )


def _range(entry: slice | int, size: int) -> range:
    return range(size)[entry] if isinstance(entry, slice) else range(entry % size, entry % size + 1)


def assign(tracer: Tracer, proxy: ShapeProxy, index: Any, item: Any) -> None:
    """``x[a:b, c] = y``, ``x[:, [3, 1]] = y`` position by position, ``x[mask] = 0``; no other form can be traced."""
    if type(index) is ShapeProxy and index.value.dtype == torch.bool and isinstance(item, (int, float)):
        update(tracer, proxy, tracer.create_proxy("call_method", "masked_fill", (proxy, index, item), {}))
        return
    entries = _entries(index, proxy.value.ndim)
    lists = [axis for axis, entry in enumerate(entries) if _is_list(entry)]
    if len(lists) > 1 or not all(isinstance(entry, (slice, int)) or _is_list(entry) for entry in entries):
        raise Untraceable("an assignment to positions that are neither numbers, slices nor one list of numbers")
    if any(isinstance(entry, int) for entry in entries) and lists:
        raise Untraceable("an assignment to a list of positions and to a single one")
    if not lists:
        part = _part_of(entries)
        filled = _filled(tracer, proxy[index] if part else proxy, item)
        update(tracer, proxy, _replaced(tracer, proxy, part, filled))
        return
    (axis,) = lists
    filled = _filled(tracer, proxy[index], item) if isinstance(item, fx.Proxy) else None
    for number, position in enumerate(entries[axis]):
        place = position % proxy.value.shape[axis]
        entries[axis] = slice(place, place + 1)
        assign(tracer, proxy, tuple(entries), item if filled is None else filled.narrow(axis, number, 1))


def overwrite(tracer: Tracer, proxy: ShapeProxy, item: Any) -> ShapeProxy:
    """``x.zero_()``, ``x.fill_(1)``, ``x.copy_(y)``."""
    base = proxy
    while base.part is not None:
        base = base.part[0]
    if base.node.op == "get_attr":
        raise Untraceable(f"{base.node.target} is overwritten: a parameter or buffer that changes is state")
    assign(tracer, proxy, Ellipsis, item)
    return proxy


def _is_list(entry: Any) -> bool:
    return isinstance(entry, (list, tuple)) and all(type(position) is int for position in entry)


def _entries(index: Any, rank: int) -> list[Any]:
    """An index as one entry per axis, without an ellipsis."""
    entries = list(index) if isinstance(index, tuple) else [index]
    at = next((position for position, entry in enumerate(entries) if entry is Ellipsis), None)
    if at is not None:
        entries[at : at + 1] = [_WHOLE] * (rank - len(entries) + 1)
    return entries


def _part_of(entries: list[Any]) -> Part:
    return [(axis, entry) for axis, entry in enumerate(entries) if entry != _WHOLE]


def _replaced(tracer: Tracer, owner: ShapeProxy, part: Part, new: Any) -> Any:
    """The tensor with one part of it exchanged.

    A row of channels is exchanged by a concatenation, whose parts may lose channels; positions in a call may not.
    """
    axis, entry = part[0] if len(part) == 1 else (0, 0)
    if axis != 1 or (isinstance(entry, slice) and entry.step not in (None, 1)):
        return _scattered(tracer, owner, part, new)
    count = owner.value.shape[1]
    taken = _range(entry, count)
    if not taken:
        return owner
    if isinstance(entry, int):
        new = new.unsqueeze(1)
    before = [owner.narrow(1, 0, taken.start)] if taken.start else []
    after = [owner.narrow(1, taken.stop, count - taken.stop)] if taken.stop < count else []
    if not before and not after:
        return new
    return tracer.create_proxy("call_function", torch.cat, ([*before, new, *after], 1), {})


def _filled(tracer: Tracer, part: Any, item: Any) -> Any:
    """What is written to this part: a number or a tensor, spread over it."""
    if type(item) is not ShapeProxy or not isinstance(item.value, torch.Tensor):
        return tracer.create_proxy("call_function", torch.full_like, (part, item), {})
    same = item.value.dtype == part.value.dtype
    return (item if same else item.to(part.value.dtype)).expand_as(part)


def _scattered(tracer: Tracer, proxy: Any, part: Part, filled: Any) -> Any:
    if not part:
        return filled
    (axis, entry), rest = part[-1], part[:-1]  # the last axis first: an integer takes its axis away
    if rest:
        inner = proxy.select(axis, entry) if isinstance(entry, int) else proxy[(_WHOLE,) * axis + (entry,)]
        filled = _scattered(tracer, inner, rest, filled)
    if isinstance(entry, int):
        place = entry % proxy.value.shape[axis]
        filled, entry = filled.unsqueeze(axis), slice(place, place + 1)
    step = 1 if entry.step is None else entry.step
    args = (proxy, filled, axis, entry.start, entry.stop, step)
    return tracer.create_proxy("call_function", torch.slice_scatter, args, {})
