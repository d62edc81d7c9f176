"""What the slim net takes over from the original beside its values, and what its report says."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxprune.api import export, wrap

IMAGE = torch.zeros(1, 3, 8, 8)


class Net(nn.Module):
    """A loose parameter, one that is computed with, a layer, a norm and a functional layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.d, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4)
        self.scale, self.shift = nn.Parameter(torch.rand(1, 8, 1, 1)), nn.Parameter(torch.rand(1, 8, 1, 1))
        self.kernel = nn.Parameter(torch.rand(4, 4, 1, 1))
        self.out = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.bn(self.d(self.c(x) * self.scale + self.shift.exp()))
        x = F.conv2d(F.conv2d(x, self.kernel).relu(), self.kernel)
        return self.out(x.mean((2, 3)))


def frozen_names(net: nn.Module) -> set[str]:
    return {name for name, parameter in net.named_parameters() if not parameter.requires_grad}


@pytest.mark.parametrize("name", ["c.weight", "c.bias", "d.bias", "bn.weight", "scale", "out.weight", "out.bias"])
def test_every_parameter_keeps_its_flag(name: str) -> None:
    net = Net()
    net.get_parameter(name).requires_grad_(False)
    slim = export(wrap(net, 0.6, example_inputs=IMAGE))
    assert frozen_names(slim) == {name}
    assert {"scale", "c.weight"} <= dict(slim.named_parameters()).keys()


def test_what_is_computed_from_parameters_is_trained_if_one_of_them_is() -> None:
    trained = export(wrap(Net(), 0.6, example_inputs=IMAGE))
    net = Net()
    net.shift.requires_grad_(False)
    net.kernel.requires_grad_(False)
    assert not frozen_names(trained)
    assert frozen_names(export(wrap(net, 0.6, example_inputs=IMAGE))) == {"exp", "kernel.weight"}


@pytest.mark.parametrize("make", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_computed_weight_is_frozen_with_its_parts(make: Any) -> None:
    net = nn.Sequential(make(nn.Conv2d(3, 8, 1)), nn.Conv2d(8, 2, 1))
    assert not frozen_names(export(wrap(net, 0.6, example_inputs=IMAGE)))
    net[0].requires_grad_(False)
    with torch.no_grad():
        assert frozen_names(export(wrap(net, 0.6, example_inputs=IMAGE))) == {"0.weight", "0.bias"}


@pytest.mark.parametrize("make", [nn.utils.weight_norm, nn.utils.spectral_norm])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_weight_that_a_hook_computes(make: Any) -> None:
    """It is a plain attribute, part of the graph of the last forward pass, and older than the last step."""
    net = nn.Sequential(make(nn.Conv2d(3, 8, 1)), nn.ReLU(), make(nn.Conv2d(8, 6, 1)), nn.Conv2d(6, 2, 1))
    x = torch.randn(2, 3, 8, 8)
    net(x)
    wrapped = wrap(net, 0.6, example_inputs=x)
    wrapped(x).sum().backward()
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.grad is not None:
                parameter -= parameter.grad
    slim = export(wrapped.harden())
    assert slim.report.error < 1e-9
    torch.testing.assert_close(slim.eval()(x), wrapped.eval()(x))


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_the_memory_format_stays(rank: int, groups: int) -> None:
    conv: Any = {2: nn.Conv2d, 3: nn.Conv3d}[rank]
    last = {2: torch.channels_last, 3: torch.channels_last_3d}[rank]
    net = nn.Sequential(conv(4, 8, 3), conv(8, 8, 3, groups=groups), conv(8, 4, 3))
    x = torch.zeros(1, 4, *[8] * rank)
    plain = export(wrap(net, 0.6, example_inputs=x))
    assert all(p.is_contiguous() for p in plain.parameters())
    moved = export(wrap(net.to(memory_format=last), 0.6, example_inputs=x))  # type: ignore[call-overload]
    weights = [p for p in moved.parameters() if p.ndim > 1]
    assert all(p.is_contiguous(memory_format=last) and not p.is_contiguous() for p in weights)


def test_the_report_counts_the_parameters_of_the_slim_net() -> None:
    class Loose(nn.Module):
        def __init__(self, norm: nn.Module) -> None:
            super().__init__()
            self.a, self.b, self.norm = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2, 1), norm
            self.scale = nn.Parameter(torch.ones(1, 8, 1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = (self.a(x) * self.scale).permute(0, 2, 3, 1)
            return self.b(self.norm(x).permute(0, 3, 1, 2))

    for norm in (nn.LayerNorm(8), nn.Identity()):
        wrapped = wrap(Loose(norm), 1.0, example_inputs=IMAGE).set_masks({"a": torch.arange(8) < 2})
        slim = export(wrapped)
        assert slim.report.after["params"] == sum(p.numel() for p in slim.parameters())


def test_a_copy_keeps_the_report() -> None:
    slim = export(wrap(Net(), 0.6, example_inputs=IMAGE))
    for made in (copy.deepcopy(slim), copy.deepcopy(copy.deepcopy(slim))):
        assert made.report == slim.report and made.report is not slim.report
    for made in (slim, copy.deepcopy(slim)):  # a pickle needs no fxprune
        assert pickle.loads(pickle.dumps(made)).report == SimpleNamespace(**slim.report.as_dict())


@pytest.mark.parametrize("training", [True, False])
def test_it_is_in_the_mode_that_the_wrapped_net_is_in(training: bool) -> None:
    """And not in the one that the model was in when it was wrapped."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)).train(not training)
    slim = export(wrap(net, 0.5, example_inputs=IMAGE).train(training))
    assert all(module.training == training for module in slim.modules())
