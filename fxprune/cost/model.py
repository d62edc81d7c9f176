"""What a network costs: volume, FLOPs and parameters, as anybody else counts them.

Exact for masks, and the differentiable expectation for probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fxprune.channels import Channels
from fxprune.channels.ids import FIXED, ONE
from fxprune.cost.exact import Bools, Logic
from fxprune.cost.expectation import Expectation, Present
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
        self.params = params  # of the unpruned network, whatever reads them
        self.latency: Latency | None = None  # once it has been measured
        leaves = channels.trace.leaves  # counted, never pruned; their parameters are among those that are not cut
        self.fixed = sum(leaf.volume for leaf in leaves), sum(leaf.flops for leaf in leaves), 0
        roots = np.unique(np.concatenate([[ONE, FIXED], *channels.outputs, *(f.ids for f in channels.freezes)]))
        self.logic, self.counter = Logic(channels.table, roots), Counter(channels, logits)
        self.expectation = Expectation(channels.table, roots)

    def physical(self, gates: torch.Tensor) -> torch.Tensor:
        """Per id, how surely the pruned network computes it: alive and needed. On the host, in float64."""
        found: torch.Tensor = Present.apply(gates.double().cpu(), self.expectation)  # type: ignore[no-untyped-call]
        return found

    def expected(self, gates: torch.Tensor) -> Cost:
        """Costs for gate probabilities, differentiable; for gates of zeros and ones the exact cost."""
        return self.of_ids(self.physical(gates))

    def slopes(self, gates: torch.Tensor, metrics: Sequence[str]) -> list[torch.Tensor]:
        """Per metric, what another bit of each gate costs, through everything that hangs on it."""
        tape = self.expectation.tape(gates.detach().double().cpu().numpy())
        present = torch.from_numpy(tape.present).requires_grad_()
        costs = self.pressing(present)
        by_present = [torch.autograd.grad(costs(name), present, retain_graph=True)[0].numpy() for name in metrics]
        return [torch.from_numpy(self.expectation.gradient(tape, each)).to(gates) for each in by_present]

    def pressing(self, present: torch.Tensor) -> Callable[[str], torch.Tensor]:
        """What presses on the gates while training: per metric the expected cost, of a time its smooth form."""
        counted = self.counter.expected(present)

        def cost(metric: str) -> torch.Tensor:
            if metric == LATENCY and self.latency is not None:
                return self.latency.smooth(present)
            found: torch.Tensor = getattr(counted, metric)
            return found

        return cost

    def of_ids(self, present: torch.Tensor) -> Cost:
        """Costs of a network that computes each id with the given probability."""
        time = None if self.latency is None else self.latency.expected(present)
        found, (volume, flops, params) = self.counter.expected(present), self.fixed
        return Cost(found.volume + volume, found.flops + flops, found.params + params, time)

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
