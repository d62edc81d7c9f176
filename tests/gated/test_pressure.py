"""Training follows the sliding budget, whatever the optimizer."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import fxprune
from fxprune.errors import OptionError
from fxprune.gated.bank import CLOSED_AT
from fxprune.gated.wrapped import Wrapped
from tests.gated.two_stages import Net, X, Y, wrapped_net

Optimizer = Callable[[Wrapped], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizer] = {
    "adam": lambda net: torch.optim.Adam(net.parameter_groups(lr=1e-3, weight_decay=5e-4)),
    "sgd": lambda net: torch.optim.SGD(net.parameter_groups(lr=0.05, weight_decay=5e-4), momentum=0.9),
    "decayed gates": lambda net: torch.optim.SGD(net.parameters(), lr=0.05, weight_decay=1e-2),
    "no gates": lambda net: torch.optim.Adam([p for p in net.parameters() if p is not net.bank.log_alpha], lr=1e-3),
}


def train(
    net: Wrapped, optimizer: torch.optim.Optimizer, steps: int = 160, factor: float = 1.0,
    run: Callable[[torch.Tensor], torch.Tensor] | None = None, after: Callable[[], None] = lambda: None,
) -> list[Any]:  # fmt: skip
    """What it cost and what it was allowed to cost, at every twentieth of the steps."""
    seen, run = [], net if run is None else run
    for step in range(steps):
        net.progress = step / steps
        part = slice(32 * step % 256, 32 * step % 256 + 32)
        loss = F.cross_entropy(run(X[part]), Y[part]) + net.budget_loss()
        optimizer.zero_grad()
        (factor * loss).backward()
        if factor != 1:
            for parameter in net.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(factor)
        optimizer.step()
        after()
        if step % (steps // 20) == 0:
            seen.append((net.cost(), net.sliding_budget()))
    net.progress = 1.0
    return seen


def check(net: Wrapped, seen: list[Any]) -> None:
    full = net.full_cost()
    for name, fraction in net.target.limits:
        largest = max(getattr(full, name) * call.area / full.volume if name != "volume" else call.area
                      for layer in net.analysis.layers for call in layer.calls)  # fmt: skip
        for cost, budget in seen:
            assert cost[name] <= 1.1 * budget[name] + largest
        assert net.cost()[name] <= 1.1 * fraction * full[name] + largest


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_the_budget_is_followed(name: str) -> None:
    net = wrapped_net(1 / 4)
    check(net, train(net, OPTIMIZERS[name](net)))
    assert net.cost().volume >= 0.8 * net.full_cost().volume / 4
    assert bool(torch.isfinite(net.bank.log_alpha).all())


def test_the_cost_is_counted_again_where_the_mask_changes() -> None:
    net = wrapped_net(1 / 4)
    for closed in (0, 1, 1, 5, 0):
        gates = net.bank.log_alpha.detach().clone().double().numpy()
        gates[:closed] = -3.0
        (cost,) = net.pressure._cost(gates)
        assert cost == net.analysis.costs.exact(net.analysis.guards.hold(gates > CLOSED_AT, gates)).volume


def test_noise_per_sample() -> None:
    net = wrapped_net(1 / 4, noise="sample")
    check(net, train(net, OPTIMIZERS["adam"](net)))
    assert net.cost().volume >= 0.7 * net.full_cost().volume / 4


def test_under_autocast() -> None:
    net = wrapped_net(1 / 4)

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return net(x).float()

    check(net, train(net, OPTIMIZERS["adam"](net), run=run))
    assert net.bank.log_alpha.dtype == torch.float32


def test_compiled_gates_move_as_others_do() -> None:
    nets = [wrapped_net(), wrapped_net()]
    torch._dynamo.reset()
    for net, run in zip(nets, (nets[0], torch.compile(nets[1], backend="aot_eager", fullgraph=True)), strict=True):
        torch.manual_seed(1)
        train(net, OPTIMIZERS["sgd"](net), steps=20, run=run)
    torch.testing.assert_close(nets[0].bank.log_alpha, nets[1].bank.log_alpha)


def test_a_moving_average_is_exported() -> None:
    net = wrapped_net(1 / 4)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    train(net, OPTIMIZERS["adam"](net), after=lambda: average.update_parameters(net))
    followed = average.module
    assert isinstance(followed, Wrapped) and not torch.equal(followed.bank.log_alpha, net.bank.log_alpha)
    slim = fxprune.export(followed.harden().eval())
    assert slim.report.after["volume"] <= net.full_cost().volume / 4
    torch.testing.assert_close(slim(X[:4]), followed(X[:4]))


@pytest.mark.parametrize("schedule", ["linear", "exponential"])
def test_other_schedules(schedule: str) -> None:
    net = wrapped_net(1 / 3, schedule=schedule)
    seen = train(net, OPTIMIZERS["adam"](net))
    assert net.cost().volume <= 1.1 * net.full_cost().volume / 3
    assert seen[10][1]["volume"] < wrapped_net().full_cost().volume


@pytest.mark.parametrize("metric", ["flops", "params"])
def test_other_metrics(metric: str) -> None:
    net = wrapped_net(1 / 4, metric=metric)
    train(net, OPTIMIZERS["adam"](net))
    assert 0.6 <= net.cost()[metric] / net.full_cost()[metric] * 4 <= 1.1


def test_several_budgets_at_once() -> None:
    net = wrapped_net({"volume": 1 / 2, "flops": 1 / 6})
    train(net, OPTIMIZERS["adam"](net))
    assert net.cost().volume <= 1.1 * net.full_cost().volume / 2
    assert net.cost().flops <= 1.15 * net.full_cost().flops / 6


def test_scaled_losses_make_no_difference() -> None:
    """As a gradient scaler does it."""
    plain, scaled = wrapped_net(), wrapped_net()
    for net, factor in ((plain, 1.0), (scaled, 1024.0)):
        torch.manual_seed(1)
        train(net, OPTIMIZERS["sgd"](net), steps=40, factor=factor)
    torch.testing.assert_close(plain.bank.log_alpha, scaled.bank.log_alpha)


def test_micro_batches_add_up() -> None:
    """Two halves of a batch, without anything random or anything that looks at the whole batch."""
    moved = []
    for count in (1, 2):
        net = wrapped_net().eval()
        with torch.no_grad():
            net.bank.log_alpha.fill_(0.5)
            net.pressure.place.fill_(0.5)
        for step in range(4):
            net.progress = step / 40
            for part in X[:64].chunk(count):
                (F.cross_entropy(net(part), Y[: len(part)] * 0) / count + net.budget_loss() / count).backward()
        net.progress = 4 / 40
        moved.append(net.bank.log_alpha.detach().clone())
    torch.testing.assert_close(moved[0], moved[1])


def test_state_dict_resumes_exactly() -> None:
    net = wrapped_net()
    optimizer = OPTIMIZERS["adam"](net)
    for step in range(30):
        _one(net, optimizer, step)
    other = wrapped_net()
    other.load_state_dict(copy.deepcopy(net.state_dict()))
    resumed = OPTIMIZERS["adam"](other)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, held in ((net, optimizer), (other, resumed)):
        torch.manual_seed(5)
        for step in range(30, 40):
            _one(each, held, step)
    assert torch.equal(net.bank.log_alpha, other.bank.log_alpha)


def _one(net: Wrapped, optimizer: torch.optim.Optimizer, step: int) -> None:
    net.progress = step / 100
    loss = F.cross_entropy(net(X[:32]), Y[:32]) + net.budget_loss()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def test_nothing_presses_on_a_hardened_net() -> None:
    net = wrapped_net().harden()
    net.progress = 0.5
    assert float(net.budget_loss().detach()) == 0
    before = net.masks().copy()
    train(net, OPTIMIZERS["adam"](net), steps=20)
    assert (net.masks() == before).all()


def test_copies_keep_noise_and_schedule() -> None:
    net = wrapped_net(noise="sample", schedule="linear")
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert (made.bank.noise, made.pressure.schedule) == ("sample", "linear")


def test_a_parameter_that_takes_the_gates_place_is_watched() -> None:
    net = wrapped_net()
    net.load_state_dict(net.state_dict(), assign=True)
    check(net, train(net, OPTIMIZERS["adam"](net)))


def test_optimizers_leave_the_gates_alone() -> None:
    net = wrapped_net()
    optimizer = torch.optim.SGD(net.parameter_groups(lr=1.0))
    net.progress = 0.0
    before = net.bank.log_alpha.detach().clone()
    for _ in range(3):
        loss = F.cross_entropy(net(X[:32]), Y[:32]) + net.budget_loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert torch.equal(net.bank.log_alpha, before)
    net.progress = 0.1
    assert not torch.equal(net.bank.log_alpha, before)


def test_a_run_of_few_steps_does_not_collapse() -> None:
    net = wrapped_net(1 / 4)
    seen = train(net, OPTIMIZERS["adam"](net), steps=40)
    check(net, seen)
    assert all(cost.volume >= 0.6 * budget["volume"] for cost, budget in seen)


def test_mistakes() -> None:
    net = wrapped_net()
    for name in ("noise", "schedule"):
        with pytest.raises(OptionError, match=f"{name}='loud' is unknown\n.*fix: write one of '"):
            wrapped_net(**{name: "loud"})
    with pytest.raises(OptionError, match=r"how far training is"):
        net.budget_loss()
    for value in (-0.1, 1.5, float("nan")):
        with pytest.raises(OptionError, match="between 0 and 1"):
            net.progress = value
    for value in (None, "0.5"):
        with pytest.raises(OptionError, match="between 0 and 1"):
            net.progress = value
    frozen = wrapped_net().requires_grad_(False)
    frozen.progress = 0.0
    with pytest.raises(OptionError, match=r"gates are frozen.*\n.*log_alpha.requires_grad_"):
        frozen.budget_loss()
    small = wrapped_net(1e-6)
    small.progress = 0.0
    with pytest.raises(OptionError, match="the budget cannot be met"):
        small.budget_loss()
    unsized = fxprune.wrap(Net(), 1 / 4).train()
    unsized.progress = 0.0
    with pytest.raises(OptionError, match="run one batch through the network"):
        unsized.budget_loss()
