"""Blocks are looked up once per call of the net, in its code and in its saved source."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest
import torch
from torch import nn

import fxprune
from fxprune.slim.module_lookups import share_lookups


class Net(nn.Module):
    """Names that ask for trouble: a block called like a variable, one within another, a number."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        inner = nn.ModuleDict({"conv": nn.Conv2d(4, 4, 1), "norm": nn.BatchNorm2d(4)})
        self.x_0 = nn.ModuleDict({"0": inner, "end": nn.Conv2d(4, 4, 1)})
        self.head = nn.Conv2d(4, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.x(x)
        inner = self.x_0["0"]
        y = y + inner["norm"](inner["conv"](y))
        return self.head(self.x_0["end"](y))


@pytest.fixture
def slim() -> torch.fx.GraphModule:
    torch.manual_seed(0)
    return fxprune.export(fxprune.wrap(Net().eval(), 0.7, example_inputs=torch.zeros(1, 3, 8, 8)))


def test_a_block_is_looked_up_once(slim: torch.fx.GraphModule) -> None:
    looked_up = [line.strip() for line in slim.code.splitlines() if "self." in line]
    assert looked_up == [
        'x_ = self._modules["x"]._modules',
        'x_0_0 = self._modules["x_0"]._modules["0"]._modules',
        'x_0_ = self._modules["x_0"]._modules',
        "layers = self._modules",
    ]


def test_copies_pickles_and_recompiled_nets_compute_the_same(slim: torch.fx.GraphModule) -> None:
    x = torch.randn(2, 3, 8, 8)
    expected = slim(x)
    file = io.BytesIO()
    torch.save(slim, file)
    file.seek(0)
    slim.recompile()
    for net in (slim, copy.deepcopy(slim), torch.load(file, weights_only=False)):
        assert torch.equal(net(x), expected)


def test_a_layer_that_is_replaced_is_the_one_called(slim: torch.fx.GraphModule) -> None:
    slim.get_submodule("x_0.0").conv = nn.Identity()
    layer = slim.get_submodule("x.0")
    before = slim(torch.zeros(1, 3, 8, 8))
    layer.weight.data.zero_(), layer.bias.data.fill_(3.0)
    assert not torch.equal(slim(torch.zeros(1, 3, 8, 8)), before)


def test_saved_source_names_blocks(slim: torch.fx.GraphModule, tmp_path: Path) -> None:
    fxprune.save(slim, tmp_path / "slim")
    source = next((tmp_path / "slim").glob("*.py")).read_text()
    assert source.count("self.x_0[0]") == 1
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(fxprune.load(tmp_path / "slim")(x), slim(x))


def test_a_net_that_was_compiled_and_exported_calls_the_same_layers(slim: torch.fx.GraphModule) -> None:
    x = torch.randn(2, 3, 8, 8)
    expected = slim.eval()(x)
    torch.testing.assert_close(torch.compile(slim, backend="eager", fullgraph=True)(x), expected)
    exported = torch.export.export(slim, (x,))
    torch.testing.assert_close(exported.module()(x), expected)
    assert {name for name, _ in slim.named_parameters()} <= set(exported.state_dict)


def test_names_that_are_taken() -> None:
    code = ['a_0 = self.a.one(x)\n', 'b = self.a.two(a_0)\n', 'a = getattr(self, "0")(b)\n', 'return a + "é"\n']
    assert share_lookups(code)[0].splitlines() == [
        'a_ = self._modules["a"]._modules', 'a_0 = a_["one"](x)', 'b = a_["two"](a_0)',
        "layers = self._modules", 'a = layers["0"](b)', 'return a + "é"',
    ]  # fmt: skip


def test_what_calls_no_layer_stays() -> None:
    code = ['y = self.index + x.narrow(1, 0, 2); z = getattr(y, "shape")\n', 'return torch.relu(y)']
    assert share_lookups(code) == ["".join(code)]
