"""What the convolutions of any net cost, counted while it runs: no analysis, no claims.

A linear layer that is applied at every position of a map, or to every token, is a 1x1 convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from fxprune.torch_private import tree_flatten

_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_LAYERS = (F.conv1d, F.conv2d, F.conv3d, *_TRANSPOSED, F.linear)


@dataclass(frozen=True)
class Call:
    """One call of a layer: weight and bias sizes, channels it writes, positions of one, places its kernel is put."""

    weight: int
    bias: int
    channels: int
    area: int
    sites: int
    is_conv: bool


@dataclass
class Count:
    """Costs per sample, of convolutions only. A kernel that is computed is no layer, and not counted."""

    calls: dict[Any, list[Call]] = field(default_factory=dict)  # by weight: a layer called twice has it once

    def add(self, key: Any, call: Call) -> None:
        self.calls.setdefault(key, []).append(call)

    @property
    def layers(self) -> dict[Any, list[Call]]:
        """Without the linear layers that are never called on more than one position."""
        return {key: calls for key, calls in self.calls.items() if any(call.is_conv for call in calls)}

    @property
    def volume(self) -> int:
        return sum(call.channels * call.area for calls in self.layers.values() for call in calls)

    @property
    def flops(self) -> int:
        return sum(2 * call.weight * call.sites for calls in self.layers.values() for call in calls)

    @property
    def weights(self) -> int:
        return sum(calls[0].weight for calls in self.layers.values())

    @property
    def biases(self) -> int:
        return sum(calls[0].bias for calls in self.layers.values())

    @property
    def params(self) -> int:
        return self.weights + self.biases


def count(net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], batch: int | None = None) -> Count:
    """Run ``net`` once and add up its convolutions; ``batch`` is by default what the inputs say.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1, bias=False))
    >>> found = count(net, (torch.zeros(2, 3, 4, 4),), {})
    >>> found.volume, found.params
    (192, 256)
    """
    counter = _Counter(net, batch_size(args, kwargs) if batch is None else batch)
    with torch.no_grad(), counter:
        net(*args, **kwargs)
    return counter.found


def batch_size(args: Any, kwargs: Any) -> int:
    """The first size of the first input."""
    sizes = [leaf.shape[0] for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor) and leaf.ndim]
    return int(sizes[0]) if sizes else 1


def positions(shape: Sequence[int], axis: int, batch: int) -> int:
    """Of each channel, per sample, where channels are on ``axis``; windows or frames may be folded into the batch.

    >>> positions((2, 8, 5, 5), 1, batch=2), positions((18, 49, 96), 2, batch=2), positions((8, 5, 5), 0, batch=8)
    (25, 441, 25)
    """
    before, behind = prod(shape[:axis]), prod(shape[axis + 1 :])
    return before // batch * behind if batch and before % batch == 0 else prod(shape[1:axis]) * behind


class _Counter(TorchFunctionMode):
    def __init__(self, net: nn.Module, batch: int) -> None:
        super().__init__()
        self.held = {id(tensor) for tensor in (*net.parameters(), *net.buffers())}
        self.batch, self.found = batch, Count()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        made = func(*args, **given)
        if func in _LAYERS:
            x, weight, bias = first_three(*args, **given)
            if id(weight) in self.held:
                axis = made.ndim - weight.ndim + 1
                area = positions(made.shape, axis, self.batch)
                sites = positions(x.shape, axis, self.batch) if func in _TRANSPOSED else area
                sizes = weight.numel(), 0 if bias is None else bias.numel()
                is_conv = func is not F.linear or area > 1
                self.found.add(id(weight), Call(*sizes, made.shape[axis], area, sites, is_conv))
        return made


def first_three(input: Any, weight: Any, bias: Any = None, *_: Any, **__: Any) -> tuple[Any, Any, Any]:
    return input, weight, bias
