"""How good a network is: a mean over batches, or the result of an object that collects outputs. And batch-norm
statistics, estimated again for the present gates."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch import nn

from fxprune.errors import OptionError
from fxprune.torch_private import AnyBatchNorm
from fxprune.train.data import Batches, call, explained
from fxprune.train.loss import check_labels, check_logits

IGNORED = -100  # what cross_entropy ignores


def accuracy(output: Any, target: Any) -> torch.Tensor:
    """Per label 1 if the largest logit (along axis 1) is the right one, otherwise 0.

    >>> accuracy(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])).tolist()
    [1.0, 0.0]
    """
    check_logits(output, "the model's output", "metric_fn=lambda output, target: ...")
    check_labels(output, target)
    right: torch.Tensor = (output.argmax(1) == target)[target != IGNORED]
    return right.double()


def evaluate(
    net: nn.Module, batches: Batches, metric: Any, device: torch.device, between: Callable[[], None] = lambda: None
) -> float:
    """The mean of ``metric(output, target)`` over all samples; the network is left in eval mode.

    ``metric`` returns a number per batch (weighted by the batch's size) or a tensor of one per label. An object with
    ``update(output, target)`` and ``compute()`` (torchmetrics) is asked once, at the end. ``between`` is called between
    batches.
    """
    net.eval()
    collects = hasattr(metric, "update") and hasattr(metric, "compute")
    if collects and hasattr(metric, "reset"):
        metric.reset()
    total, many = 0.0, 0.0
    with torch.no_grad():
        for number, batch in batches.epoch(0, "validation"):
            between()
            batch = batch.to(device)
            with explained(f"batch {number} of {batches.name}", "the model or metric_fn"):
                output = call(net, batch.inputs)
                if collects:
                    metric.update(output, batch.target)
                    continue
                value = torch.as_tensor(metric(output, batch.target)).double()
            weight = batch.size if value.ndim == 0 else value.numel()
            total += float(value.sum()) * (weight if value.ndim == 0 else 1)
            many += weight
    result = metric.compute() if collects else total / max(many, 1.0)
    try:
        return float(result)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"metric_fn computes a {type(result).__name__}, not a number", fix="return one number, larger is better"
        ) from error


ENOUGH = 40  # batches for the statistics


def reestimate(net: nn.Module, batches: Batches, device: torch.device, seed: int) -> int:
    """Replace what batch norms learned under gate noise by plain averages over some training batches.

    Only batch norms are in training mode meanwhile: no dropout. Returns how many batches were used.
    """
    norms = [module for module in net.modules() if isinstance(module, AnyBatchNorm) and module.track_running_stats]
    momenta = {norm: norm.momentum for norm in norms}
    if not norms:
        return 0
    net.eval()
    try:
        for norm in norms:
            norm.train()
            norm.reset_running_stats()
            norm.momentum = None  # a cumulative average
        with torch.no_grad():
            for _, batch in islice(batches.epoch(0, seed, "statistics"), ENOUGH):
                call(net, batch.to(device).inputs)
    finally:
        for norm, momentum in momenta.items():
            norm.momentum = momentum
        net.eval()
    return min(len(batches), ENOUGH)
