"""The cost formula, twice: counted on bools for many masks at once, as a search over masks needs it, and as a
differentiable expectation, as training does. Arrays are ids x masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from fxprune.channels.facts import Channels, Mixer, by_name
from fxprune.channels.ids import ZERO, Ids, tensors
from fxprune.cost.exact import Bools

Counts = npt.NDArray[np.int64]
Tensors = tuple[torch.Tensor, ...]


class Counter:
    """Volume, FLOPs and parameters of the networks that compute given ids (ids x masks)."""

    def __init__(self, channels: Channels) -> None:
        self.layers, self.norms = by_name(channels.mixers), by_name(channels.affines)
        calls_of = list(self.layers.values())
        self.unions: list[list[Ids]] = []  # of layers that are called several times
        self.size = channels.table.size
        rows = [self._union([call.ids for call in calls]) for calls in calls_of]
        columns = [self._union([call.inputs for call in calls]) for calls in calls_of]
        self.rows = Segments([group for ids in rows for group in ids])
        self.columns = Segments([group for ids in columns for group in ids])
        self.groups = np.cumsum([0] + [len(ids) for ids in rows])[:-1]
        self.grouped = len(self.groups) < len(self.rows.starts)
        norms = list(self.norms.values())
        self.affines = Segments([self._union([part.ids.reshape(1, -1) for part in parts])[0] for parts in norms])
        self.affine = np.array([parts[-1].count for parts in norms], dtype=np.int64)
        first = [calls[0] for calls in calls_of]
        self.kernel = np.array([call.kernel for call in first], dtype=np.int64)[:, None]
        self.bias = np.array([call.bias for call in first], dtype=np.int64)[:, None]
        self.conv = np.array([call.is_conv for call in first])
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

    def count(self, present: Bools) -> tuple[Counts, Counts, Counts, Counts, Counts]:
        """Volume, FLOPs and parameters of convolutions; FLOPs and parameters of everything else."""
        known, conv = self._known(present), self.conv
        volume, flops, size = self._by_layer(present, known)
        return (
            volume[conv].sum(0), flops[conv].sum(0), size[conv].sum(0), flops[~conv].sum(0),
            size[~conv].sum(0) + self.affine @ self.affines.count(known),
        )  # fmt: skip

    def by_layer(self, present: Bools) -> dict[str, tuple[int, int, int]]:
        """Volume, FLOPs and parameters of every convolution, for one mask."""
        mask = present.reshape(-1, 1)
        found = np.concatenate(self._by_layer(mask, self._known(mask)), axis=1).tolist()
        return {name: tuple(found[n]) for n, name in enumerate(self.layers) if self.conv[n]}

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
        return rows * area, 2 * weights * sites, weights + rows * self.bias

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
    def _indices(self) -> tuple[list[tuple[list[Mixer], Tensors, Tensors]], list[tuple[int, Tensors]]]:
        layers = [(calls, tensors(*(c.ids for c in calls)), tensors(*(c.inputs for c in calls)))
                  for calls in self.layers.values()]  # fmt: skip
        return layers, [(parts[-1].count, tensors(*(part.ids for part in parts))) for parts in self.norms.values()]

    def expected(self, present: torch.Tensor, fixed: Sequence[int] = (0, 0, 0)) -> tuple[torch.Tensor, ...]:
        """What ``count`` does, and beside the ``fixed`` costs of convolutions, for one network whose ids are there with
        some probability: differentiable, and the same numbers for zeros and ones."""
        zero = present.new_zeros(())
        volume, flops, params = (zero + cost for cost in fixed)
        other_flops, other_params = zero, zero
        layers, norms = self._indices
        for calls, ids, inputs in layers:
            rows_of, columns_of = _any_of([present[i] for i in ids]), _any_of([present[i] for i in inputs])
            rows = rows_of.sum()
            live = 1 - (1 - rows_of).prod(1)  # per group
            columns = (columns_of.sum(1) * live).amax() if len(live) > 1 else columns_of.sum()
            weights = rows * columns * calls[0].kernel
            # A call whose result nobody reads is not made.
            made = [1 - (1 - present[i]).prod() if len(calls) > 1 else 1 for i in ids]
            area = sum(call.area * live for call, live in zip(calls, made, strict=True))
            sites = sum(call.sites * live for call, live in zip(calls, made, strict=True))
            size = weights + (rows if calls[0].bias else zero)
            if calls[0].is_conv:
                volume = volume + rows * area
                flops = flops + 2 * weights * sites
                params = params + size
            else:
                other_flops = other_flops + 2 * weights * sites
                other_params = other_params + size
        for count, ids in norms:
            other_params = other_params + count * _any_of([present[i] for i in ids]).sum()
        return volume, flops, params, other_flops, other_params


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
        sizes = np.diff(np.append(self.starts, self.index.size))
        owners = torch.from_numpy(np.repeat(np.arange(sizes.size), sizes))
        return present.new_zeros(sizes.size).index_add(0, owners, present[torch.from_numpy(self.index)])


def _concatenated(lists: Iterable[Ids]) -> Ids:
    return np.concatenate([np.zeros(0, dtype=np.int64), *lists])
