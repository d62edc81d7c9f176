"""What the convolutions of any net cost, counted while it runs: no analysis, no claims."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Count:
    """Costs per sample, of convolutions only. A kernel that is computed is no layer, and not counted."""

    volume: int = 0
    flops: int = 0
    weights: dict[Any, int] = field(default_factory=dict)  # sizes by identity: a layer called twice has them once
    biases: dict[Any, int] = field(default_factory=dict)

    @property
    def params(self) -> int:
        return sum(self.weights.values()) + sum(self.biases.values())

    def add(self, key: Any, sizes: tuple[int, int], channels: int, area: int, sites: int) -> None:
        """One call: weight and bias sizes, channels it writes, positions of one, places the kernel is applied at."""
        self.weights[key], self.biases[key] = sizes
        self.volume += channels * area
        self.flops += 2 * sizes[0] * sites


def count(net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Count:
    """Run ``net`` once and add up its convolutions.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1, bias=False))
    >>> found = count(net, (torch.zeros(2, 3, 4, 4),), {})
    >>> found.volume, found.params
    (192, 256)
    """
    counter = _Counter(net)
    with torch.no_grad(), counter:
        net(*args, **kwargs)
    return counter.found


class _Counter(TorchDispatchMode):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held = {id(tensor) for tensor in (*net.parameters(), *net.buffers())}
        self.found = Count()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.convolution.default and id(args[1]) in self.held:
            x, weight, bias, transposed = args[0], args[1], args[2], args[6]
            sizes = weight.numel(), 0 if bias is None else bias.numel()
            places = x if transposed else result
            self.found.add(id(weight), sizes, result.shape[1], result.shape[2:].numel(), places.shape[2:].numel())
        return result
