"""A copied module is what ``copy.deepcopy`` would have made, and Python's collector is left as it was found."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import fxprune
from fxprune.errors import FxPruneError
from fxprune.modules import copy_module, meta_copy


class Tangled(nn.Module):
    """Everything that refers to the same object twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.again = self.first
        self.listed = [self.second]
        self.nothing = None
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("unused", None)
        self.first.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.listed[0](self.again(self.first(x))) * self.scale


@pytest.mark.parametrize("make", [copy_module, copy.deepcopy])
def test_what_was_shared_is_shared_again(make: Any) -> None:
    net = Tangled()
    copied = make(net)
    x = torch.randn(2, 4)
    torch.testing.assert_close(copied(x), net(x), rtol=0, atol=0)
    assert copied.again is copied.first and copied.listed[0] is copied.second
    assert copied.second.weight is copied.first.weight and not copied.first.weight.requires_grad
    assert list(copied.state_dict()) == list(net.state_dict())
    originals = {tensor.data_ptr() for tensor in net.state_dict().values()}
    assert not originals & {tensor.data_ptr() for tensor in copied.state_dict().values()}


def test_a_module_that_copies_in_its_own_way_does() -> None:
    class Own(nn.Linear):
        def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
            return nn.Identity()

    class Forgetful(nn.Linear):
        def __getstate__(self) -> dict[str, Any]:
            return {**self.__dict__, "cache": None}

    net = nn.Sequential(Own(2, 2), Forgetful(2, 2), parametrizations.weight_norm(nn.Linear(2, 2)))
    net[1].cache = 3
    copied = copy_module(net)
    assert isinstance(copied[0], nn.Identity) and copied[1].cache is None
    x = torch.randn(3, 2)
    torch.testing.assert_close(copied[2](x), net[2](x))


def test_hooks_stay() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    net[0].register_forward_hook(lambda module, given, out: out + 1)
    x = torch.randn(3, 2)
    torch.testing.assert_close(copy_module(net)(x), net(x))


def test_a_meta_copy_holds_no_data_and_evaluates() -> None:
    net = Tangled().train()
    copied = meta_copy(net)
    assert all(tensor.is_meta for tensor in copied.state_dict().values())
    assert not copied.training and net.training
    assert copied.second.weight is copied.first.weight


def test_a_tensor_that_was_computed_is_copied_without_its_graph() -> None:
    net = nn.Linear(2, 2)
    net.cache = net.weight * 2  # type: ignore[assignment]
    copied = copy_module(net)
    assert torch.equal(copied.cache, net.cache) and copied.cache is not net.cache and copied.cache.is_leaf  # type: ignore


# -------------------------------------------------------------------- the collector


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_as_it_was(on: bool) -> None:
    try:
        (gc.enable if on else gc.disable)()
        fxprune.export(fxprune.wrap(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)), 1 / 2,
                                    example_inputs=torch.zeros(1, 3, 4, 4)))  # fmt: skip
        assert gc.isenabled() == on
        with pytest.raises(FxPruneError):
            fxprune.wrap(nn.ReLU(), 1 / 2, example_inputs=torch.zeros(1, 3, 4, 4))
        assert gc.isenabled() == on
    finally:
        gc.enable()
