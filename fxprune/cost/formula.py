"""The cost formula, twice: counted on bools for many masks at once, as a search over masks needs it, and as a
differentiable expectation, as training does. Arrays are ids x masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.autograd.function import once_differentiable

from fxprune.channels import Channels, Product, Uncut, by_name
from fxprune.channels.ids import ZERO, Ids
from fxprune.cost.exact import Bools

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


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

    def expected(self, present: torch.Tensor) -> Expected:
        """What ``count`` does, for one network whose ids are there with some probability."""
        return Expected(self, present)


@dataclass(eq=False)
class Expected:
    """Costs that are differentiable, and for zeros and ones the same numbers. Only what is asked for is computed."""

    counter: Counter
    present: torch.Tensor  # probabilities per id, on the host

    @property
    def volume(self) -> torch.Tensor:
        return self._rows * self._places[0] @ self._numbers(self.counter.counted[:, 0])

    @property
    def flops(self) -> torch.Tensor:
        counter = self.counter
        total = 2 * (self._weights @ self._places[1])
        for amounts, part in ((counter.factor, counter.products), (counter.takes, counter.run)):
            if amounts.size:
                total = total + part.expected(self.present) @ self._numbers(amounts)
        return total

    @property
    def params(self) -> torch.Tensor:
        counter = self.counter
        total = self._weights.sum() + self._rows @ self._numbers(counter.bias[:, 0])
        for amounts, part in ((counter.affine, counter.affines), (counter.holds, counter.held)):
            if amounts.size:
                total = total + part.expected(self._known) @ self._numbers(amounts)
        return total

    @cached_property
    def _known(self) -> torch.Tensor:
        """With what any of several calls computes."""
        calls = [[self.present[torch.from_numpy(ids)] for ids in union] for union in self.counter.unions]
        joined = (1 - torch.stack([1 - part for part in parts]).prod(0) for parts in calls)
        return torch.cat([self.present, *joined]) if calls else self.present

    @cached_property
    def _rows(self) -> torch.Tensor:
        found = self.counter.rows.expected(self._known)
        return found.new_zeros(self._groups.size).index_add(0, self._owners, found) if self.counter.grouped else found

    @cached_property
    def _weights(self) -> torch.Tensor:
        counter = self.counter
        columns = counter.columns.expected(self._known)
        if counter.grouped:  # as many columns in every group as in the one with the most
            several = torch.from_numpy(np.repeat(self._groups > 1, self._groups))
            columns = columns * torch.where(several, counter.rows.any(self._known), 1.0)
            empty = columns.new_zeros(self._groups.size)
            columns = empty.scatter_reduce(0, self._owners, columns, "amax", include_self=False)
        return self._rows * columns * self._numbers(counter.kernel[:, 0])

    @cached_property
    def _groups(self) -> Ids:
        """Of each layer."""
        found: Ids = np.diff(np.append(self.counter.groups, self.counter.rows.starts.size))
        return found

    @cached_property
    def _owners(self) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.arange(self._groups.size), self._groups))

    @cached_property
    def _places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions per layer. A call whose result nobody reads is not made."""
        area, sites = self._numbers(self.counter.area[:, 0]), self._numbers(self.counter.sites[:, 0])
        for number, calls in self.counter.repeated:
            made = Segments([call.ids.reshape(-1) for call in calls]).any(self.present)
            area[number] = self._numbers([call.area for call in calls]) @ made
            sites[number] = self._numbers([call.sites for call in calls]) @ made
        return area, sites

    def _numbers(self, values: npt.ArrayLike) -> torch.Tensor:
        return torch.tensor(values, dtype=self.present.dtype)


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
        found: torch.Tensor = _Sum.apply(present, self)  # type: ignore[no-untyped-call]
        return found

    def any(self, present: torch.Tensor) -> torch.Tensor:
        """How surely one of each list is there."""
        none: torch.Tensor = _Product.apply(1 - present, self)  # type: ignore[no-untyped-call]
        return 1 - none

    @cached_property
    def sizes(self) -> Ids:
        found: Ids = np.diff(np.append(self.starts, self.index.size))
        return found

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """To each id of each list what its list has."""
        return np.repeat(values, self.sizes)

    def sum_up(self, values: Floats, count: int) -> Floats:
        """Per id the sum of what stands at its places."""
        return np.bincount(self.index, values, count).astype(np.float64, copy=False)  # of nothing it counts


class _Sum(torch.autograd.Function):
    """On the host: thousands of short lists are hundreds of microseconds there, whatever else autograd records."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, lists: Segments) -> torch.Tensor:
        ctx.lists, ctx.count = lists, values.numel()
        if not lists.starts.size:
            return values.new_zeros(0)
        return torch.from_numpy(np.add.reduceat(values.detach().numpy().take(lists.index), lists.starts))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_sum: torch.Tensor) -> Any:
        return torch.from_numpy(ctx.lists.sum_up(ctx.lists.spread(by_sum.numpy()), ctx.count)).to(by_sum), None


class _Product(torch.autograd.Function):
    """The gradient of a product is the product of all others, also where some are 0."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, lists: Segments) -> torch.Tensor:
        ctx.lists, ctx.count = lists, values.numel()
        ctx.factors = values.detach().numpy().take(lists.index)
        if not lists.starts.size:
            return values.new_zeros(0)
        return torch.from_numpy(np.multiply.reduceat(ctx.factors, lists.starts))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_product: torch.Tensor) -> Any:
        lists, factors = ctx.lists, ctx.factors
        if not lists.starts.size:
            return by_product.new_zeros(ctx.count), None
        zeros = factors == 0
        some = bool(zeros.any())
        filled = np.where(zeros, 1, factors) if some else factors
        found = lists.spread(by_product.numpy() * np.multiply.reduceat(filled, lists.starts)) / filled
        if some:
            alone = lists.spread(np.add.reduceat(zeros, lists.starts, dtype=np.int64)) == zeros  # no other one is 0
            found = np.where(alone, found, 0)
        return torch.from_numpy(lists.sum_up(found, ctx.count)).to(by_product), None


class Grids:
    """Many lists of groups. A group that has any of its ids has as many as the one of its list that has the most;
    none has any where none of the ids is there that ``read`` it."""

    def __init__(self, grids: Sequence[Ids], read: Sequence[Ids]) -> None:
        self.groups, self.read = Segments([group for grid in grids for group in grid]), Segments(read)
        self.starts = np.cumsum([0, *map(len, grids)])[:-1]

    def count(self, present: Bools) -> Counts:
        if not self.starts.size:
            return np.zeros((0, present.shape[1]), dtype=np.int64)
        counts, read = self.groups.count(present), self.read.count(present) > 0
        groups = np.add.reduceat((counts > 0).astype(np.int64), self.starts, axis=0)
        found: Counts = groups * np.maximum.reduceat(counts, self.starts, axis=0) * read
        return found

    def expected(self, present: torch.Tensor) -> torch.Tensor:
        """The same for expected numbers: for those that are known the same."""
        sizes = np.diff(np.append(self.starts, self.groups.starts.size))
        owners = torch.from_numpy(np.repeat(np.arange(sizes.size), sizes))
        zeros = present.new_zeros(sizes.size)
        groups = zeros.index_add(0, owners, self.groups.any(present))
        return groups * zeros.scatter_reduce(0, owners, self.groups.expected(present), "amax") * self.read.any(present)


class Products(Grids):
    """Those of matrices; one that lacks all that it needs runs in full."""

    def __init__(self, products: Sequence[Product]) -> None:
        super().__init__([part.ids for part in products], [part.read for part in products])
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
