"""Numbers that are none, variances that are zero, and networks that cannot be read."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

import fxprune
from fxprune.errors import ExportError, ModelError, OptionError
from fxprune.gated.wrapped import Wrapped
from tests.exactness import TOLERANCE, call, check_export, error
from tests.robustness.adversarial import X, chain, conv

NAN, INF = float("nan"), float("inf")
DEAD = {"0": [0, 1, 1, 0, 1, 1], "3": [0, 1, 1, 1, 1]}  # channel 0 of two layers, one with a batch norm and one without


def net(**options: Any) -> nn.Sequential:
    return nn.Sequential(
        conv(3, 6, 3), nn.BatchNorm2d(6, **options), nn.ReLU(), conv(6, 5, 3), nn.ReLU(), conv(5, 4)
    ).double().eval()  # fmt: skip


@torch.no_grad()
def put(model: nn.Module, name: str, value: float) -> nn.Module:
    dict((*model.named_parameters(), *model.named_buffers()))[name][0] = value
    return model


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("name", ["0.weight", "0.bias", "1.weight", "1.running_var", "3.weight", "3.bias"])
def test_what_is_dead_may_hold_anything(name: str, value: float) -> None:
    wrapped = fxprune.wrap(net(), 0.9, example_inputs=X)
    put(wrapped, name, value)
    check_export(wrapped.set_masks(DEAD), [(X,)])


@pytest.mark.parametrize("variance", [0.0, -1.0])
@pytest.mark.parametrize("affine", [True, False])
def test_a_dead_channel_whose_norm_divides_by_nothing(variance: float, affine: bool) -> None:
    model = put(net(eps=0.0, affine=affine), "1.running_var", variance)
    wrapped = fxprune.wrap(model, 0.9, example_inputs=X)
    check_export(copy.deepcopy(wrapped).set_masks(DEAD), [(X,)])
    with pytest.raises(ExportError, match="nothing can be compared"):  # alive, it makes everything NaN
        fxprune.export(wrapped.set_masks({}))


def test_a_norm_of_variance_zero() -> None:
    model = net()
    model[1].running_var.zero_()
    check_export(fxprune.wrap(model, 0.9, example_inputs=X).set_masks(DEAD), [(X,)])


def test_a_dead_channel_that_overflows() -> None:
    model = put(put(net().float(), "0.weight", 3e38), "3.weight", 3e38)
    wrapped = fxprune.wrap(model, 0.9, example_inputs=X.float()).set_masks(DEAD)
    assert bool(call(wrapped, (X.float(),)).isfinite().all())


@pytest.mark.parametrize(("name", "value"), [("0.weight", NAN), ("5.bias", INF), ("1.running_mean", NAN)])
def test_values_that_nothing_can_be_computed_from(name: str, value: float) -> None:
    match = rf"{re.escape(name)} holds NaN or infinite values\n.*fix: load weights"
    with pytest.raises(ModelError, match=match):
        fxprune.wrap(put(net(), name, value), 0.9, example_inputs=X)
    wrapped = fxprune.wrap(net(), 0.9, example_inputs=X)
    put(wrapped, name, value)
    with pytest.raises(ModelError, match=match):
        fxprune.export(wrapped.set_masks({}))


def test_a_weight_of_a_dead_channel_that_a_living_one_reads() -> None:
    wrapped = fxprune.wrap(net(), 0.9, example_inputs=X)
    with torch.no_grad():
        wrapped.get_parameter("3.weight")[:, 0] = NAN  # the wrapped net still multiplies it by zero
    with pytest.raises(ExportError, match="nothing can be compared"):
        fxprune.export(wrapped.set_masks(DEAD))


def test_gates_that_are_no_numbers() -> None:
    wrapped = put(fxprune.wrap(net(), 0.9, example_inputs=X), "fxprune_gates.log_alpha", NAN)
    assert isinstance(wrapped, Wrapped)
    with pytest.raises(OptionError, match="hold NaN"):
        wrapped.harden()
    with pytest.raises(ModelError, match="log_alpha holds NaN"):
        fxprune.export(wrapped.set_masks({}))


class Masked(nn.Module):
    """Attention's mask is minus infinity; the input's logarithm is none for noise."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(3, 6, 3), conv(6, 4)
        self.register_buffer("mask", torch.zeros(8).masked_fill(torch.arange(8) > 4, -INF))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x.log())
        return self.b(x * torch.softmax(x.mean((1, 2))[:, None, None] + self.mask, -1))


def test_infinite_masks_and_inputs_that_must_be_positive() -> None:
    wrapped = fxprune.wrap(Masked().double().eval(), 0.9, example_inputs=X.abs())
    check_export(wrapped.set_masks({"a": [0, 1, 1, 0, 1, 1]}), [(X.abs(),)])


@pytest.mark.parametrize("opened", [0, 1])
def test_all_gates(opened: int) -> None:
    """Closed beyond what the guards allow, or open."""
    wrapped = fxprune.wrap(net(), 0.9, example_inputs=X)
    wrapped.set_masks({name: [opened] * len(gate) for name, gate in wrapped.gates.items()})
    slim = check_export(wrapped, [(X,)])
    assert list(slim.report.widths.values()) == ([6, 5, 4] if opened else [1, 1, 4])


# ---------------------------------------------------------------- models that are not plain modules


def test_graph_modules_and_data_parallel() -> None:
    for model in (fx.symbolic_trace(net()), nn.DataParallel(net())):
        wrapped = fxprune.wrap(model.eval(), 0.8, example_inputs=X)
        assert error(call(wrapped, (X,)), call(model, (X,))) <= 1e-12
        check_export(wrapped.harden(), [(X,)])
    again = fxprune.wrap(fxprune.export(wrapped), 0.9, example_inputs=X)
    check_export(again.harden(), [(X,)])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_part_is_a_leaf() -> None:
    model = nn.Sequential(conv(3, 3), torch.jit.script(net().double()), conv(4, 6), conv(6, 4)).double().eval()
    wrapped = copy.deepcopy(fxprune.wrap(model, 0.9, example_inputs=X))
    assert list(wrapped.gates) == ["2"]
    check_export(wrapped.set_masks({"2": [1, 0, 0, 1, 1, 0]}), [(X,)])
    assert all(parameter.is_leaf for parameter in wrapped.parameters())


def quantised() -> nn.Module:
    plain = nn.Sequential(conv(3, 6, 3), nn.Flatten(), nn.Linear(6 * 6 * 8, 4))
    return torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, dtype=torch.qint8)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nn.Sequential(fxprune.wrap(net(), 0.9, example_inputs=X)), r"0 is wrapped already\n.*unwrap\(\)"),
        (quantised, r"2 is quantised.*\n.*fix: wrap the model as it was"),
        (lambda: torch.export.export(net(), (X,)).module(), r"inner operators.*\n.*pass the original"),
    ],
    ids=["wrapped inside", "quantised", "exported"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_models_that_are_refused(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        fxprune.wrap(build(), 0.9, example_inputs=X)


def test_the_meta_device() -> None:
    """Looking is fine, deciding is not; also where only a buffer has no numbers."""
    wrapped = copy.deepcopy(fxprune.wrap(net().to("meta"), 0.9, example_inputs=X))
    assert wrapped.full_cost().volume > 0
    for decide in (wrapped.harden, wrapped.cost, lambda: wrapped.set_masks({})):
        with pytest.raises(ModelError, match=r"meta device.*\n.*load the weights first"):
            decide()
    part = net()
    part[1].running_mean = part[1].running_mean.to("meta")
    with pytest.raises(ModelError, match=r"1\.running_mean is on the meta device"):
        fxprune.export(fxprune.wrap(part, 0.9, example_inputs=X))


class Single(nn.Module):
    """Knows one precision only, and is not looked into."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum().item() > 1e9 else x @ torch.eye(10, dtype=torch.float32)


def test_a_model_that_cannot_be_compared() -> None:
    wrapped = fxprune.wrap(chain(Single()).float(), 0.8, example_inputs=X.float()).harden()
    with pytest.raises(ExportError, match=r"cannot be compared, which is done in float64.*\n.*verify=False"):
        fxprune.export(wrapped)
    slim = fxprune.export(wrapped, verify=False)
    assert error(call(slim, (X.float(),)), call(wrapped, (X.float(),))) < 1e-5 and TOLERANCE < 1e-5
