"""The cost formula, twice: counted on bools for many masks at once, as a search over masks needs it, and as a
differentiable expectation, as training does. Arrays are ids x masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from fxprune.channels import Channels, Mixer, Product, Uncut, by_name
from fxprune.channels.ids import ZERO, Ids, tensors
from fxprune.cost.exact import Bools

Counts = npt.NDArray[np.int64]
Tensors = tuple[torch.Tensor, ...]


class Counter:
    """Volume, FLOPs and parameters of the networks that compute given ids (ids x masks)."""

    def __init__(self, channels: Channels, logits: frozenset[str]) -> None:
        self.layers = by_name(channels.mixers)
        calls_of = list(self.layers.values())
        self.unions: list[list[Ids]] = []  # of layers that are called several times
        self.size = channels.table.size
        rows = [self._union([call.ids for call in calls]) for calls in calls_of]
        columns = [self._union([call.inputs for call in calls]) for calls in calls_of]
        self.rows = Segments([group for ids in rows for group in ids])
        self.columns = Segments([group for ids in columns for group in ids])
        self.groups = np.cumsum([0] + [len(ids) for ids in rows])[:-1]
        self.grouped = len(self.groups) < len(self.rows.starts)
        affines = list(by_name(channels.affines).values())
        reads = [np.concatenate([part.read for part in parts]) for parts in affines]
        self.affines = Grids([self._union([part.ids for part in parts]) for parts in affines], reads)
        self.affine = np.array([parts[-1].count for parts in affines], dtype=np.int64)
        self.products = Products(channels.products)
        self.factor = np.array([product.factor for product in channels.products], dtype=np.int64)
        held = list(by_name(part for part in channels.uncut if part.params).values())
        run = [[part] for part in channels.uncut if part.flops]
        self.held, self.run = map(Wholes, (held, run))
        self.holds = np.array([parts[0].params for parts in held], dtype=np.int64)
        self.takes = np.array([part.flops for part, in run], dtype=np.int64)
        first = [calls[0] for calls in calls_of]
        self.kernel = np.array([call.kernel for call in first], dtype=np.int64)[:, None]
        self.bias = np.array([call.bias for call in first], dtype=np.int64)[:, None]
        self.counted = np.array([call.name not in logits for call in first], dtype=np.int64)[:, None]  # in the volume
        self.area = np.array([sum(c.area for c in calls) for calls in calls_of], dtype=np.int64)[:, None]
        self.sites = np.array([sum(c.sites for c in calls) for calls in calls_of], dtype=np.int64)[:, None]
        self.repeated = [(n, calls) for n, calls in enumerate(calls_of) if len(calls) > 1]

    def _union(self, calls: list[Ids]) -> Ids:
        """Ids that stand for what any of the calls computes or reads; they follow those of the table."""
        if len(calls) == 1:
            return calls[0]
        start = self.size
        self.unions.append([ids.reshape(-1) for ids in calls])
        self.size += calls[0].size
        return np.arange(start, self.size).reshape(calls[0].shape)

    def count(self, present: Bools) -> tuple[Counts, Counts, Counts]:
        """Volume, FLOPs and parameters."""
        known = self._known(present)
        volume, flops, size = (part.sum(0) for part in self._by_layer(present, known))
        flops = flops + self.factor @ self.products.count(present) + self.takes @ self.run.count(present)
        size = size + self.affine @ self.affines.count(known) + self.holds @ self.held.count(present)
        return volume, flops, size

    def by_layer(self, present: Bools) -> dict[str, tuple[int, int, int]]:
        """Volume, FLOPs and parameters of every layer, for one mask."""
        mask = present.reshape(-1, 1)
        found = np.concatenate(self._by_layer(mask, self._known(mask)), axis=1).tolist()
        return {name: tuple(found[n]) for n, name in enumerate(self.layers)}

    def _known(self, present: Bools) -> Bools:
        """With what any of several calls computes."""
        if not self.unions:
            return present
        joined = [np.logical_or.reduce([present[ids] for ids in calls]) for calls in self.unions]
        return np.concatenate([present, *joined])

    def _by_layer(self, present: Bools, known: Bools) -> tuple[Counts, Counts, Counts]:
        rows, columns = self.rows.count(known), self.columns.count(known)
        if self.grouped:
            columns = np.maximum.reduceat(columns * (rows > 0), self.groups, axis=0)
            rows = np.add.reduceat(rows, self.groups, axis=0)
        weights = rows * columns * self.kernel
        area, sites = self._places(present)
        return rows * area * self.counted, 2 * weights * sites, weights + rows * self.bias

    def _places(self, present: Bools) -> tuple[Counts, Counts]:
        """Positions per layer. A call whose result nobody reads is not made."""
        if not self.repeated:
            return self.area, self.sites
        shape = (len(self.area), present.shape[1])
        area, sites = np.broadcast_to(self.area, shape).copy(), np.broadcast_to(self.sites, shape).copy()
        for number, calls in self.repeated:
            made = [present[call.ids.reshape(-1)].any(0) for call in calls]
            area[number] = sum(call.area * live for call, live in zip(calls, made, strict=True))
            sites[number] = sum(call.sites * live for call, live in zip(calls, made, strict=True))
        return area, sites

    @cached_property
    def _indices(self) -> list[tuple[list[Mixer], Tensors, Tensors]]:
        return [(calls, tensors(*(c.ids for c in calls)), tensors(*(c.inputs for c in calls)))
                for calls in self.layers.values()]  # fmt: skip

    def expected(self, present: torch.Tensor, fixed: Sequence[int] = (0, 0, 0)) -> tuple[torch.Tensor, ...]:
        """What ``count`` does, and beside the ``fixed`` costs of layers, for one network whose ids are there with
        some probability: differentiable, and the same numbers for zeros and ones."""
        zero = present.new_zeros(())
        volume, flops, params = (zero + cost for cost in fixed)
        for counted, (calls, ids, inputs) in zip(self.counted[:, 0].tolist(), self._indices, strict=True):
            rows_of, columns_of = _any_of([present[i] for i in ids]), _any_of([present[i] for i in inputs])
            rows = rows_of.sum()
            live = 1 - (1 - rows_of).prod(1)  # per group
            columns = (columns_of.sum(1) * live).amax() if len(live) > 1 else columns_of.sum()
            weights = rows * columns * calls[0].kernel
            # A call whose result nobody reads is not made.
            made = [1 - (1 - present[i]).prod() if len(calls) > 1 else 1 for i in ids]
            area = sum(call.area * live for call, live in zip(calls, made, strict=True))
            sites = sum(call.sites * live for call, live in zip(calls, made, strict=True))
            volume = volume + counted * rows * area
            flops = flops + 2 * weights * sites
            params = params + weights + (rows if calls[0].bias else zero)
        joined = [_any_of([present[torch.from_numpy(ids)] for ids in calls]) for calls in self.unions]
        affines = self.affines.expected(torch.cat([present, *joined]))
        for numbers, sums in ((self.affine, affines), (self.holds, self.held.expected(present))):
            params = params + torch.from_numpy(numbers).to(sums) @ sums
        for numbers, sums in ((self.factor, self.products.expected(present)), (self.takes, self.run.expected(present))):
            flops = flops + torch.from_numpy(numbers).to(sums) @ sums
        return volume, flops, params


def _any_of(parts: list[torch.Tensor]) -> torch.Tensor:
    """A layer called several times computes what any of its calls needs."""
    return parts[0] if len(parts) == 1 else 1 - torch.stack([1 - part for part in parts]).prod(0)


class Segments:
    """Many lists of ids, counted at once."""

    def __init__(self, lists: Sequence[Ids]) -> None:
        full = [ids if ids.size else np.array([ZERO]) for ids in lists]  # reduceat knows no empty list
        self.index = _concatenated(full)
        self.starts = np.cumsum([0] + [ids.size for ids in full])[:-1]

    def count(self, present: Bools) -> Counts:
        if not self.starts.size:
            return np.zeros((0, present.shape[1]), dtype=np.int64)
        # The sum converts as it goes, which is several times faster to 32 bits than to 64.
        return np.add.reduceat(present.take(self.index, 0), self.starts, axis=0, dtype=np.int32).astype(np.int64)

    def expected(self, present: torch.Tensor) -> torch.Tensor:
        """How many of each list, where ids are there with some probability."""
        return present.new_zeros(self.starts.size).index_add(0, self._owners, present[torch.from_numpy(self.index)])

    def any(self, present: torch.Tensor) -> torch.Tensor:
        """How surely one of each list is there."""
        none = present.new_ones(self.starts.size)
        return 1 - none.scatter_reduce(0, self._owners, 1 - present[torch.from_numpy(self.index)], "prod")

    @cached_property
    def _owners(self) -> torch.Tensor:
        sizes = np.diff(np.append(self.starts, self.index.size))
        return torch.from_numpy(np.repeat(np.arange(sizes.size), sizes))


class Grids:
    """Many lists of groups. A group that has any of its ids has as many as the one of its list that has the most, or
    of all lists of the same ``width``; none has any where none of the ids is there that ``read`` it."""

    def __init__(self, grids: Sequence[Ids], read: Sequence[Ids], width: Ids | None = None) -> None:
        self.groups, self.read = Segments([group for grid in grids for group in grid]), Segments(read)
        self.width = width
        self.starts = np.cumsum([0, *map(len, grids)])[:-1]

    def count(self, present: Bools) -> Counts:
        if not self.starts.size:
            return np.zeros((0, present.shape[1]), dtype=np.int64)
        counts, read = self.groups.count(present), self.read.count(present) > 0
        groups = np.add.reduceat((counts > 0).astype(np.int64), self.starts, axis=0)
        most = np.maximum.reduceat(counts, self.starts, axis=0)
        if self.width is not None:
            own, most = most, np.zeros_like(most)
            np.maximum.at(most, self.width, own)
            most = most[self.width]
        found: Counts = groups * most * read
        return found

    def expected(self, present: torch.Tensor) -> torch.Tensor:
        """The same for expected numbers: for those that are known the same."""
        sizes = np.diff(np.append(self.starts, self.groups.starts.size))
        owners = torch.from_numpy(np.repeat(np.arange(sizes.size), sizes))
        zeros = present.new_zeros(sizes.size)
        groups = zeros.index_add(0, owners, self.groups.any(present))
        most = zeros.scatter_reduce(0, owners, self.groups.expected(present), "amax")
        if self.width is not None:
            width = torch.from_numpy(self.width)
            most = zeros.scatter_reduce(0, width, most, "amax")[width]
        return groups * most * self.read.any(present)


class Products(Grids):
    """Those of matrices; one that lacks all that it needs runs in full."""

    def __init__(self, products: Sequence[Product]) -> None:
        calls = [part.node if part.same_width else part for part in products]
        numbers = {call: number for number, call in enumerate(dict.fromkeys(calls))}
        width = np.array([numbers[call] for call in calls]) if len(numbers) < len(calls) else None
        super().__init__([part.ids for part in products], [part.read for part in products], width)
        self.needs = Segments([part.needs for part in products])
        self.sizes = np.array([part.ids.size for part in products], dtype=np.int64)

    def count(self, present: Bools) -> Counts:
        runs = self.read.count(present) > 0
        has = self.needs.count(present) > 0
        return super().count(present) * has + self.sizes[:, None] * (runs & ~has)

    def expected(self, present: torch.Tensor) -> torch.Tensor:
        runs = self.read.any(present) * (1 - self.needs.any(present))
        return super().expected(present) * self.needs.any(present) + torch.from_numpy(self.sizes).to(runs) * runs


class Wholes:
    """Ops that are there where any of their ids is, and any of those that read them."""

    def __init__(self, ops: Sequence[Sequence[Uncut]]) -> None:
        self.own = Segments([np.concatenate([part.ids for part in parts]) for parts in ops])
        self.read = Segments([np.concatenate([part.read for part in parts]) for parts in ops])

    def count(self, present: Bools) -> Counts:
        found: Counts = ((self.own.count(present) > 0) & (self.read.count(present) > 0)).astype(np.int64)
        return found

    def expected(self, present: torch.Tensor) -> torch.Tensor:
        return self.own.any(present) * self.read.any(present)


def _concatenated(lists: Iterable[Ids]) -> Ids:
    return np.concatenate([np.zeros(0, dtype=np.int64), *lists])
