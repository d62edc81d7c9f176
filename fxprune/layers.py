"""The gates: hard-concrete variables, one flat parameter for the whole network, and what they let through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fxprune.ids import IdTable

BETA, GAMMA, ZETA = 2 / 3, -0.1, 1.1
OPEN_AT = 2.5  # a gate starts fully open: the wrapped net computes what the original computes


def mean_gate(log_alpha: torch.Tensor) -> torch.Tensor:
    """The gate's value without noise: Q^-1(1/2), the paper's mask.

    >>> mean_gate(torch.tensor([-1.6, 0.0, 1.6])).tolist()
    [0.0, 0.5, 1.0]
    """
    return (torch.sigmoid(log_alpha / BETA) * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


@dataclass(frozen=True, eq=False)
class Site:
    """Where the wrapped graph multiplies (``gate`` given) or masks: a tensor's ids, shaped to broadcast over it."""

    ids: torch.Tensor
    gate: torch.Tensor | None


class Gate:
    """The gate of one layer: a view into the flat parameter."""

    def __init__(self, bank: GateBank, start: int, count: int) -> None:
        self._bank, self._range = bank, slice(start, start + count)

    def __len__(self) -> int:
        return self._range.stop - self._range.start

    @property
    def log_alpha(self) -> torch.Tensor:
        return self._bank.log_alpha[self._range]

    @property
    def mask(self) -> torch.Tensor:
        """Which variables are open, as the network stands now."""
        return self._bank.opened()[self._range]

    def __repr__(self) -> str:
        return f"Gate({int(self.mask.sum())} of {len(self)} open)"


class Gates(Mapping[str, Gate]):
    """Ordered: layer name -> gate."""

    def __init__(self, bank: GateBank, ranges: dict[str, tuple[int, int]]) -> None:
        self._gates = {name: Gate(bank, start, count) for name, (start, count) in ranges.items()}

    def __getitem__(self, name: str) -> Gate:
        return self._gates[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._gates)

    def __len__(self) -> int:
        return len(self._gates)


class GateBank(nn.Module):
    """All gate variables. Called once per forward pass, it gives every site its factor or mask."""

    log_alpha: nn.Parameter
    hard: torch.Tensor
    is_hard: torch.Tensor

    def __init__(self, count: int, table: IdTable, sites: list[Site], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((count,), OPEN_AT, dtype=dtype, device=device))
        self.register_buffer("hard", torch.ones(count, dtype=torch.bool, device=device))
        self.register_buffer("is_hard", torch.zeros((), dtype=torch.bool, device=device))
        self.table, self.sites = table, sites

    def opened(self) -> torch.Tensor:
        """Which gates are open without noise."""
        return self.hard if bool(self.is_hard) else mean_gate(self.log_alpha.detach()) > 0

    def values(self) -> torch.Tensor:
        """Gate values of the deterministic network; a gate that was opened again lets at least a little through."""
        value = mean_gate(self.log_alpha)
        return torch.where(self.hard, value.clamp(min=0.1), 0.0) if bool(self.is_hard) else value

    def forward(self) -> list[torch.Tensor]:
        values = self.values()
        alive = self.table.alive((values.detach() > 0).to(values.dtype))
        padded = torch.cat([values, values.new_ones(1)])
        return [
            alive[site.ids] * padded[site.gate] if site.gate is not None else alive[site.ids] > 0 for site in self.sites
        ]


def apply_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return x * gate.to(x.dtype)


def apply_mask(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """``where`` and not a product: zero times infinity is no zero."""
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


__all__: list[Any] = ["Gate", "GateBank", "Gates", "Site", "apply_gate", "apply_mask", "mean_gate"]
