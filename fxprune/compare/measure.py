"""The same ruler for every entry: cost, widths and time of a net beside those of the unpruned one."""

from __future__ import annotations

import os
import platform
import statistics
import time
from typing import Any

import torch
from torch import nn

from fxprune.budget.cost import METRICS
from fxprune.budget.count import count
from fxprune.passes.verify import noise

PAIRS, BATCHES = 30, (1, 32)
_CONVOLUTIONS = tuple(
    getattr(nn, f"Conv{transposed}{axes}d") for transposed in ("", "Transpose") for axes in (1, 2, 3)
)
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def machine() -> dict[str, Any]:
    """Where a row comes from, without names."""
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def inputs_of(example: Any) -> Inputs:
    """Positional and keyword arguments."""
    if isinstance(example, dict):
        return (), example
    return (tuple(example) if isinstance(example, (tuple, list)) else (example,)), {}


def cost(net: nn.Module, inputs: Inputs) -> dict[str, int]:
    """Counted while the net runs; no method's own word is taken for it."""
    found = count(net.eval(), *inputs)
    return {metric: int(getattr(found, metric)) for metric in METRICS}


def widths(net: nn.Module) -> dict[str, int]:
    """
    >>> widths(nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 4, 1)))
    {'0': 8, '2': 4}
    """
    return {name: int(part.out_channels) for name, part in net.named_modules() if isinstance(part, _CONVOLUTIONS)}


def latency(slim: nn.Module, full: nn.Module, inputs: Inputs, more: tuple[int, ...] = ()) -> dict[str, float]:
    """Batch size -> time of the slim net over that of the full one: the median over pairs that run in turns."""
    found = {}
    for size in sorted({*BATCHES, *more}):
        try:
            pairs = seconds(slim, full, inputs, size)
        except (RuntimeError, TypeError, ValueError):  # the net takes the batch size of its example only
            continue
        found[str(size)] = round(statistics.median(one / other for one, other in pairs), 4)
    return found


def seconds(slim: nn.Module, full: nn.Module, inputs: Inputs, size: int) -> list[tuple[float, float]]:
    """Of both nets in turns, so that whatever else the machine does falls on both alike."""
    device = next((p.device for p in slim.parameters()), torch.device("cpu"))
    args, kwargs = noise(*inputs, size, device, torch.float32)
    with torch.inference_mode():
        for net in (slim.eval(), full.eval()):  # the first call is never like the others
            _timed(net, args, kwargs, device)
        return [(_timed(slim, args, kwargs, device), _timed(full, args, kwargs, device)) for _ in range(PAIRS)]


def _timed(net: nn.Module, args: Any, kwargs: Any, device: torch.device) -> float:
    begin = time.perf_counter()
    net(*args, **kwargs)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin
