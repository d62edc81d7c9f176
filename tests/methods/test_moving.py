"""VQ and ID: where columns of the next layers can be moved, the network computes the same as before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fxprune
from fxprune.methods import make_method
from fxprune.methods.streams import find_streams
from tests.methods.odd_nets import Odd, randomise


def linear_net(hidden: int = 12) -> nn.Sequential:
    net = nn.Sequential(nn.Conv2d(3, hidden, 3, bias=True), nn.BatchNorm2d(hidden), nn.Conv2d(hidden, 4, 1))
    found: nn.Sequential = randomise(net).double().eval()
    return found


def pruned(name: str, model: nn.Module, share: float, size: int = 8) -> nn.Module:
    net = fxprune.wrap(model, share, example_inputs=torch.zeros(1, 3, size, size, dtype=torch.float64))
    make_method(name, net, {}).decide()
    return fxprune.export(net)


def test_id_is_exact_where_filters_depend_on_each_other() -> None:
    """12 filters, 5 of them independent; the batch norm's shifts depend as the filters do."""
    torch.manual_seed(1)
    model = linear_net()
    conv, norm = model[0], model[1]
    assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d) and conv.bias is not None
    mixing = torch.randn(12, 5, dtype=torch.float64)
    with torch.no_grad():
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()  # type: ignore[operator]
        folded = mixing @ torch.randn(5, 28, dtype=torch.float64)
        conv.weight.copy_((folded[:, :-1] / scale[:, None]).reshape_as(conv.weight))
        norm.bias.copy_(folded[:, -1] - scale * (conv.bias - norm.running_mean))  # type: ignore[operator]
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    expected = model(x)
    slim = pruned("id", model, (5 + 4) / 16)  # the last layer's four are a model output
    assert slim.get_submodule("0").weight.shape[0] == 5  # type: ignore[union-attr, index]
    assert (slim(x) - expected).abs().max() <= 1e-9 * expected.abs().max()
    cut = pruned("id", model, (4 + 4) / 16)
    assert (cut(x) - expected).abs().max() > 1e-3 * expected.abs().max()


@pytest.mark.parametrize("name", ["id", "vq"])
def test_full_width_changes_nothing(name: str) -> None:
    torch.manual_seed(0)
    model = linear_net()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    assert (pruned(name, model, 1.0)(x) - model(x)).abs().max() <= 1e-9 * model(x).abs().max()


class Twins(nn.Module):
    """A residual net in which every second channel of each stream is the twin of another, batch norms included."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.inner, self.bn1 = nn.Conv2d(8, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.outer, self.bn2 = nn.Conv2d(6, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn(self.stem(x)))
        x = torch.sigmoid(x + self.bn2(self.outer(torch.relu(self.bn1(self.inner(x)))))) - 0.5
        out: torch.Tensor = self.fc(nn.functional.adaptive_avg_pool2d(x, 4).flatten(1))
        return out

    def twin(self) -> None:
        for conv, norm in ((self.stem, self.bn), (self.inner, self.bn1), (self.outer, self.bn2)):
            for tensor in (conv.weight, conv.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var):
                if tensor is not None:
                    tensor.data[1::2] = tensor.data[::2]


def test_vq_is_exact_where_filters_are_twins() -> None:
    """Through batch norms, nonlinearities, a residual add and a flatten."""
    torch.manual_seed(0)
    model = randomise(Twins()).double().eval()
    model.twin()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    expected = model(x)
    slim = pruned("vq", model, 1 / 2)
    report: Any = slim.report
    assert report.widths == {"stem": 4, "inner": 3, "outer": 4, "fc": 5}
    assert (slim(x) - expected).abs().max() <= 1e-9 * expected.abs().max()
    other = pruned("wm", model, 1 / 2)
    assert (other(x) - expected).abs().max() > 1e-3 * expected.abs().max()


ODD = ["norm later", "norm on a stream", "prelu", "scale", "chunk", "halves", "attention", "mean", "softmax",
       "tied readers"]  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
def test_columns_stay_where_positions_are_told_apart(kind: str) -> None:
    torch.manual_seed(0)
    model = randomise(Odd(kind)).double().eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    net = fxprune.wrap(model, 1 / 2, example_inputs=x)
    stream = next(stream for stream in find_streams(net) if stream.writers[0].unit.name == "a")
    assert stream.readers is None and len(stream) == 8
    expected = model(x)
    for name in ("vq", "id"):
        assert (pruned(name, model, 1.0)(x) - expected).abs().max() <= 1e-9 * expected.abs().max()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    make_method("vq", net, {}).decide()
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items() if "weight" in name)


@pytest.mark.parametrize("share", [0.5, 0.53, 0.56, 0.6, 0.7])
def test_vq_is_exact_where_the_budget_leaves_positions_half_written(share: float) -> None:
    torch.manual_seed(0)
    model = randomise(Twins()).double().eval()
    model.twin()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    net = fxprune.wrap(model, share, example_inputs=x)
    make_method("vq", net, {}).decide()
    assert (net.eval()(x) - model(x)).abs().max() <= 1e-9 * model(x).abs().max()
