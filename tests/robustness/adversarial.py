"""What every adversarial net must do: wrapped, masked, exported and trained, and nothing of the user's changed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import fxprune
from fxprune.gated.wrapped import Wrapped
from fxprune.modules import copy_module
from tests.exactness import TOLERANCE, call, check_export, error, random_masks
from tests.models import randomise

X = torch.randn(2, 3, 8, 10, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def conv(i: int, o: int, k: int = 1, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(i, o, k, **options)


def chain(*middle: nn.Module, width: int = 6) -> nn.Sequential:
    """A convolution, what is tried, and two more convolutions."""
    return nn.Sequential(conv(3, 6, 3, padding=1), nn.ReLU(), *middle, conv(width, 5), nn.ReLU(), conv(5, 4))


def check(model: nn.Module, x: torch.Tensor = X, *, random: bool = True, train: bool = True) -> Wrapped:
    """The freshly wrapped net is the original; with half and a tenth of the gates the slim net is the masked one."""
    model = model.double().eval()
    if random:
        randomise(model, torch.Generator().manual_seed(1))
    with untouched(model):
        wrapped = fxprune.wrap(model, 0.9, example_inputs=x)
    assert wrapped.gates
    assert error(call(wrapped, (x,)), call(copy_module(model), (x,))) <= 1e-12
    for density in (0.5, 0.1):
        masked = copy.deepcopy(wrapped)
        slim = check_export(masked.set_masks(random_masks(masked, density, torch.Generator().manual_seed(3))), [(x,)])
        assert slim.report.error <= TOLERANCE
    slim = fxprune.export(copy.deepcopy(wrapped).harden(), fuse=True)
    assert slim.report.after["volume"] <= 0.9 * slim.report.before["volume"]
    for net in (copy.deepcopy(wrapped), slim) if train else ():
        net.train()(x).square().mean().backward()
        grads = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
        assert grads and all(bool(grad.isfinite().all()) for grad in grads)
    return wrapped


def state(model: nn.Module) -> dict[str, Any]:
    """Everything about a model that a call could change."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        found[f"{path} has"] = sorted(vars(module))
        found[f"{path} trains"] = module.training
        found.update({f"{path} {name}": dict(held) for name, held in vars(module).items() if "hooks" in name and held})
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found[name] = id(tensor), tensor._version, tensor.requires_grad, id(tensor.grad), tensor.detach().clone()
    return found


def surroundings() -> dict[str, Any]:
    """What torch keeps for the whole process."""
    return {
        "random numbers": torch.get_rng_state(), "dtype": torch.get_default_dtype(), "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(), "threads": torch.get_num_threads(),
        "device": torch.get_default_device(), "autocast": torch.is_autocast_enabled("cpu"),
    }  # fmt: skip


@contextmanager
def untouched(*models: nn.Module) -> Iterator[None]:
    before = [state(model) for model in models], surroundings()
    yield
    after = [state(model) for model in models], surroundings()
    for one, other in zip((*before[0], before[1]), (*after[0], after[1]), strict=True):
        assert one.keys() == other.keys()
        changed = [name for name in one if not _same(one[name], other[name])]
        assert not changed, f"changed: {changed}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
    if isinstance(one, tuple):
        return all(map(_same, one, other))
    return bool(one == other)
