"""Guards, gates, freezes and costs against what the paper says and arithmetic written out here."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

import fxprune
from examples.models import wrn
from fxprune.api import analyse
from fxprune.count import count
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
    seen = fxprune.inspect(net := wrn(28, 12), torch.zeros(1, 3, 32, 32))
    assert seen.cost["volume"] == 3_112_960
    assert count(net, (torch.zeros(1, 3, 32, 32),), {}).convolutions.flops == 15_087_796_224
    one_by_one = [layer.name for layer in seen.layers if layer.guarded]
    assert len(one_by_one) == 4  # the stem and three shortcuts


def test_resnet50_costs() -> None:
    seen = fxprune.inspect(net := torchvision.models.resnet50(weights=None), torch.zeros(1, 3, 128, 128))
    assert seen.cost["volume"] == 3_629_056
    assert count(net, (torch.zeros(1, 3, 128, 128),), {}).convolutions.flops == 2_669_150_208
    assert seen.cost["params"] == 25_557_032


def test_vgg_guards_every_hidden_layer() -> None:
    seen = fxprune.inspect(torchvision.models.vgg11(weights=None), torch.zeros(1, 3, 64, 64))
    assert guarded(seen) == [layer.name for layer in seen.layers[:-1]] and len(seen.layers) == 11


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
    for metric in ("volume", "flops", "params"):
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
    with pytest.raises(ModelError, match="no convolution and no linear layer"):
        fxprune.inspect(nn.Sequential(nn.Flatten(), nn.ReLU()), x)
    broken = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1))
    nn.init.constant_(broken[0].weight, float("nan"))
    with pytest.raises(ModelError, match=r"0\.weight holds NaN"):
        fxprune.inspect(broken, x)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1))
    with pytest.raises(OptionError, match="matches no layer"):
        fxprune.inspect(net, x, ignore=("nothing*",))
    with pytest.raises(OptionError, match="not a fraction"):
        fxprune.wrap(net, 1.5, example_inputs=x)
    with pytest.raises(ModelError, match="wrapped already"):
        fxprune.wrap(fxprune.wrap(net, 1 / 2, example_inputs=x), 1 / 2, example_inputs=x)


class Tokens(nn.Module):
    """A class token beside the tokens of a picture, one block of attention, and a head that reads that token alone."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.patch, self.heads = nn.Conv2d(3, width, 4, 4), heads
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.qkv, self.proj, self.head = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        b, _, c = x.shape
        x = torch.cat([self.token.expand(b, -1, -1), x], 1)
        q, k, v = self.qkv(x).reshape(b, -1, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(b, -1, c))
        return self.head(x[:, 0])


def test_a_class_token_follows_its_stream_and_sees_the_picture() -> None:
    wrapped = fxprune.wrap(Tokens().double(), 1 / 2, example_inputs=torch.zeros(1, 3, 16, 16, dtype=torch.float64))
    guarded = {guard.unit for guard in wrapped.analysis.guards.layers if guard.read}
    assert guarded >= {"qkv.heads", "qkv.values", "proj"}
    nothing = {name: torch.zeros(len(gate)) for name, gate in wrapped.gates.items()}
    wrapped.set_masks({**nothing, "proj": torch.arange(32) < 9, "patch": torch.arange(32) >= 20})
    slim = fxprune.export(wrapped)
    assert slim.token.shape == (1, 1, 12)
    one, other = torch.randn(2, 2, 3, 16, 16, dtype=torch.float64)
    assert not torch.allclose(slim(one), slim(other))


@pytest.mark.parametrize(("width", "heads"), [(32, 4), (512, 64), (2048, 64)])
def test_however_many_heads_there_are(width: int, heads: int) -> None:
    """Their ids vary along two axes, as those of tokens beside each other do."""
    analysis = analyse(Tokens(width, heads), (torch.zeros(1, 3, 8, 8),))
    units = {unit.name: unit.variables for unit in analysis.units}
    assert units["qkv.heads"] == heads and units["qkv.values"] == units["qkv.queries"] == width // heads


def test_recurrent_and_bilinear_layers_keep_what_they_read() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.recurrent = nn.Linear(6, 8), nn.Linear(8, 7), nn.LSTM(7, 5, batch_first=True)
            self.c, self.bilinear, self.head = nn.Linear(8, 4), nn.Bilinear(5, 4, 3), nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.a(x))
            return self.head(self.bilinear(self.recurrent(self.b(x))[0].mean(1), self.c(x).mean(1)))

    model, x = Odd().double().eval(), torch.randn(2, 4, 6).double()
    seen = fxprune.inspect(model, x)
    assert {layer.name: layer.gates for layer in seen.layers} == {"a": 8, "b": 0, "c": 0, "head": 0}
    assert {freeze.layers: freeze.why for freeze in seen.freezes} == {
        ("b",): "a recurrent layer keeps all channels that it reads and writes", ("c",): "no rule for this op"
    }  # fmt: skip
    assert any("put a linear layer before it" in freeze.remedy for freeze in seen.freezes)
    with pytest.raises(OptionError, match=r"the smallest that can be reached is 0\.6"):  # the rest is fixed
        fxprune.wrap(model, 1 / 2, metric="flops", example_inputs=x).harden()
    slim = fxprune.export(fxprune.wrap(model, 0.8, metric="flops", example_inputs=x))
    assert slim.report.after["params"] == sum(parameter.numel() for parameter in slim.parameters())
