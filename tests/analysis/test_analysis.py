"""Guards, gates, freezes and costs against what the paper says and arithmetic written out here."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

import fxprune
from examples.models import wrn
from fxprune.analysis import analyse
from fxprune.errors import ModelError, OptionError


@pytest.fixture(scope="module")
def resnet18() -> fxprune.Inspection:
    return fxprune.inspect(torchvision.models.resnet18(weights=None), torch.zeros(1, 3, 224, 224))


def guarded(seen: fxprune.Inspection) -> list[str]:
    return [layer.name for layer in seen.layers if layer.guarded]


def test_resnet18_guards_are_the_stem_and_the_shortcuts(resnet18: fxprune.Inspection) -> None:
    assert guarded(resnet18) == ["conv1"] + [f"layer{n}.0.downsample.0" for n in (2, 3, 4)]
    assert resnet18.pooling_blocks == ("add_2", "add_4", "add_6")
    assert resnet18.layers[0].guarded == "every way to the output passes it"
    assert "pooling block" in next(layer.guarded for layer in resnet18.layers if layer.name == "layer2.0.downsample.0")


def test_wrn_28_12_costs_what_the_paper_divides_by() -> None:
    seen = fxprune.inspect(wrn(28, 12), torch.zeros(1, 3, 32, 32))
    assert seen.cost["volume"] == 3_112_960
    assert seen.cost["flops"] == 15_087_796_224
    one_by_one = [layer.name for layer in seen.layers if layer.guarded]
    assert len(one_by_one) == 4  # the stem and three shortcuts


def test_resnet50_costs() -> None:
    seen = fxprune.inspect(torchvision.models.resnet50(weights=None), torch.zeros(1, 3, 128, 128))
    assert seen.cost["volume"] == 3_629_056
    assert seen.cost["flops"] == 2_669_150_208
    assert seen.cost["network_params"] == 25_557_032


def test_vgg_guards_every_convolution() -> None:
    seen = fxprune.inspect(torchvision.models.vgg11(weights=None), torch.zeros(1, 3, 64, 64))
    assert len(guarded(seen)) == len(seen.layers) == 8


def test_an_op_that_nobody_knows_freezes_what_reaches_it() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(torch.special.i0e(self.b(self.a(x))))

    seen = fxprune.inspect(Odd(), torch.zeros(1, 3, 4, 4))
    assert [layer.gates for layer in seen.layers] == [8, 0, 0]
    (freeze,) = seen.freezes
    assert "i0e" in freeze.op
    assert freeze.layers == ("b",)
    assert freeze.source is not None
    assert "test_analysis.py" in freeze.source


def test_costs_of_a_pruned_chain_are_arithmetic() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 3, stride=2), nn.Conv2d(6, 2, 1))
    analysis = analyse(net, torch.zeros(1, 3, 9, 9))
    opened = np.array([True] * 5 + [False] * 3 + [True] * 2 + [False] * 4)
    cost = analysis.costs.exact(opened)
    assert cost.volume == 5 * 81 + 2 * 16 + 2 * 16
    assert cost.flops == 2 * (5 * 3 * 9 * 81 + 2 * 5 * 9 * 16 + 2 * 2 * 16)
    assert cost.params == (5 * 3 * 9 + 5) + (2 * 5 * 9 + 2) + (2 * 2 + 2)


def test_expected_cost_meets_exact_cost_and_has_gradients() -> None:
    net = torchvision.models.resnet18(weights=None)
    analysis = analyse(net, torch.zeros(1, 3, 32, 32))
    generator = torch.Generator().manual_seed(0)
    hard = torch.rand(analysis.variables, generator=generator, dtype=torch.float64) < 0.5
    exact = analysis.costs.exact(hard.numpy())
    expected = analysis.costs.expected(hard.double())
    for metric in ("volume", "flops", "params", "network_params"):
        assert round(float(expected[metric])) == exact[metric]
    p = torch.full((analysis.variables,), 0.7, dtype=torch.float64, requires_grad=True)
    analysis.costs.expected(p).flops.backward()
    assert p.grad is not None
    assert bool((p.grad > 0).all())


def test_orphans_cost_nothing() -> None:
    """A block whose last convolution is dead is not computed at all."""
    wrapped = fxprune.wrap(torchvision.models.resnet18(weights=None), 1.0, example_inputs=torch.zeros(1, 3, 64, 64))
    full = wrapped.full_cost()
    wrapped.set_masks({"layer1.0.conv2": torch.zeros(64, dtype=torch.bool)})
    assert wrapped.cost().volume == full.volume - 2 * 64 * 16 * 16


def test_bad_models_and_options() -> None:
    x = torch.zeros(1, 3, 8, 8)
    with pytest.raises(ModelError, match="no convolution"):
        fxprune.inspect(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), x)
    broken = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1))
    nn.init.constant_(broken[0].weight, float("nan"))
    with pytest.raises(ModelError, match=r"0\.weight holds NaN"):
        fxprune.inspect(broken, x)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1))
    with pytest.raises(OptionError, match="matches no convolution"):
        fxprune.inspect(net, x, ignore=("nothing*",))
    with pytest.raises(OptionError, match="not a fraction"):
        fxprune.wrap(net, 1.5, example_inputs=x)
    with pytest.raises(ModelError, match="wrapped already"):
        fxprune.wrap(fxprune.wrap(net, 1 / 2, example_inputs=x), 1 / 2, example_inputs=x)
