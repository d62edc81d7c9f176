"""Linear layers are gated, counted, timed and trained like the 1x1 convolutions that they are."""

from __future__ import annotations

import importlib.util

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxprune
from fxprune.count import count
from fxprune.gated.wrapped import Wrapped
from tests.exactness import check_export
from tests.models import ZOO, randomise

NETS = ("convnext_stages", "tokens_without_convolution", "mixes_tokens", "windows", "linear_with_batch_norms",
        "linear_called_on_map_and_point", "linear_as_a_function")  # fmt: skip


def wrapped_net(name: str, budget: float = 1.0, metric: str = "volume") -> tuple[Wrapped, tuple[torch.Tensor, ...]]:
    model, example, _ = ZOO[name]()
    return fxprune.wrap(model, budget, metric=metric, example_inputs=example), example


def test_who_has_gates() -> None:
    """All that do not alone write a result."""
    convnext, _ = wrapped_net("convnext_stages")
    assert {"blocks.0.wide", "blocks.0.back", "blocks.3.back"} <= set(convnext.gates)
    assert "head" not in convnext.gates and "blocks.0.dw" not in convnext.gates
    assert list(wrapped_net("linear_on_a_point")[0].gates) == ["stem.0", "a"]
    assert "shared" in wrapped_net("linear_called_on_map_and_point")[0].gates
    assert "linear" in wrapped_net("linear_as_a_function")[0].gates


def test_as_prunable_as_with_convolutions() -> None:
    for name in ("convnext_stages", "windows", "linear_as_a_function"):
        model, example, _ = ZOO[name]()
        seen = fxprune.inspect(model, example)
        assert all(layer.prunable == 1.0 or layer.ungated == "writes a model output" for layer in seen.layers), name


def test_the_same_as_a_convolution() -> None:
    """Costs, gates and slim nets of both are the same."""
    torch.manual_seed(0)
    maps = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 1), nn.GELU(), nn.Conv2d(8, 5, 1), nn.Conv2d(5, 2, 1))

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Conv2d(3, 6, 3), nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5)])
            self.last = nn.Conv2d(5, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layers[0](x).permute(0, 2, 3, 1)
            for layer in list(self.layers)[1:]:
                x = layer(x)
            return self.last(x.permute(0, 3, 1, 2))

    turned = Turned()
    values = [value.flatten(1) if value.shape[2:] == (1, 1) else value for value in maps.state_dict().values()]
    shaped = [value.reshape(own.shape) for value, own in zip(values, turned.state_dict().values(), strict=True)]
    turned.load_state_dict(dict(zip(turned.state_dict(), shaped, strict=True)))
    x = torch.randn(2, 3, 7, 9, dtype=torch.float64)
    made = [fxprune.wrap(net.double().eval(), 1 / 3, example_inputs=x).harden() for net in (maps, turned)]
    assert made[0].cost() == made[1].cost() and made[0].full_cost() == made[1].full_cost()
    torch.testing.assert_close(*(fxprune.export(net)(x) for net in made))


def test_arithmetic() -> None:
    """Per sample: windows that are folded into the batch are positions, too."""
    wrapped, example = wrapped_net("windows")
    full = wrapped.full_cost()
    rows = {"stem": (3, 8, 64, 1), "qkv": (8, 24, 64, 1), "proj": (8, 8, 64, 1), "merge": (32, 6, 16, 0)}
    assert full.volume == sum(outputs * area for _, outputs, area, _ in rows.values())
    rows["head"] = (6, 4, 1, 1)
    products = 2 * 4 * 2 * (2 * 16 * 16 * 4)  # two of them, in four windows, with two heads
    assert full.flops == sum(2 * inputs * outputs * area for inputs, outputs, area, _ in rows.values()) + products
    layers = sum(inputs * outputs + bias * outputs for inputs, outputs, _, bias in rows.values())
    assert full.params == layers + 2 * 8  # of the norm
    for batch in (1, 5):
        found = count(wrapped.unwrap(), (example[0][:1].repeat(batch, 1, 1, 1),), {})
        assert (found.volume, found.flops, found.params) == (full.volume, full.flops, full.params)


@pytest.mark.parametrize("metric", ["volume", "flops", "params"])
@pytest.mark.parametrize("name", NETS)
def test_on_budget(name: str, metric: str) -> None:
    wrapped, example = wrapped_net(name, 1 / 2, metric)
    slim = check_export(wrapped.harden(), [example])
    assert slim.report.after[metric] <= slim.report.before[metric] / 2


def test_a_budget_of_time() -> None:
    wrapped, _ = wrapped_net("convnext_stages", 0.9, "latency")
    latency = wrapped.analysis.costs.latency
    assert latency is not None
    tables = {(table.rows.size, table.columns.size) for table in latency.tables}
    assert {(24, 6), (6, 24), (32, 8)} <= tables  # the linear layers are measured over both widths
    assert all((table.times[1:, 1:] > 0).all() for table in latency.tables)
    gone = wrapped.set_masks({"blocks.0.wide": torch.zeros(24)}).cost().latency  # and with it, the block
    assert gone < wrapped.full_cost().latency


def test_dead_channels_are_zero_behind_biases_and_norms() -> None:
    wrapped, example = wrapped_net("tokens_without_convolution")
    wrapped.set_masks({"embed": torch.arange(8) % 2, "b": torch.zeros(8), "a": torch.arange(16) % 3 == 0})
    seen: dict[str, torch.Tensor] = {}
    wrapped.a.register_forward_pre_hook(lambda module, given: seen.update(into=given[0]))
    wrapped.b.register_forward_pre_hook(lambda module, given: seen.update(hidden=given[0]))
    wrapped(*example)
    assert not seen["into"][..., ::2].any() and seen["into"][..., 1::2].all()
    assert not seen["hidden"][..., torch.arange(16) % 3 != 0].any()


def test_a_step_of_training() -> None:
    wrapped, example = wrapped_net("convnext_stages", 1 / 4)
    wrapped.train()
    optimizer = torch.optim.Adam(wrapped.parameter_groups(lr=1e-2))
    before = wrapped.gates["blocks.0.wide"].log_alpha.detach().clone()
    for step in range(3):
        wrapped.progress = step / 3
        loss = wrapped(*example).square().mean() + wrapped.budget_loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert torch.isfinite(loss) and not torch.equal(before, wrapped.gates["blocks.0.wide"].log_alpha)
    check_export(wrapped.eval().harden(), [example])


def test_a_leaf_counts_its_linear_layers() -> None:
    """Those on maps, once if they are called twice."""
    shared = nn.Linear(6, 6)
    inner = nn.Sequential(shared, nn.ReLU(), shared)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.inner, self.head = nn.Conv2d(3, 6, 1), inner, nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.inner(self.stem(x).permute(0, 2, 3, 1)).mean((1, 2)))

    seen = fxprune.inspect(Net(), torch.zeros(2, 3, 4, 5), leaf=("inner",))
    (leaf,) = seen.leaves
    assert (leaf.volume, leaf.flops, leaf.params) == (2 * 6 * 20, 2 * 2 * 36 * 20, 42)
    assert seen.cost["volume"] == 3 * 6 * 20


def test_without_an_example() -> None:
    model, example, _ = ZOO["convnext_stages"]()
    wrapped = fxprune.wrap(model, 1 / 2)
    torch.testing.assert_close(wrapped(*example), model(*example))
    assert wrapped.full_cost() == fxprune.wrap(model, 1 / 2, example_inputs=example).full_cost()
    small = example[0][..., :4, :4]  # the last map has one position
    torch.testing.assert_close(fxprune.wrap(model, 1 / 2)(small), model(small))


def test_nothing_but_points() -> None:
    """Batch norm, dropout, a concatenation and a residual sum; classes behind a softmax stay."""

    class Points(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout())
            self.a, self.b, self.head = nn.Linear(8, 7), nn.Linear(15, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            x = x + self.b(torch.cat([x, F.gelu(self.a(x))], 1))
            return F.log_softmax(self.head(x), dim=1)

    torch.manual_seed(0)
    model, x = randomise(Points().double().eval(), torch.Generator().manual_seed(0)), torch.randn(4, 6).double()
    wrapped = fxprune.wrap(model, 1 / 3, metric="flops", example_inputs=x)
    assert {name: len(gate) for name, gate in wrapped.gates.items()} == {"stem.0": 8, "a": 7, "b": 8}
    assert wrapped.full_cost().volume == 8 + 7 + 8
    assert wrapped.full_cost().flops == 2 * (6 * 8 + 8 * 7 + 15 * 8 + 8 * 3)
    slim = check_export(wrapped.harden(), [(x,)])
    assert 0.8 < 3 * slim.report.after["flops"] / slim.report.before["flops"] <= 1


@pytest.mark.skipif(importlib.util.find_spec("onnxscript") is None, reason="ONNX is not installed")
@pytest.mark.parametrize("name", ["convnext_stages", "tokens_without_convolution", "linear_called_on_map_and_point"])
def test_onnx_costs_the_same(name: str) -> None:
    from fxprune.save.onnx import OnnxNet, to_onnx

    model, example, _ = ZOO[name]()
    wrapped = fxprune.wrap(model, 1 / 2, example_inputs=example).harden()
    slim = fxprune.export(wrapped).float()
    given = tuple(tensor.float() for tensor in example)
    net, said = OnnxNet(to_onnx(slim, given, {}), "slim.onnx"), slim.report.after
    found, own = net.count(*given), count(slim, given, {})
    assert (own.volume, own.flops, own.params) == (said["volume"], said["flops"], said["params"])
    norms = [module for module in slim.modules() if isinstance(module, nn.BatchNorm2d)]  # folded into convolutions
    assert (found.volume, found.flops) == (own.volume, own.flops)
    assert found.params == own.params - sum(norm.num_features for norm in norms)
    torch.testing.assert_close(net(*given)[0], slim(*given), rtol=1e-4, atol=1e-5)
