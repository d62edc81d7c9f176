"""What a layer sees: at some positions of its output, the inputs that its weights are multiplied with, as a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fxprune.torch_private import AnyConv, AnyTransposedConv

Slots = torch.Tensor  # positions x taps: where in the flat input; its size stands for "outside": a zero


@dataclass(frozen=True)
class Where:
    """Positions of a layer's output: some of its leading entries (samples, windows), at each the same places."""

    lead: torch.Tensor
    places: torch.Tensor

    @staticmethod
    def drawn(lead: int, area: int, rows: int, generator: torch.Generator) -> Where:
        """About ``rows`` of them, all if there are no more."""
        entries, places = torch.arange(lead), torch.arange(area)
        if lead > rows:
            entries = torch.randperm(lead, generator=generator)[:rows].sort().values
        most = max(rows // max(lead, 1), 1)
        if area > most:
            places = torch.randperm(area, generator=generator)[:most].sort().values
        return Where(entries, places)


def canonical(value: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    """Leading entries x channels x positions, one axis of positions for each of the kernel's (one, of a linear layer).
    """
    if isinstance(layer, nn.Linear):
        value = value if value.ndim > 1 else value[None]
        return value[:, :, None] if value.ndim == 2 else value.flatten(1, -2).transpose(1, 2)
    rank = len(layer.kernel_size)  # type: ignore[arg-type]
    whole: torch.Tensor = value if value.ndim == rank + 2 else value[None]
    return whole


def outputs_at(value: torch.Tensor, layer: nn.Module, where: Where) -> torch.Tensor:
    """Rows x channels."""
    flat = canonical(value, layer).flatten(2)
    return _matrix(flat[where.lead][:, :, where.places])


def _matrix(taken: torch.Tensor) -> torch.Tensor:
    """Entries x channels x positions (x taps) as rows, where they are worked with, and not in half precision."""
    rows = taken.transpose(1, 2).flatten(0, 1).cpu()
    return rows.float() if rows.element_size() < 4 else rows


def inputs_at(value: torch.Tensor, layer: nn.Module, shape: torch.Size, where: Where, columns: Any) -> torch.Tensor:
    """Rows x channels x taps, of the channels ``columns``; ``shape`` is that of the layer's canonical output."""
    x = canonical(value, layer)[where.lead]
    x = x if columns is None else x[:, columns]
    if isinstance(layer, nn.Linear):
        return _matrix(x[:, :, where.places])[:, :, None]
    assert isinstance(layer, AnyConv)
    pads = [(0, 0)] * (x.ndim - 2)
    if not isinstance(layer, AnyTransposedConv):
        pads = padding_of(layer)
        if layer.padding_mode != "zeros":
            x = F.pad(x, [side for pair in reversed(pads) for side in pair], mode=layer.padding_mode)
            pads = [(0, 0)] * len(pads)
    slots = slots_of(layer, tuple(x.shape[2:]), tuple(shape[2:]), pads, where.places)
    flat = x.flatten(2)
    if bool((slots == flat.shape[2]).any()):
        flat = F.pad(flat, (0, 1))
    seen = flat[:, :, slots.reshape(-1)]
    return _matrix(seen.reshape(*seen.shape[:2], *slots.shape))


def padding_of(layer: AnyConv) -> list[tuple[int, int]]:
    """Per axis, before and behind."""
    if layer.padding == "valid":
        return [(0, 0)] * len(layer.kernel_size)
    if layer.padding == "same":
        wide = [dilation * (size - 1) for dilation, size in zip(layer.dilation, layer.kernel_size, strict=True)]
        return [(total // 2, total - total // 2) for total in wide]
    return [(int(pad), int(pad)) for pad in layer.padding]


def slots_of(
    layer: AnyConv, given: tuple[int, ...], made: tuple[int, ...], pads: list[tuple[int, int]], places: torch.Tensor
) -> Slots:
    """Which entry of the flat input each tap of the kernel reads, at each of some flat positions of the output.

    >>> layer = nn.Conv1d(1, 1, 3, padding=1)
    >>> slots_of(layer, (4,), (4,), [(1, 1)], torch.arange(4)).tolist()
    [[4, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    """
    flat = torch.zeros(places.numel(), 1, dtype=torch.long)
    inside = torch.ones_like(flat, dtype=torch.bool)
    for axis, size in enumerate(given):
        at = (places // prod(made[axis + 1 :])) % made[axis]
        taps = torch.arange(layer.kernel_size[axis]) * layer.dilation[axis]
        if isinstance(layer, AnyTransposedConv):
            from_start = at[:, None] + int(layer.padding[axis]) - taps
            index = from_start.div(layer.stride[axis], rounding_mode="floor")
            fits = (from_start % layer.stride[axis] == 0) & (index >= 0) & (index < size)
        else:
            index = at[:, None] * layer.stride[axis] - pads[axis][0] + taps
            fits = (index >= 0) & (index < size)
        flat = (flat[:, :, None] * size + index[:, None, :]).flatten(1)
        inside = (inside[:, :, None] & fits[:, None, :]).flatten(1)
    return torch.where(inside, flat, prod(given))
