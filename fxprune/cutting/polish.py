"""Gradient steps on the calibration samples, towards what the unpruned net answers; norms stay as they are."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from fxprune.cutting.report import compare, outputs
from fxprune.cutting.samples import Samples
from fxprune.errors import OptionError
from fxprune.modules import evaluating
from fxprune.slim.verify import run
from fxprune.torch_private import tensors_in, tree_map
from fxprune.trace import example_arguments

RATE = 2e-4  # of Adam, falling to zero
BATCH = 64
SHIFT = 1 / 8  # of a picture's height and width, at most
SIDES = 16  # a picture is at least so high and wide


def check_steps(steps: Any) -> int:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise OptionError(f"polish={steps!r} is not a number of steps", fix="write polish=300, or leave it out")
    return steps


def polished(slim: fx.GraphModule, full: nn.Module, samples: Samples, steps: int, seed: int) -> bool:
    """Whether ``slim`` is better for it on the samples that are held back; otherwise its weights are as they were."""
    (_, before), kept = compare(full, slim, samples), copy.deepcopy(slim.state_dict())
    whole = outputs(full, samples, slice(0, samples.fitted))
    units = [leaf.double().var(0, unbiased=False).mean().clamp(min=1e-30).to(leaf) for leaf in whole]
    weights = [weight for weight in slim.parameters() if weight.is_floating_point()]
    asked = [weight.requires_grad for weight in weights]
    optimizer = torch.optim.Adam([weight.requires_grad_() for weight in weights], lr=RATE)
    generator = torch.Generator().manual_seed(seed)
    with evaluating(slim), evaluating(full), torch.enable_grad():
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = RATE * (1 - step / steps)
            args, kwargs = _batch(samples, generator)
            with torch.no_grad():
                wanted = _floating(run(full, args, kwargs))
            found = _floating(slim(*args, **kwargs))
            missed = [F.mse_loss(a, b) / unit for a, b, unit in zip(found, wanted, units, strict=True)]
            optimizer.zero_grad()
            torch.stack(missed).sum().backward()
            optimizer.step()
    for weight, was in zip(weights, asked, strict=True):
        weight.grad = None
        weight.requires_grad_(was)
    _, after = compare(full, slim, samples)
    better = before is not None and after is not None and after < before  # agreement is too coarse to decide
    if not better:
        slim.load_state_dict(kept)
    return better


def _floating(made: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tensors_in(made) if leaf.is_floating_point()]


def _batch(samples: Samples, generator: torch.Generator) -> Any:
    """Some of the samples; pictures are mirrored and shifted, all of a batch and all inputs alike."""
    size = min(samples.chunk if samples.fixed else BATCH, samples.fitted)
    which = torch.randperm(samples.fitted, generator=generator)[:size]
    mirrored = bool(torch.rand(1, generator=generator) < 0.5)
    shares = (2 * torch.rand(2, generator=generator) - 1) * SHIFT

    def changed(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.ndim == 0 or len(leaf) != samples.count:
            return leaf
        leaf = leaf[which].to(samples.device)
        if leaf.ndim != 4 or min(leaf.shape[2:]) < SIDES or not leaf.is_floating_point():
            return leaf
        leaf = leaf.flip(3) if mirrored else leaf
        down, right = (int(share * side) for share, side in zip(shares, leaf.shape[2:], strict=True))
        padded = F.pad(leaf, [max(right, 0), max(-right, 0), max(down, 0), max(-down, 0)])
        return padded[:, :, max(-down, 0) :, max(-right, 0) :][:, :, : leaf.shape[2], : leaf.shape[3]]

    return example_arguments(tree_map(changed, samples.inputs))
