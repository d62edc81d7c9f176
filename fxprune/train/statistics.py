"""Batch-norm statistics that belong to the gates as they are now."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fxprune.train.data import Batches, call

ENOUGH = 40  # batches


def reestimate(net: nn.Module, batches: Batches, device: torch.device, seed: int) -> int:
    """Replace what batch norms learned under gate noise by plain averages over some training batches.

    Only batch norms are in training mode meanwhile: no dropout. Returns how many batches were used.
    """
    norms = [module for module in net.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    if not norms:
        return 0
    momenta = [norm.momentum for norm in norms]
    net.eval()
    used = 0
    try:
        for norm in norms:
            norm.train()
            norm.reset_running_stats()
            norm.momentum = None  # a cumulative average
        with torch.no_grad():
            for number, batch in batches.epoch(0, seed, "statistics"):
                call(net, batch.to(device).inputs)
                used = number + 1
                if used == ENOUGH:
                    break
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        net.eval()
    return used
