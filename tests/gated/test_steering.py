"""The pieces of ``bar`` as options: defaults, single pieces taken out, mistakes."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fxprune.errors import OptionError
from fxprune.gated.barrier import SCHEDULES, sliding
from fxprune.gated.names import PRESSURE
from fxprune.gated.pressure import NUMBERS, RANGES, Steering, gate_rate
from fxprune.gated.wrapped import Wrapped
from fxprune.methods import Method, make_method
from fxprune.methods.bar import REMOVED
from tests.gated.two_stages import X, Y, wrapped_net
from tests.train.small_run import small_run

PARTS: list[dict[str, Any]] = [
    {"scaled": False}, {"gain": 0}, {"ahead": 0}, {"interval": "fixed"}, {"own_steps": False},
    {"start": "random"}, {"ceiling": 1e10}, {"margin": 0.02}, {"speed": 20}, {"price": 0.05}, {"hardness": 5},
    {"own_steps": False, "scaled": False, "gain": 0, "ahead": 0, "interval": "fixed", "start": "random", "rate": 0.05,
     "price": 0.01},
]  # fmt: skip


def trained(steps: int = 60, schedule: str = "sigmoid", **options: Any) -> tuple[Wrapped, Method]:
    net = wrapped_net(1 / 4, schedule=schedule)
    torch.manual_seed(1)
    method = make_method("bar", net, options)
    optimizer = torch.optim.Adam(method.parameter_groups(steps), lr=1e-3)
    method.advance(0.0)
    for step in range(steps):
        part = slice(32 * step % 256, 32 * step % 256 + 32)
        loss, penalty = F.cross_entropy(net(X[part]), Y[part]), method.penalty()
        optimizer.zero_grad()
        (loss if penalty is None else loss + penalty).backward()
        optimizer.step()
        method.advance((step + 1) / steps)
    return net, method


@pytest.fixture(scope="module")
def usual() -> torch.Tensor:
    """Gates that were trained without options."""
    return trained()[0].bank.log_alpha.detach()


def test_every_number_has_a_range_that_holds_its_default() -> None:
    assert set(RANGES) == {one.name for one in fields(Steering) if str(one.type).startswith("float")}
    assert Steering() == Steering(rate=None)


def test_defaults_are_what_is_there_without_options(usual: torch.Tensor) -> None:
    told, _ = trained(**{one.name: one.default for one in fields(Steering)})
    assert torch.equal(usual, told.bank.log_alpha)


@pytest.mark.parametrize("options", PARTS, ids=str)
def test_each_piece_makes_a_difference_and_ends_on_budget(usual: torch.Tensor, options: dict[str, Any]) -> None:
    net, method = trained(**options)
    assert bool(torch.isfinite(net.bank.log_alpha).all())
    assert not torch.equal(net.bank.log_alpha, usual)
    method.decide()
    assert net.cost().volume <= net.full_cost().volume / 4


def test_gates_of_the_optimizer_are_its_own() -> None:
    net, method = trained(own_steps=False, rate=0.05)
    _, gates = method.parameter_groups(60)
    assert (gates["lr"], gates["weight_decay"]) == (0.05, 0.0) and gates["params"] == [net.bank.log_alpha]
    assert len(make_method("bar", wrapped_net(), {}).parameter_groups(60)) == 1
    before = net.bank.log_alpha.detach().clone()
    method.advance(1.0)
    assert torch.equal(net.bank.log_alpha, before)
    assert make_method("bar", wrapped_net(), {"own_steps": False}).parameter_groups(10)[1]["lr"] == gate_rate(10)


def test_a_price_that_is_not_steered_stays() -> None:
    assert float(trained(gain=0, price=0.07)[0].pressure.prices) == pytest.approx(0.07)
    assert float(trained()[0].pressure.prices) != pytest.approx(0.3)


def test_hardness_of_the_schedules() -> None:
    assert sliding(100, 0, 0.25, "sigmoid", 20.0) > sliding(100, 0, 0.25) > sliding(100, 0, 0.25, "sigmoid", 2.0)
    assert sliding(100, 0, 0.25, "linear", 20.0) == sliding(100, 0, 0.25, "linear") == 75
    assert sliding(100, 0, 0.25, "exponential", 20.0) < sliding(100, 0, 0.25, "exponential")
    for name in SCHEDULES:
        for hardness in (0.1, 1.0, 100.0):
            assert sliding(100, 10, 0.0, name, hardness) == pytest.approx(100)
            assert sliding(100, 10, 1.0, name, hardness) == pytest.approx(10)
    net = wrapped_net()
    make_method("bar", net, {"hardness": 4.0})
    net.progress = 0.3
    full = net.full_cost().volume
    assert net.sliding_budget()["volume"] == pytest.approx(sliding(full, full / 4, 0.3, "sigmoid", 4.0))


def test_copies_are_steered_alike() -> None:
    net, _ = trained(steps=10, gain=60, start="random")
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert made.pressure.steering == net.pressure.steering
        assert torch.equal(made.bank.log_alpha, net.bank.log_alpha)
        assert all(torch.equal(a, b) for a, b in zip(made.buffers(), net.buffers(), strict=True))


def test_a_state_with_unnamed_numbers_loads() -> None:
    """As it was written before they had names: progress, last loss's, steps, scale, passes, pushed, prices."""
    net, _ = trained(steps=10)
    state = net.state_dict()
    names = [f"{PRESSURE}.{name}" for name in (*NUMBERS, "prices")]
    state[f"{PRESSURE}.dials"] = torch.cat([state.pop(name).reshape(-1) for name in names])
    made = wrapped_net()
    made.load_state_dict(state)
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in made.state_dict().items())


def test_a_net_that_was_pickled_with_options_that_are_gone_loads() -> None:
    net, _ = trained(steps=10)
    for name in REMOVED:
        object.__setattr__(net.pressure.steering, name, 1.0)
    made = pickle.loads(pickle.dumps(net))
    assert made.pressure.steering == Steering()
    assert torch.equal(made.bank.log_alpha, net.bank.log_alpha)


@pytest.mark.parametrize("name", REMOVED)
def test_options_that_are_gone(name: str) -> None:
    assert not hasattr(Steering(), name)
    with pytest.raises(OptionError, match=f"method 'bar' has no {name} any more: .*\n.*fix: leave it out of"):
        make_method("bar", wrapped_net(), {name: 1.0, "gain": 60})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gian": 1}, "gian"),
        ({"gain": -1}, "gain=-1 is not a number from 0 to"),
        ({"gain": "strong"}, "gain='strong'"),
        ({"margin": 0.9}, "margin=0.9"),
        ({"ahead": float("nan")}, "ahead=nan"),
        ({"interval": "wide"}, "interval='wide' is unknown"),
        ({"start": None}, "start=None is unknown"),
        ({"scaled": "no"}, "scaled='no' is neither True nor False"),
    ],
)
def test_mistakes(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        small_run(None, teacher=None, method="bar", method_options=options)
