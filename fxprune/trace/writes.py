"""The model's code writes to a tensor: from then on every name that it has for this memory means the new value."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from fxprune.torch_private import memory_of
from fxprune.trace.normal_form import overlapping
from fxprune.trace.patches import Untraceable
from fxprune.trace.proxy import ShapeProxy

if TYPE_CHECKING:
    from fxprune.trace.tracer import Tracer

Moved = list[tuple[int, "slice | int"]]  # axis, what is taken of it


def note_view(made: Any, target: Any, args: Any) -> None:
    """Remember which part of which tensor ``x[a:b, c]`` and ``x.narrow(...)`` are: a write to it is one to ``x``."""
    if type(made) is not ShapeProxy or not args or type(args[0]) is not ShapeProxy:
        return
    owner = args[0]
    if not isinstance(made.value, torch.Tensor) or not isinstance(owner.value, torch.Tensor):
        return
    if target == "narrow" and len(args) == 4 and all(type(entry) is int for entry in args[1:]):
        axis, start, count = args[1:]
        start %= owner.value.shape[axis]
        made.part = owner, [(axis % owner.value.ndim, slice(start, start + count))]
    elif target is operator.getitem:
        index = _entries(args[1], owner.value.ndim)
        if all(isinstance(entry, (slice, int)) for entry in index):
            made.part = owner, _moved(index)
    if made.part is not None:
        owner.views = (*owner.views, made)


def update(tracer: Tracer, target: Any, made: Any, through: ShapeProxy | None = None) -> Any:
    """``target`` was overwritten by ``made``, maybe ``through`` a view of it."""
    if type(target) is not ShapeProxy or not isinstance(target.value, (torch.Tensor, list)):
        return made
    if target.part is not None:
        owner, moved = target.part
        update(tracer, owner, _replaced(tracer, owner, moved, made), through=target)
    if isinstance(target.value, torch.Tensor):
        reason = f"{target.node.name} was written in place through another view of it"
        region = target.value if through is None else _taken(target.value, through)
        for node in tracer.by_storage[memory_of(region)]:
            if node not in (target.node, made.node) and overlapping(node.meta["value"], region):
                tracer.stale[node] = reason
        for view in target.views:
            if view is not through and not (through is not None and _disjoint(view, through)):
                _outdate(tracer, view, reason)
    tracer.stale.pop(made.node, None)
    target.node = made.node
    return target


def _taken(value: torch.Tensor, view: ShapeProxy) -> torch.Tensor:
    assert view.part is not None
    entries = dict(view.part[1])
    return value[tuple(entries.get(axis, slice(None)) for axis in range(value.ndim))]


def _outdate(tracer: Tracer, view: ShapeProxy, reason: str) -> None:
    """A view that was written itself is a tensor of its own in the graph: it does not follow what it was a part of."""
    tracer.stale[view.node] = reason
    for inner in view.views:
        _outdate(tracer, inner, reason)


def _disjoint(one: ShapeProxy, other: ShapeProxy) -> bool:
    assert one.part is not None and other.part is not None
    owner, shape = one.part[0], one.part[0].value.shape
    taken = [{axis: _range(entry, shape[axis]) for axis, entry in view.part[1]} for view in (one, other) if view.part]
    assert other.part[0] is owner
    return any(set(taken[0][axis]).isdisjoint(taken[1][axis]) for axis in taken[0] if axis in taken[1])


def _range(entry: slice | int, size: int) -> range:
    return range(*entry.indices(size)) if isinstance(entry, slice) else range(entry % size, entry % size + 1)


def assign(tracer: Tracer, proxy: ShapeProxy, index: Any, item: Any) -> None:
    """``x[a:b, c] = y``, ``x[:, [3, 1]] = y`` position by position, ``x[mask] = 0``; the rest is for the fallback."""
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
        moved = _moved(entries)
        filled = _filled(tracer, proxy[index] if moved else proxy, item)
        update(tracer, proxy, _replaced(tracer, proxy, moved, filled))
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
    entries = list(index) if isinstance(index, tuple) else [index]
    if any(entry is Ellipsis for entry in entries):
        at = next(position for position, entry in enumerate(entries) if entry is Ellipsis)
        entries[at : at + 1] = [slice(None)] * (rank - len(entries) + 1)
    return entries


def _moved(entries: list[Any]) -> Moved:
    return [(axis, entry) for axis, entry in enumerate(entries) if entry != slice(None)]


def _replaced(tracer: Tracer, owner: ShapeProxy, moved: Moved, made: Any) -> Any:
    """The tensor with one part of it exchanged; some of its channels, which are never fewer: by a concatenation."""
    axis, entry = moved[0] if len(moved) == 1 else (0, 0)
    if axis != 1 or (isinstance(entry, slice) and entry.step not in (None, 1)):
        return _scattered(tracer, owner, moved, made)
    count = owner.value.shape[1]
    taken = _range(entry, count)
    if not taken:
        return owner
    if isinstance(entry, int):
        made = made.unsqueeze(1)
    before = [owner.narrow(1, 0, taken.start)] if taken.start else []
    after = [owner.narrow(1, taken.stop, count - taken.stop)] if taken.stop < count else []
    if not before and not after:
        return made
    return tracer.create_proxy("call_function", torch.cat, ([*before, made, *after], 1), {})


def _filled(tracer: Tracer, part: Any, item: Any) -> Any:
    """What is written to this part: a number or a tensor, spread over it."""
    if type(item) is not ShapeProxy or not isinstance(item.value, torch.Tensor):
        return tracer.create_proxy("call_function", torch.full_like, (part, item), {})
    same = item.value.dtype == part.value.dtype
    return (item if same else item.to(part.value.dtype)).expand_as(part)


def _scattered(tracer: Tracer, proxy: Any, moved: Moved, filled: Any) -> Any:
    if not moved:
        return filled
    (axis, entry), rest = moved[-1], moved[:-1]  # the last axis first: an integer takes its axis away
    if isinstance(entry, int):
        part = _scattered(tracer, proxy.select(axis, entry), rest, filled) if rest else filled
        part, place = part.unsqueeze(axis), entry % proxy.value.shape[axis]
        start, stop, step = place, place + 1, 1
    else:
        part = _scattered(tracer, proxy[(slice(None),) * axis + (entry,)], rest, filled) if rest else filled
        start, stop, step = entry.start, entry.stop, 1 if entry.step is None else entry.step
    return tracer.create_proxy("call_function", torch.slice_scatter, (proxy, part, axis, start, stop, step), {})
