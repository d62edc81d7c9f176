"""Runs that end in the middle, and what is compared with those that do not."""

from __future__ import annotations

from collections.abc import Callable

import torch

import fxprune


class Crash(BaseException):  # not an error of the user's code
    pass


def crashing(at: int, act: Callable[[], None]) -> Callable[..., torch.Tensor]:
    """The usual loss, until its call number ``at``."""
    calls = 0

    def loss(output: torch.Tensor, target: torch.Tensor, taught: torch.Tensor | None) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == at:
            act()
        if taught is None:
            return torch.nn.functional.cross_entropy(output, target)
        return fxprune.distillation_loss(output, taught, target)

    return loss


def crash() -> None:
    raise Crash


def weights(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert list(one) == list(other)
    assert all(torch.equal(one[name], other[name]) for name in one)
