"""Whatever is called: the user's model, its modes and hooks, and what torch keeps for the process stay as they are."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import fxprune
from fxprune.errors import TraceError
from tests.exactness import call, check_export, error, random_masks
from tests.robustness.adversarial import X, chain, conv, untouched


class Asking(nn.Module):
    """Asks for data, so that it is run once on made-up numbers; it has statistics, noise and counters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = conv(6, 6), nn.BatchNorm2d(6), nn.Dropout(0.5)
        self.calls, self.seen = 0, []  # type: int, list[int]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        x = self.drop(self.norm(self.conv(x)))
        return x + 1 if x.sum().item() > 1e9 else x


class Embedded(nn.Module):
    """A module on constants: run while the graph is read."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
        self.register_buffer("places", torch.randn(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.embed(self.places).mean(0)[None, :, None, None]


class Drawing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0 * torch.rand_like(x) + 0 * torch.randn(1, dtype=x.dtype) + 0 * torch.nonzero(x[:, 0]).shape[0]


MODELS: dict[str, Any] = {
    "asking": Asking, "embedded": Embedded, "drawing": Drawing, "norm": lambda: nn.BatchNorm2d(6),
    "spectral norm": lambda: parametrizations.spectral_norm(conv(6, 6)),
}  # fmt: skip


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_no_call_changes_anything(name: str, training: bool) -> None:
    model = chain(MODELS[name]()).double().train()
    model(X).sum().backward()
    model[0].weight.requires_grad_(False)
    model.train(training)
    if list(model[2].parameters()):
        model[2].train(not training)  # a part in another mode stays so
    calls = getattr(model[2], "calls", 0)
    with untouched(model):
        fxprune.inspect(model, X)
        wrapped = fxprune.wrap(model, 0.9, example_inputs=X)
        again = copy.deepcopy(wrapped)
    with untouched(model, wrapped):
        again.set_masks(random_masks(again, 0.5, torch.Generator().manual_seed(0)))
        again.unwrap(), again.cost()
    with untouched(model, wrapped, again):
        slim = fxprune.export(again)
        fxprune.export(again, fuse=True)
    assert slim.report.error < 1e-9
    assert getattr(model[2], "calls", 0) == calls
    assert [module.training for module in again.unwrap().modules()] == [module.training for module in model.modules()]
    assert not slim.get_parameter("0.weight").requires_grad
    with untouched(model, wrapped):
        copy.deepcopy(wrapped).harden()


def test_an_export_in_training_mode_is_that_of_eval_mode() -> None:
    """Spectral norm changes its weight at every look in training mode, a module on constants draws and counts."""
    model = chain(MODELS["spectral norm"](), Embedded(), nn.BatchNorm2d(6)).double().train()
    wrapped = fxprune.wrap(model, 0.8, example_inputs=X).harden()
    slim = fxprune.export(wrapped)
    assert slim.training and slim.report.error < 1e-9
    assert error(call(slim.eval(), (X,)), call(wrapped.eval(), (X,))) < 1e-9


# ---------------------------------------------------------------- modes of torch


@pytest.mark.parametrize(
    "mode",
    [torch.no_grad, lambda: torch.autocast("cpu", dtype=torch.bfloat16), lambda: torch.device("meta")],
    ids=["no_grad", "autocast", "default device"],
)
def test_calls_inside_of_a_mode(mode: Any) -> None:
    model = chain(nn.BatchNorm2d(6)).double().eval()
    with mode(), untouched(model):
        wrapped = fxprune.wrap(model, 0.8, example_inputs=X)
        fxprune.inspect(model, X)
        wrapped.harden()
        slim = fxprune.export(wrapped)
    assert error(call(slim, (X,)), call(wrapped, (X,))) < 1e-9
    for net in (wrapped, slim):
        net.train()(X).sum().backward()


def test_inference_mode() -> None:
    """A net that is exported inside of it can still be trained."""
    wrapped = fxprune.wrap(chain().double().eval(), 0.8, example_inputs=X)
    with torch.inference_mode(), untouched(wrapped):
        slim = fxprune.export(wrapped)
        wrapped(X)
    slim.train()(X).sum().backward()
    assert not any(parameter.is_inference() for parameter in slim.parameters())


class Switching(nn.Module):
    def __init__(self, mode: Any) -> None:
        super().__init__()
        self.mode, self.frozen, self.trained = mode, chain(nn.BatchNorm2d(6)), chain()
        self.frozen[-1] = conv(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.mode():
            y = self.frozen(x)
        return self.trained(y.to(x.dtype))


def test_what_is_computed_without_gradients_gets_none() -> None:
    model = Switching(torch.no_grad).double().eval()
    wrapped = fxprune.wrap(model, 0.8, example_inputs=X)
    slim = check_export(wrapped.harden(), [(X,)])
    for net in (model, wrapped, slim):
        net(X).square().sum().backward()
        named = {name: parameter.grad for name, parameter in net.named_parameters() if "fxprune" not in name}
        assert {name.partition(".")[0] for name, grad in named.items() if grad is not None} == {"trained"}


def test_autocast_inside_of_the_model() -> None:
    """A graph would forget it: a part of the model that uses it stays whole, a model that does so itself is refused."""

    def mode() -> Any:
        return torch.autocast("cpu", dtype=torch.bfloat16)

    with pytest.raises(TraceError, match="autocast inside of forward"):
        fxprune.wrap(Switching(mode), 0.8, example_inputs=X.float())
    model = nn.Sequential(Switching(mode), conv(4, 6), conv(6, 2)).eval()
    wrapped = fxprune.wrap(model, 0.9, example_inputs=X.float())
    assert list(wrapped.gates) == ["1"]
    assert error(call(wrapped, (X.float(),)), call(model, (X.float(),))) < 1e-6


# ---------------------------------------------------------------- hooks

HOOKS = ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
         "register_full_backward_pre_hook"]  # fmt: skip


@pytest.mark.parametrize("where", ["", "0", "2", "2.0"])
@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_are_kept_or_reported(kind: str, where: str) -> None:
    seen: list[int] = []
    model = chain(nn.Sequential(conv(6, 6), nn.ReLU())).double()
    getattr(model.get_submodule(where), kind)(lambda *_: seen.append(1))
    with warnings.catch_warnings(record=True) as said, untouched(model):
        warnings.simplefilter("always")
        wrapped = fxprune.wrap(model, 0.9, example_inputs=X)
    seen.clear()
    wrapped(X.clone().requires_grad_()).sum().backward()
    told = [str(warning.message) for warning in said if str(warning.message).startswith("hooks of")]
    looked_into = where in ("", "2")
    assert bool(seen) != looked_into
    assert [text.startswith(f"hooks of {where or 'the model'} are not called") for text in told] == [True] * looked_into
    assert fxprune.export(wrapped).report.error < 1e-9
