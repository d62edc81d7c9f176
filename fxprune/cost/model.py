"""What a network costs: volume, FLOPs and parameters, as anybody else counts them.

Exact for masks, and the differentiable expectation for probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fxprune.channels import Channels
from fxprune.channels.ids import FIXED, ONE, IdTable
from fxprune.cost.exact import Bools, Logic
from fxprune.cost.formula import Counter
from fxprune.cost.latency import Latency

METRICS = ("volume", "flops", "params")  # that are counted
LATENCY = "latency"  # is measured


@dataclass(frozen=True)
class Cost:
    """Costs per sample. ``volume`` counts the outputs of convolutions and of linear layers, but for linear layers that
    alone write a model output (logits). ``flops`` is 2 x the multiply-adds of convolutions, linear layers and products
    of matrices (attention has two), as ``torch.utils.flop_counter`` counts them. ``params`` counts every parameter.
    ``latency`` is the time in nanoseconds of the example's batch on this machine, by a model of it, where a budget asks
    for that; else None.

    >>> Cost(volume=1024, flops=2048, params=12).volume
    1024
    """

    volume: Any
    flops: Any
    params: Any
    latency: Any = None

    def __getitem__(self, metric: str) -> Any:
        return getattr(self, metric)

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


class CostModel:
    """The cost of a network as a function of its gates."""

    def __init__(self, channels: Channels, params: int, logits: frozenset[str]) -> None:
        self.table: IdTable = channels.table
        self.params = params  # of the unpruned network, whatever reads them
        self.latency: Latency | None = None  # once it has been measured
        leaves = channels.trace.leaves  # counted, never pruned; their parameters are among those that are not cut
        self.fixed = sum(leaf.volume for leaf in leaves), sum(leaf.flops for leaf in leaves), 0
        roots = np.unique(np.concatenate([[ONE, FIXED], *channels.outputs, *(f.ids for f in channels.freezes)]))
        self.roots = torch.from_numpy(roots)
        self.logic, self.counter = Logic(channels.table, roots), Counter(channels, logits)

    def physical(self, gates: torch.Tensor) -> torch.Tensor:
        """Per id, how surely the pruned network computes it: alive and needed."""
        alive = self.table.alive(gates)
        return alive * self.table.needed(alive, self.roots)

    def expected(self, gates: torch.Tensor) -> Cost:
        """Costs for gate probabilities, differentiable; for gates of zeros and ones the exact cost."""
        return self.of_ids(self.physical(gates))

    def slopes(self, gates: torch.Tensor, metrics: Sequence[str]) -> list[torch.Tensor]:
        """Per metric, what another bit of each gate costs, through everything that hangs on it."""
        p = gates.detach().clone().requires_grad_()
        present = self.physical(p)
        costs = self.of_ids(present).as_dict()
        if self.latency is not None:
            costs[LATENCY] = self.latency.smooth(present)
        return [torch.autograd.grad(costs[name], p, retain_graph=True)[0] for name in metrics]

    def of_ids(self, present: torch.Tensor) -> Cost:
        """Costs of a network that computes each id with the given probability."""
        time = None if self.latency is None else self.latency.expected(present)
        volume, flops, params = self.counter.expected(present, self.fixed)
        return Cost(volume, flops, params, time)

    def full(self, variables: int) -> Cost:
        """Of the unpruned network."""
        return replace(self.exact(np.ones(variables, dtype=bool)), params=self.params)

    def exact(self, opened: Bools) -> Cost:
        """Whole numbers for a mask over the gate variables; an array of them for many masks (variables x masks)."""
        return self.of_present(self.logic.present(opened if opened.ndim > 1 else opened[:, None]), opened.ndim > 1)

    def of_present(self, present: Bools, many: bool = False) -> Cost:
        """Whole numbers for exactly these ids."""
        present = present if many else present.reshape(-1, 1)
        counts = [count + fixed for count, fixed in zip(self.counter.count(present), self.fixed, strict=True)]
        if self.latency is not None:
            counts.append(np.ceil(self.latency.exact(present)).astype(np.int64))
        return Cost(*(counts if many else (int(count[0]) for count in counts)))
