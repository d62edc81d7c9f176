"""What any net costs, counted while it runs: no analysis, no claims.

Volume: what layers, convolutions and linear ones, write; but for logits, linear layers of which alone a result of the
net is made. FLOPs: all that torch counts. Parameters: all that there are.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from fxprune.torch_private import tensors_in, tree_flatten

_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_LAYERS = (F.conv1d, F.conv2d, F.conv3d, *_TRANSPOSED, F.linear)
_JOINED = (torch.cat, torch.concat, torch.concatenate, torch.stack, torch.hstack, torch.vstack)


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
    """Costs per sample. A kernel that is computed is no layer."""

    calls: dict[Any, list[Call]] = field(default_factory=dict)  # by weight: a layer called twice has it once
    logits: set[Any] = field(default_factory=set)  # linear layers that alone write a result
    flops: int = 0
    params: int = 0

    def add(self, key: Any, call: Call) -> None:
        self.calls.setdefault(key, []).append(call)

    @property
    def convolutions(self) -> Count:
        """These alone, as the paper's tables count."""
        convs = {key: calls for key, calls in self.calls.items() if calls[0].is_conv}
        flops = sum(2 * call.weight * call.sites for calls in convs.values() for call in calls)
        return Count(convs, flops=flops, params=sum(calls[0].weight + calls[0].bias for calls in convs.values()))

    @property
    def layers(self) -> dict[Any, list[Call]]:
        """Those whose outputs make up the volume."""
        return {key: calls for key, calls in self.calls.items() if key not in self.logits}

    @property
    def volume(self) -> int:
        return sum(call.channels * call.area for calls in self.layers.values() for call in calls)


def flops_of(run: Callable[[], Any]) -> int:
    """As torch counts them, all samples together; attention in one call as the two products that it is.

    >>> flops_of(lambda: torch.zeros(2, 3) @ torch.zeros(3, 4))
    48
    """
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def count(net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Count:
    """Run ``net`` once and add up.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(128, 5, bias=False))
    >>> cost = count(net, (torch.zeros(2, 3, 4, 4),), {})
    >>> cost.volume, cost.params, cost.convolutions.params
    (128, 864, 224)
    """
    counted, written = _counted(net, args, kwargs, batch_size(args, kwargs))
    counted.logits = {key for key in counted.calls if frozenset([key]) in written and not counted.calls[key][0].is_conv}
    return counted


def count_part(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], batch: int) -> Count:
    """The same for a submodule, whose results are no results of the net."""
    return _counted(part, args, kwargs, batch)[0]


Writers = frozenset[Any]  # layers that a value is made of, with no layer in between


def _counted(
    net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], batch: int
) -> tuple[Count, frozenset[Writers]]:
    """And who wrote the results."""
    counter = _Counter(net, batch)
    results: list[Any] = []

    def run() -> None:
        with counter:
            results.append(net(*args, **kwargs))

    counter.count.flops = flops_of(run) // max(batch, 1)
    counter.count.params = sum(parameter.numel() for parameter in net.parameters())
    return counter.count, frozenset().union(*map(counter.writers.of, tensors_in(results)))


def written_by(operands: Iterable[frozenset[Writers]], joined: bool) -> frozenset[Writers]:
    """Of what is made of these: side by side (``joined``) each part has its own writers, else they are all mixed."""
    known = [parts for parts in operands if parts]
    if joined or len(known) < 2:
        return frozenset().union(*known)
    return frozenset([frozenset().union(*(part for parts in known for part in parts))])


class _Writers:
    """Tensor -> who wrote its parts; as long as the tensor is there."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[weakref.ref[torch.Tensor], frozenset[Writers]]] = {}

    def of(self, tensor: torch.Tensor) -> frozenset[Writers]:
        held, parts = self.known.get(id(tensor), (None, frozenset()))
        return parts if held is not None and held() is tensor else frozenset()

    def note(self, tensor: torch.Tensor, parts: frozenset[Writers]) -> None:
        self.known[id(tensor)] = weakref.ref(tensor), parts


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
        self.batch, self.count, self.writers = batch, Count(), _Writers()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        result = func(*args, **given)
        writers = written_by(map(self.writers.of, tensors_in((args, given))), func in _JOINED)
        if func in _LAYERS:
            x, weight, bias = first_three(*args, **given)
            if id(weight) in self.held:
                axis = result.ndim - weight.ndim + 1
                area = positions(result.shape, axis, self.batch)
                sites = positions(x.shape, axis, self.batch) if func in _TRANSPOSED else area
                sizes = weight.numel(), 0 if bias is None else bias.numel()
                self.count.add(id(weight), Call(*sizes, result.shape[axis], area, sites, func is not F.linear))
                writers = frozenset([frozenset([id(weight)])])
        if writers:
            for tensor in tensors_in(result):
                self.writers.note(tensor, writers)
        return result


def first_three(input: Any, weight: Any, bias: Any = None, *_: Any, **__: Any) -> tuple[Any, Any, Any]:
    return input, weight, bias
