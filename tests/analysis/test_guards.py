"""Guarded means guarded: in every forward pass, mask, choice and export."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fxprune
from examples.models import resnet8, wrn
from fxprune.analysis.gates import Layer
from fxprune.analysis.guards import Guards
from fxprune.errors import OptionError
from fxprune.gated.bank import KEPT_AT, REOPENED, GateBank, mean_gate
from fxprune.gated.wrapped import Wrapped
from fxprune.methods import METHODS, make_method
from tests.exactness import call, prepared
from tests.models import ZOO, leaves


def layers_of(wrapped: Wrapped) -> list[Layer]:
    """The guarded layers."""
    guarded = {guard.layer for guard in wrapped.analysis.guards.layers if guard.read}
    return [layer for layer in wrapped.analysis.layers if layer.name in guarded]


def check_guarded(wrapped: Wrapped, opened: Any) -> None:
    """Every guarded layer has a channel that lives and is read, and what must live does."""
    opened = np.asarray(opened)
    assert wrapped.analysis.guards.held(opened)
    present = wrapped.analysis.costs.logic.present(opened[:, None])[:, 0]
    for layer in layers_of(wrapped):
        assert any(present[call.ids].any() for call in layer.calls), f"{layer.name} has no channel"
    alive = wrapped.analysis.costs.logic.alive(opened[:, None])[:, 0]
    for ids in wrapped.analysis.channels.outputs:
        assert alive[ids].any()


def randomised(wrapped: Wrapped, seed: int, low: float) -> Wrapped:
    """Gate variables between ``low`` and 3: far below the threshold nearly all are shut."""
    made = copy.deepcopy(wrapped)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        made.bank.log_alpha.uniform_(low, 3 if low > -10 else -4, generator=generator)
    made.bank.generator = generator
    return made


every_net = pytest.mark.parametrize("name", list(ZOO), scope="module")  # a net's tests in the process that wrapped it
draws = given(
    seed=st.integers(0, 2**32 - 1),
    low=st.sampled_from([-4.0, -8.0, -40.0]),
    share=st.floats(0.02, 0.6),
    density=st.floats(0, 0.3),
)


@every_net
@settings(max_examples=3, deadline=None)
@draws
def test_guards_hold(name: str, seed: int, low: float, share: float, density: float) -> None:
    check_guards_hold(name, seed, low, share, density)


@pytest.mark.fuzz
@every_net
@settings(max_examples=100, deadline=None)
@draws
def test_guards_hold_long(name: str, seed: int, low: float, share: float, density: float) -> None:
    check_guards_hold(name, seed, low, share, density)


def check_guards_hold(name: str, seed: int, low: float, share: float, density: float) -> None:
    wrapped, generator = randomised(prepared(name)[1], seed, low), torch.Generator().manual_seed(seed)
    bank = wrapped.bank
    check_guarded(wrapped, wrapped.masks())
    assert np.array_equal(wrapped.masks(), (bank.values() != 0).numpy())  # what eval mode computes is what is counted
    assert wrapped.cost() == wrapped.analysis.costs.exact(wrapped.masks())
    for count in (None, 3):
        drawn = (bank._draw(count) != 0).numpy()
        for opened in np.atleast_2d(drawn):
            check_guarded(wrapped, opened)
    scores = {layer: torch.randn(len(gate), generator=generator) for layer, gate in wrapped.gates.items()}
    masks = {layer: torch.rand(len(gate), generator=generator) < density for layer, gate in wrapped.gates.items()}
    check_guarded(wrapped, wrapped.set_masks(masks).masks())
    for fill in (True, False):
        bank.soften()
        try:
            check_guarded(wrapped, wrapped.harden(scores, fill, budget={"volume": share}).masks())
        except OptionError as error:
            assert "cannot be met" in str(error)


@every_net
def test_guarded_layers_are_in_the_slim_net(name: str) -> None:
    wrapped = copy.deepcopy(prepared(name)[1])
    wrapped.set_masks({layer: torch.zeros(len(gate)) for layer, gate in wrapped.gates.items()})
    widths = fxprune.export(wrapped, verify=False).report.widths
    assert all(widths[layer.name] > 0 for layer in layers_of(wrapped))


@pytest.mark.parametrize("mode", ["training", "eval", "hardened"])
@every_net
def test_the_output_depends_on_the_input(name: str, mode: str) -> None:
    """With everything shut but the guards. Weights are drawn anew while a ReLU happens to be dead."""
    depends: list[bool] = []
    for seed in range(12):
        if seed:
            model, example, _ = ZOO[name](seed)
            wrapped = fxprune.wrap(model, 0.5, example_inputs=example, verify=False)
        else:
            _, fresh, example, _ = prepared(name)
            wrapped = copy.deepcopy(fresh)
        best = wrapped.bank.kept()
        with torch.no_grad():
            wrapped.bank.log_alpha.copy_(torch.where(best, 2.5 if mode != "training" else -9.0, -9.0))
        if mode == "hardened":
            wrapped.set_masks({layer: torch.zeros(len(gate)) for layer, gate in wrapped.gates.items()})
        wrapped.train(mode == "training")
        other = ZOO[name](seed + 50)[1]
        pairs = zip(leaves(call(wrapped, example)), leaves(call(wrapped, other)), strict=True)
        differ = [not torch.equal(one, another) for one, another in pairs]
        depends = [a or b for a, b in zip(depends or differ, differ, strict=True)]
        if all(depends):
            return
    raise AssertionError(f"outputs that depend on the input: {depends}")


# ---------------------------------------------------------------- mutations: without the guard these tests must fail


@pytest.fixture
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guards, "hold", lambda self, opened, scores: opened)
    monkeypatch.setattr(GateBank, "best", lambda self: torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize("name", ["resnet", "chain", "inception", "shufflenet_v2", "convnext"])
def test_without_guards_the_tests_fail(unguarded: None, name: str) -> None:
    wrapped = randomised(prepared(name)[1], 0, -40.0)
    for opened in (wrapped.masks(), (wrapped.bank._draw(None) != 0).numpy()):
        with pytest.raises(AssertionError):
            check_guarded(wrapped, opened)
    wrapped.set_masks({layer: torch.zeros(len(gate)) for layer, gate in wrapped.gates.items()})
    with pytest.raises(AssertionError):
        check_guarded(wrapped, wrapped.masks())


# ---------------------------------------------------------------- single facts


def test_a_shortcut_cannot_be_closed() -> None:
    wrapped = fxprune.wrap(resnet8(16), 1 / 2, example_inputs=torch.zeros(1, 3, 32, 32))
    for name, gate in wrapped.gates.items():
        guarded = name == "conv" or "shortcut" in name
        assert int(copy.deepcopy(wrapped).set_masks({name: torch.zeros(len(gate))}).gates[name].mask.sum()) == guarded


def test_the_best_gate_is_the_one_that_stays() -> None:
    wrapped = fxprune.wrap(resnet8(16), 1 / 2, example_inputs=torch.zeros(1, 3, 32, 32))
    with torch.no_grad():
        wrapped.gates["conv"].log_alpha.copy_(torch.linspace(-9, -3, 16))
    assert wrapped.gates["conv"].mask.tolist() == [False] * 15 + [True]
    assert wrapped.bank.values()[15].item() == pytest.approx(REOPENED)
    assert mean_gate(torch.tensor(KEPT_AT)).item() == pytest.approx(REOPENED)


def test_a_kept_gate_feels_the_loss() -> None:
    wrapped = fxprune.wrap(resnet8(8), 1 / 2, example_inputs=torch.zeros(1, 3, 32, 32)).train()
    with torch.no_grad():
        wrapped.bank.log_alpha.fill_(-9.0)
    wrapped(torch.randn(4, 3, 32, 32)).square().sum().backward()
    assert wrapped.bank.log_alpha.grad is not None
    assert (wrapped.bank.log_alpha.grad[wrapped.bank.kept()] != 0).any()


def test_hardening_does_not_move_what_was_alive() -> None:
    wrapped = fxprune.wrap(resnet8(8), 1.0, example_inputs=torch.zeros(1, 3, 32, 32)).eval()
    with torch.no_grad():
        wrapped.bank.log_alpha.uniform_(-1.59, 3.0)  # all of them alive, some just so
        x = torch.randn(2, 3, 32, 32)
        before = wrapped(x)
        assert torch.equal(wrapped.harden(fill=False)(x), before)


def test_pooling_blocks_are_guarded_by_name() -> None:
    seen = fxprune.inspect(wrn(10, 2), torch.zeros(1, 3, 32, 32))
    assert len(seen.pooling_blocks) == 3
    for join in seen.pooling_blocks:
        (writer,) = [layer for layer in seen.layers if layer.guarded and join in layer.writes]
        assert writer.guarded == f"cheapest way through the pooling block {join}"


class Bypassed(nn.Module):
    """A join of two layers with a way around it, and one without."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.head = (nn.Conv2d(3 if n < 2 else 4, 4, 1) for n in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.a(x), self.b(x)], 1)
        x = x[:, :4] + x[:, 4:]
        return self.head(x + (self.c(x) + self.d(x)))


def test_a_join_with_a_way_around_is_no_pooling_block() -> None:
    assert fxprune.inspect(Bypassed(), torch.zeros(1, 3, 4, 4)).pooling_blocks == ("cat",)


@pytest.mark.parametrize("method", list(METHODS))
def test_methods_keep_guarded_layers(method: str) -> None:
    torch.manual_seed(0)
    wrapped = fxprune.wrap(resnet8(8), 1 / 32, example_inputs=torch.zeros(1, 3, 8, 8)).train()
    decider = make_method(method, wrapped, {})
    x = torch.randn(8, 3, 8, 8)
    weights, _ = wrapped.parameter_groups()
    optimizer = torch.optim.SGD([weights], lr=1e-2)
    for step in range(20):
        decider.advance(step / 20)
        if not wrapped.hardened:
            check_guarded(wrapped, (wrapped.bank._draw(None) != 0).detach().numpy())
        loss, penalty = wrapped(x).square().mean(), decider.penalty()
        optimizer.zero_grad()
        (loss if penalty is None else loss + penalty).backward()
        optimizer.step()
        check_guarded(wrapped, wrapped.masks())
    decider.advance(1.0)
    decider.decide()
    check_guarded(wrapped, wrapped.masks())
