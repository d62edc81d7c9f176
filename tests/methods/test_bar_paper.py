"""The paper's algorithm: its formulas, its gates in the user's optimizer, its end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxprune
from fxprune.errors import OptionError
from fxprune.gated.bank import CLOSED_AT
from fxprune.gated.wrapped import Wrapped
from fxprune.methods import Method, make_method
from tests.train.interrupted import Crash, assert_same, crash, crashing, weights
from tests.train.small_run import small_run

EXAMPLE = torch.zeros(1, 3, 8, 8)


def two_layers() -> nn.Module:
    """4 channels of 8 x 8 and 6 of 4 x 4 have gates, 2 of 4 x 4 have none: a volume of 256 + 96 + 32 = 384."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(6, 2, 1)
    )


def wrapped(budget: Any = 1 / 2, **options: Any) -> Wrapped:
    torch.manual_seed(0)
    return fxprune.wrap(two_layers().double(), budget, example_inputs=EXAMPLE.double(), **options)


def number(penalty: torch.Tensor | None) -> float:
    assert penalty is not None
    return float(penalty.detach())


def chance(log_alpha: float) -> float:
    return 1 / (1 + math.exp(-(log_alpha - 2 / 3 * math.log(0.1 / 1.1))))


@pytest.mark.parametrize("tolerance", [0.0, 0.01])
def test_penalty_is_the_papers(tolerance: float) -> None:
    net = wrapped()
    method = make_method("bar-paper", net, {"strength": 1e-3, "tolerance": tolerance})
    with torch.no_grad():  # one channel of the first layer and two of the second are closed
        net.gates["0"].log_alpha.copy_(torch.tensor([0.5, -2.0, 0.1, 1.0], dtype=torch.float64))
        net.gates["2"].log_alpha.copy_(torch.tensor([0.0, -1.7, 0.3, -3.0, 2.0, -1.5], dtype=torch.float64))
    method.advance(0.9)
    v = 3 * 64 + 4 * 16 + 2 * 16
    expected = 64 * sum(map(chance, (0.5, -2.0, 0.1, 1.0)))
    expected += 16 * sum(map(chance, (0.0, -1.7, 0.3, -3.0, 2.0, -1.5)))
    assert number(method.penalty()) == pytest.approx(1e-3 * 1e10 * expected, rel=1e-12)  # b is below V = 288
    method.advance(0.3)
    done = (1 / (1 + math.exp(2)) - 1 / (1 + math.exp(5))) / (1 - 2 / (1 + math.exp(5)))
    a = 192 - (16 if tolerance else 1e-4 * 384)  # the cheapest channel costs 16
    b = (1 - done) * (1 + tolerance) * 384 + done * 192
    f = (v - a) ** 2 / ((b - v) * (b - a))
    found = method.penalty()
    assert found is not None and a < v < b and number(found) == pytest.approx(1e-3 * f * expected, rel=1e-12)
    assert method.allowed()["volume"] == pytest.approx(b)
    (gradient,) = torch.autograd.grad(found, net.bank.log_alpha)
    p = chance(0.5)
    assert float(gradient[0]) == pytest.approx(1e-3 * f * 64 * p * (1 - p))


def test_nothing_to_pay_on_budget() -> None:
    net = wrapped()
    method = make_method("bar-paper", net, {})
    with torch.no_grad():
        net.bank.log_alpha.fill_(-3.0)
        net.bank.log_alpha[-1] = 1.0
    method.advance(1.0)
    assert number(method.penalty()) == 0.0


def test_ceiling_start_and_hardness() -> None:
    net = wrapped()
    method = make_method("bar-paper", net, {"ceiling": 50, "tolerance": 0.0, "start": "open"})
    assert bool((net.bank.log_alpha == 2.5).all())
    total = (4 * 64 + 6 * 16) * chance(2.5)
    assert number(method.penalty()) == pytest.approx(1e-5 * 50 * total)
    net = wrapped()
    method = make_method("bar-paper", net, {"tolerance": 0.0, "hardness": 4})
    assert 0 <= float(net.bank.log_alpha.detach().min()) < float(net.bank.log_alpha.detach().max()) <= 0.01
    method.advance(0.25)
    low = 1 / (1 + math.exp(2))
    done = (1 / (1 + math.exp(1)) - low) / (1 - 2 * low)
    assert method.allowed()["volume"] == pytest.approx((1 - done) * 384 + done * 192)


@pytest.mark.parametrize("metric", ["flops", "params", "latency"])
def test_other_metrics_take_the_cost_models_counts(metric: str) -> None:
    net = wrapped(1 / 2, metric=metric)
    method = make_method("bar-paper", net, {"start": "open"})
    method.advance(0.5)
    found = method.penalty()
    assert found is not None and 0 < number(found) < math.inf
    (gradient,) = torch.autograd.grad(found, net.bank.log_alpha)
    assert bool((gradient > 0).all())
    if metric == "flops":  # of convolutions; what is expected is a product of expected widths
        p = chance(2.5)
        expected = 2 * 9 * 3 * (4 * p) * 64 + 2 * 9 * (4 * p) * (6 * p) * 16 + 2 * (6 * p) * 2 * 16
        full = 2 * 9 * 3 * 4 * 64 + 2 * 9 * 4 * 6 * 16 + 2 * 6 * 2 * 16
        assert number(found) == pytest.approx(1e-5 * 1e10 * expected * 384 / full, rel=0.02)  # some may not be needed


def train(net: Wrapped, method: Method, optimizer: torch.optim.Optimizer, steps: int) -> None:
    x = torch.randn(32, *EXAMPLE.shape[1:], dtype=torch.float64)
    method.advance(0.0)
    for step in range(steps):
        loss, penalty = net.train()(x).square().mean(), method.penalty()
        optimizer.zero_grad()
        (loss if penalty is None else loss + penalty).backward()
        gradients = [p.grad for p in net.parameters() if p.grad is not None and p is not net.bank.log_alpha]
        assert all(float(gradient.norm()) < 100 for gradient in gradients), "the budget's part reaches gates only"
        optimizer.step()
        method.advance((step + 1) / steps)


VARIANTS: list[dict[str, Any]] = [{}, {"tolerance": 0.0}, {"ceiling": 50, "strength": 1e-2}, {"start": "open"}]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_trains_to_its_budget(kind: Any, options: dict[str, Any]) -> None:
    net = wrapped()
    method = make_method("bar-paper", net, options)
    groups = method.parameter_groups(300)
    assert [len(group["params"]) for group in groups] == [6, 1] and groups[1]["lr"] == 0.01
    train(net, method, kind(groups, lr=1e-3, weight_decay=1e-2), 300)
    assert bool(torch.isfinite(net.bank.log_alpha).all())
    alive = net.bank.opened().clone()
    fits = net.cost().volume <= 192
    method.decide()
    assert net.cost().volume <= 192
    slim = fxprune.export(net.eval())
    assert slim.report.error <= 1e-9
    if fits:  # nobody comes back but those that must live
        assert int((net.bank.opened() & ~alive).sum()) <= 2


def test_fill_spends_what_is_left() -> None:
    for fill, least in ((False, 0), (True, 177)):
        net = wrapped()
        method = make_method("bar-paper", net, {"fill": fill})
        with torch.no_grad():
            net.bank.log_alpha.fill_(CLOSED_AT - 0.1)
            net.bank.log_alpha += torch.linspace(0, 0.01, len(net.bank.log_alpha), dtype=torch.float64)
        method.decide()
        assert least <= net.cost().volume <= 192


def test_rate_of_the_gates() -> None:
    net = wrapped()
    method = make_method("bar-paper", net, {"rate": 0.3})
    assert method.parameter_groups(100)[1] | {"params": []} == {"params": [], "lr": 0.3, "weight_decay": 0.0}
    assert make_method("bar-paper", wrapped(), {}).parameter_groups(50_000)[1]["lr"] == 25 / 50_000


def test_a_checkpoint_holds_the_gates_part_of_the_optimizer(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "method": "bar-paper", "method_options": {"rate": 0.2, "ceiling": 50, "strength": 1e-3}, "epochs": (2, 0, 0)
    }  # fmt: skip
    whole = small_run(tmp_path / "whole", teacher=None, loss=crashing(-1, crash), **options)
    with pytest.raises(Crash):
        small_run(tmp_path / "cut", teacher=None, loss=crashing(14, crash), checkpoint_minutes=0, **options)
    again = small_run(tmp_path / "cut", teacher=None, loss=crashing(-1, crash), **options)
    assert_same(weights(whole.slim), weights(again.slim))
    assert whole.report["widths"] == again.report["widths"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"strength": 0}, "strength=0 is not a number above 0"),
        ({"strength": True}, "strength=True"),
        ({"rate": -1}, "rate=-1"),
        ({"ceiling": math.inf}, "ceiling=inf"),
        ({"tolerance": -0.1}, "tolerance=-0.1 is not a number from 0 to 1"),
        ({"tolerance": math.nan}, "tolerance=nan"),
        ({"hardness": 0}, r"hardness=0 is not a number from 0.1 to 100"),
        ({"start": "closed"}, "start='closed' is unknown"),
        ({"fill": 1}, "fill=1 is neither True nor False"),
        ({"lambda": 1}, "lambda"),
    ],
)
def test_wrong_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make_method("bar-paper", wrapped(), options)
