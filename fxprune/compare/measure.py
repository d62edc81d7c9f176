"""The same ruler for every entry: cost, widths and time of a net beside those of the unpruned one."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch
from torch import nn

from fxprune.cost.model import METRICS
from fxprune.count import count
from fxprune.latency.stopwatch import Inputs, device_of, in_turns, processor, usual_ratio
from fxprune.slim.verify import noise

PAIRS, BATCHES = 30, (1, 32)


def machine() -> dict[str, Any]:
    """Where a row comes from, without names."""
    return {
        "cores": os.cpu_count(),
        "processor": processor(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def cost(net: nn.Module, inputs: Inputs) -> dict[str, int]:
    """Counted while the net runs; no method's own word is taken for it."""
    found = count(net.eval(), *inputs)
    return {metric: int(getattr(found, metric)) for metric in METRICS}


def widths(net: nn.Module, inputs: Inputs) -> dict[str, int]:
    """Channels of each convolution that runs.

    >>> widths(nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 4, 1)), ((torch.zeros(1, 3, 2, 2),), {}))
    {'0': 8, '2': 4}
    """
    tensors = (*net.named_parameters(), *net.named_buffers())
    names = {id(tensor): name.removesuffix(".weight") for name, tensor in tensors}
    return {names[key]: calls[0].channels for key, calls in count(net.eval(), *inputs).layers.items()}


def latency(slim: nn.Module, full: nn.Module, inputs: Inputs, more: tuple[int, ...] = ()) -> dict[str, float]:
    """Batch size -> time of the slim net over that of the full one: the median over pairs that run in turns."""
    found = {}
    for size in sorted({*BATCHES, *more}):
        made = noise(*inputs, size, device_of(slim), torch.float32)
        try:
            one, other = in_turns([slim.eval(), full.eval()], made, PAIRS)
        except (RuntimeError, TypeError, ValueError, AssertionError):  # it takes the batch size of its example only
            continue
        found[str(size)] = round(usual_ratio(one, other), 4)
    return found
