"""The expectation once more, block by block and layer by layer, as autograd records it: slow, and easy to check."""

from __future__ import annotations

import torch

from fxprune.analysis import Analysis
from fxprune.channels import Mixer
from fxprune.channels.ids import FIXED, ONE, Ids, IdTable, Mix
from fxprune.cost.formula import Counter
from fxprune.cost.model import Cost


def expected(analysis: Analysis, gates: torch.Tensor) -> Cost:
    """The expected cost of a network whose gates are open with these chances."""
    costs = analysis.costs
    present = physical(analysis.channels.table, torch.from_numpy(costs.expectation.roots), gates)
    return Cost(*expected_of_ids(costs.counter, present, costs.fixed))


def physical(table: IdTable, roots: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    p = alive(table, gates)
    return p * needed(table, p, roots)


def _tensors(*arrays: Ids) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(array.copy()) for array in arrays)


def alive(table: IdTable, gates: torch.Tensor) -> torch.Tensor:
    """Per id, how surely it lives, given the same for each gate variable."""
    p = gates.new_zeros(table.size)
    p[ONE] = p[FIXED] = 1.0
    opened = torch.cat([gates, gates.new_ones(1)])  # index OPEN = -1 reads the one at the end
    for block in table.blocks:
        if isinstance(block, Mix):
            out, inputs, gate = _tensors(block.out, block.inputs, block.gate)
            p[out] = opened[gate].prod(0) * (1 - (1 - p[inputs]).prod(1, keepdim=True))
        elif block.kind == "any":
            out, *operands = _tensors(block.out, *block.operands)
            p[out] = 1 - torch.stack([1 - p[ids] for ids in operands]).prod(0)
        else:
            out, *operands = _tensors(block.out, *block.operands)
            p[out] = torch.stack([p[ids] for ids in operands]).prod(0)
    return p


def needed(table: IdTable, p: torch.Tensor, roots: torch.Tensor) -> torch.Tensor:
    """Per id, how surely someone who leads to ``roots`` reads it."""
    spare = _spare(table, p, roots, None)
    if any(isinstance(block, Mix) and block.of_size for block in table.blocks):
        spare = _spare(table, p, roots, spare)
    return 1 - spare


def _spare(table: IdTable, p: torch.Tensor, roots: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
    """1 - needed: products of these are ors. ``before`` is without what only sizes are read of."""
    spare = torch.ones_like(p)
    spare[roots] = 0.0
    for block in reversed(table.blocks):
        (out,) = _tensors(block.out)
        demand = p[out] * (1 - spare[out])
        if isinstance(block, Mix) and block.of_size:
            if before is None:
                continue
            (inputs,) = _tensors(block.inputs.reshape(-1))
            living = p[inputs]
            first = torch.cat([living.new_ones(1), (1 - living).cumprod(0)[:-1]])
            none = (1 - living * (1 - before[inputs])).prod()
            spare[inputs] = spare[inputs] * (1 - demand.reshape(()) * none * first)
        elif isinstance(block, Mix):
            group = 1 - (1 - demand).prod(1, keepdim=True)
            if block.out.shape[0] > 1 and block.out.shape[1] > 1:
                spare[out] = 1 - group * (1 - (1 - demand).prod(0, keepdim=True))
            (inputs,) = _tensors(block.inputs)
            spare = _spend(spare, inputs, group.expand_as(inputs))
        else:
            for ids in _tensors(*block.operands):
                spare = _spend(spare, ids, demand)
    return spare


def _spend(spare: torch.Tensor, ids: torch.Tensor, demand: torch.Tensor) -> torch.Tensor:
    return spare * torch.ones_like(spare).scatter_reduce(0, ids.reshape(-1), (1 - demand).reshape(-1), "prod")


def expected_of_ids(counter: Counter, present: torch.Tensor, fixed: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Volume, FLOPs and parameters, layer by layer."""
    zero = present.new_zeros(())
    volume, flops, params = (zero + cost for cost in fixed)
    for counted, calls in zip(counter.counted[:, 0].tolist(), counter.layers.values(), strict=True):
        weights, rows, area, sites = _layer(calls, present)
        volume = volume + counted * rows * area
        flops = flops + 2 * weights * sites
        params = params + weights + (rows if calls[0].bias else zero)
    joined = [_any_of([present[torch.from_numpy(ids)] for ids in calls]) for calls in counter.unions]
    affines = counter.affines.expected(torch.cat([present, *joined]))
    for numbers, sums in ((counter.affine, affines), (counter.holds, counter.held.expected(present))):
        params = params + torch.from_numpy(numbers).to(sums) @ sums
    products, run = counter.products.expected(present), counter.run.expected(present)
    for numbers, sums in ((counter.factor, products), (counter.takes, run)):
        flops = flops + torch.from_numpy(numbers).to(sums) @ sums
    return volume, flops, params


def _layer(calls: list[Mixer], present: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Weights, rows and places of a layer."""
    ids, inputs = _tensors(*(call.ids for call in calls)), _tensors(*(call.inputs for call in calls))
    rows_of, columns_of = _any_of([present[i] for i in ids]), _any_of([present[i] for i in inputs])
    rows = rows_of.sum()
    live = 1 - (1 - rows_of).prod(1)  # per group
    columns = (columns_of.sum(1) * live).amax() if len(live) > 1 else columns_of.sum()
    made = [1 - (1 - present[i]).prod() if len(calls) > 1 else present.new_ones(()) for i in ids]
    area = torch.stack([call.area * live for call, live in zip(calls, made, strict=True)]).sum()
    sites = torch.stack([call.sites * live for call, live in zip(calls, made, strict=True)]).sum()
    return rows * columns * calls[0].kernel, rows, area, sites


def _any_of(parts: list[torch.Tensor]) -> torch.Tensor:
    """A layer called several times computes what any of its calls needs."""
    return parts[0] if len(parts) == 1 else 1 - torch.stack([1 - part for part in parts]).prod(0)
