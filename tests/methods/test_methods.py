"""Every method: on budget, exact after export, resumed bit for bit; and what each of them promises by itself."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxprune
from fxprune.errors import OptionError
from fxprune.gated.wrapped import Wrapped
from fxprune.methods import METHODS, Method, make_method, register
from fxprune.methods.streams import find_streams
from tests.methods.odd_nets import Odd, randomise
from tests.train.interrupted import Crash, assert_same, crash, crashing, weights
from tests.train.small_run import resnet8, small_run

ALL = ("bar", "bar-paper", "lzr", "ib", "morphnet", "random", "wm", "vq", "id", "reconstruction")
EXAMPLE = torch.zeros(2, 3, 16, 16)


class Mobile(nn.Module):
    """Grouped, depthwise and transposed convolutions, a squeeze-excite branch, a concat: whatever is not plain."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.grouped = nn.Conv2d(8, 12, 3, padding=1, groups=2)
        self.squeeze, self.excite = nn.Conv2d(12, 4, 1), nn.Conv2d(4, 12, 1)
        self.up = nn.ConvTranspose2d(12, 6, 2, stride=2)
        self.tail = nn.Conv2d(6 + 6, 10, 1)
        self.fc = nn.Linear(10, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.grouped(self.deep(torch.relu(self.stem(x)))))
        x = x * torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        up = torch.relu(self.up(x))
        out: torch.Tensor = self.fc(self.tail(torch.cat([up, up.flip(3)], 1)).amax((2, 3)))
        return out


def train_a_little(net: Wrapped, method: Method, steps: int = 12) -> None:
    weights, _ = net.parameter_groups()
    optimizer = torch.optim.SGD([weights], lr=0.01)
    method.look([torch.randn(64, *EXAMPLE.shape[1:])])
    method.advance(0.0)
    for step in range(steps):
        x = torch.randn(4, *EXAMPLE.shape[1:])
        loss = net.train()(x).square().mean()
        penalty = method.penalty()
        optimizer.zero_grad()
        (loss if penalty is None else loss + penalty).backward()
        optimizer.step()
        method.advance((step + 1) / steps)


@pytest.mark.parametrize("make", [resnet8, Mobile], ids=["residual", "mobile"])
@pytest.mark.parametrize("metric", ["volume", "flops"])
@pytest.mark.parametrize("name", ALL)
def test_on_budget_and_exact(name: str, metric: str, make: Any) -> None:
    torch.manual_seed(0)
    model = make(width=8) if make is resnet8 else make()
    net = fxprune.wrap(model, 1 / 4, metric=metric, example_inputs=EXAMPLE)
    method = make_method(name, net, {})
    train_a_little(net, method)
    method.decide()
    slim = fxprune.export(net.eval())
    report: Any = slim.report
    assert report.error <= 1e-9
    assert 0.8 <= report.after[metric] / (report.before[metric] / 4) <= 1


@pytest.mark.parametrize("name", ALL)
def test_resumed_run_is_the_same(name: str, tmp_path: Path) -> None:
    """Cut off while it prunes; what comes after that is the same for all methods (tests/train)."""
    options: dict[str, Any] = {"method": name, "teacher": None, "epochs": (2, 0, 0)}
    whole = small_run(tmp_path / "whole", loss=crashing(-1, crash), **options)
    with pytest.raises(Crash):
        small_run(tmp_path / "cut", loss=crashing(14, crash), checkpoint_minutes=0, **options)
    again = small_run(tmp_path / "cut", loss=crashing(-1, crash), **options)
    assert_same(weights(whole.slim), weights(again.slim))
    assert whole.report["widths"] == again.report["widths"]


def test_streams_are_scaled_together() -> None:
    net = fxprune.wrap(resnet8(width=8), 1 / 4, example_inputs=EXAMPLE)
    streams = find_streams(net)
    assert [[writer.unit.name for writer in stream.writers] for stream in streams] == [
        ["conv", "stage1.conv2"], ["stage1.conv1"], ["stage2.conv1"], ["stage2.conv2", "stage2.shortcut.0"],
        ["stage3.conv1"], ["stage3.conv2", "stage3.shortcut.0"],
    ]  # fmt: skip
    make_method("wm", net, {}).decide()
    masks = {name: gate.mask.tolist() for name, gate in net.gates.items()}
    assert masks["conv"] == masks["stage1.conv2"] and sum(masks["conv"]) == 2
    assert masks["stage3.conv2"] == masks["stage3.shortcut.0"] and sum(masks["stage3.conv2"]) == 8


def test_weight_magnitude_keeps_the_largest() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    with torch.no_grad():
        for row, size in zip(net[0].weight, (3.0, 1.0, 4.0, 2.0), strict=True):  # type: ignore[arg-type]
            row.fill_(size)
    wrapped = fxprune.wrap(net, (2 + 2) / 6, example_inputs=torch.zeros(1, 3, 8, 8))
    make_method("wm", wrapped, {}).decide()
    assert wrapped.gates["0"].mask.tolist() == [True, False, True, False]


def test_halving_cuts_in_rounds_and_revives_nobody() -> None:
    net = fxprune.wrap(resnet8(width=8), 1 / 8, example_inputs=EXAMPLE)
    method, seen = make_method("random", net, {}), []
    for progress in (0.0, 0.2, 0.34, 0.5, 0.67, 1.0):
        method.advance(progress)
        seen.append(net.bank.opened().clone())
    shares = [net.analysis.costs.exact(mask.numpy()).volume / net.full_cost().volume for mask in seen]
    assert [round(share, 2) for share in shares] == [0.5, 0.5, 0.25, 0.25, 0.12, 0.12]
    assert not any(bool((later & ~earlier).any()) for earlier, later in itertools.pairwise(seen))


def test_stronger_lzr_and_ib_close_more() -> None:
    def share(name: str, strength: float) -> float:
        torch.manual_seed(0)
        net = fxprune.wrap(resnet8(width=8), 1 / 4, example_inputs=EXAMPLE)
        train_a_little(net, make_method(name, net, {"strength": strength}), steps=30)
        return float(net.cost().volume) / net.full_cost().volume

    for name in ("lzr", "ib"):
        weak, strong = share(name, 1e-6), share(name, 1e3)
        assert strong < weak and strong < 0.5, (name, weak, strong)


def test_gaussian_gates_survive_copies_and_fold_into_the_slim_net() -> None:
    torch.manual_seed(0)
    net = fxprune.wrap(randomise(resnet8(width=8)).double(), 1 / 2, example_inputs=EXAMPLE.double()).eval()
    make_method("ib", net, {})
    law: Any = net.bank.law
    with torch.no_grad():
        law.mu.uniform_(-2, 2)
        law.log_sigma.uniform_(-3, 3)
    twin = copy.deepcopy(net).harden()
    x = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    expected = net.harden()(x)
    assert torch.equal(expected, twin(x))
    assert (fxprune.export(net)(x) - expected).abs().max() <= 1e-9 * expected.abs().max()


def test_morphnet_scales_the_widths_that_are_left() -> None:
    torch.manual_seed(0)
    model = resnet8(width=8)
    net = fxprune.wrap(model, 1 / 4, example_inputs=EXAMPLE)
    method = make_method("morphnet", net, {})
    with torch.no_grad():
        net.get_submodule("stage3.bn1").weight[4:] = 0.01  # type: ignore[index]
    method.decide()
    widths = {name: int(gate.mask.sum()) for name, gate in net.gates.items()}
    assert widths["stage3.conv1"] <= 2  # a quarter of what is left, not of what was
    assert widths["stage2.conv1"] >= 4


def test_method_of_a_users_own() -> None:
    @register("last")
    class Last(Method):
        def decide(self) -> None:
            self.net.harden({name: torch.arange(len(gate)) / len(gate) for name, gate in self.net.gates.items()})

    try:
        found = small_run(None, method="last", teacher=None)
        assert found.report["cost"]["volume"]["after"] <= found.report["cost"]["volume"]["before"] / 2
    finally:
        del METHODS["last"]


def test_a_mistake_inside_of_a_users_own_method_is_told_as_such() -> None:
    @register("broken")
    class Broken(Method):
        def __init__(self, net: Wrapped) -> None:
            super().__init__(net)
            self.first = len(3)  # type: ignore[arg-type]

    try:
        with pytest.raises(TypeError, match="has no len"):
            small_run(None, method="broken")
    finally:
        del METHODS["broken"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "wn"}, "wm"),
        ({"method": "lzr", "method_options": {"strenght": 1}}, "strenght"),
        ({"method": "lzr", "method_options": {"strength": -1}}, "strength=-1"),
        ({"method": "lzr", "method_options": 3}, "method_options=3"),
    ],
)
def test_wrong_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        small_run(None, teacher=None, **options)


def test_search_finds_a_strength_that_ends_near_the_budget(tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "lzr", "method_options": {"strength": "search"}, "teacher": None}
    found = small_run(tmp_path / "run", epochs=(3, 0, 0), **options)
    tried = [path for path in (tmp_path / "run-search").iterdir() if (path / "report.json").is_file()]
    assert 1 <= len(tried) <= 6
    assert f"{found.report['settings']['method_options']['strength']:.4g}" in {path.name for path in tried}
    again = small_run(tmp_path / "run", epochs=(3, 0, 0), **options)  # everything is there already
    assert again.report["seconds"] == pytest.approx(found.report["seconds"], abs=60)
    assert again.report["widths"] == found.report["widths"]


def test_scores_count_beside_a_channel_that_is_spread_over_all() -> None:
    torch.manual_seed(0)
    model = Odd("attention")
    with torch.no_grad():
        model.a.weight.copy_(model.a.weight * torch.tensor([0.1, 1, 0.2, 2, 0.1, 3, 0.2, 4]).reshape(-1, 1, 1, 1))
    net = fxprune.wrap(model, (4 + 1 + 4) / 13, example_inputs=torch.zeros(1, 3, 8, 8))
    make_method("wm", net, {}).decide()
    assert net.gates["a"].mask.tolist() == [False, True] * 4


def test_zero_filters_and_scales_are_not_the_best() -> None:
    torch.manual_seed(0)
    model = resnet8(width=8)
    nn.init.zeros_(model.stage1.bn2.weight)
    nn.init.zeros_(model.stage1.conv2.weight)
    with torch.no_grad():
        model.conv.weight[:4] *= 0.01
    net = fxprune.wrap(model, 1 / 2, example_inputs=EXAMPLE)
    make_method("wm", net, {}).decide()
    assert net.gates["conv"].mask.tolist() == [False] * 4 + [True] * 4
    net = fxprune.wrap(model, 1 / 2, example_inputs=EXAMPLE)
    method = make_method("morphnet", net, {})
    before = method.penalty()
    with torch.no_grad():
        net.get_submodule("stage1.bn2").weight += 1e-3
    after = method.penalty()
    assert before is not None and after is not None and bool(after < 1.1 * before)


def test_open_gaussian_gates_keep_their_values() -> None:
    net = fxprune.wrap(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)), 1.0, example_inputs=EXAMPLE)
    make_method("ib", net, {})
    law: Any = net.bank.law
    with torch.no_grad():
        law.mu.copy_(torch.tensor([-0.05, 0.02, 1.0, -0.3]))
        law.log_sigma.copy_(torch.tensor([-9.0, -9.0, -9.0, 5.0]))
    net.harden()
    assert net.gate_values()["0"].tolist() == pytest.approx([-0.05, 0.02, 1.0, -0.1])
    other = fxprune.wrap(net.unwrap(), 1.0, example_inputs=EXAMPLE)
    other.load_state_dict(net.state_dict())
    assert torch.equal(other.eval()(EXAMPLE), net.eval()(EXAMPLE))


@pytest.mark.parametrize("name", ALL)
def test_misuse_of_a_method_is_told(name: str) -> None:
    net = fxprune.wrap(resnet8(width=4), 1 / 2, example_inputs=EXAMPLE)
    method = make_method(name, net, {})
    method.look([torch.randn(64, *EXAMPLE.shape[1:])])
    for wrong in (1.5, -1, float("nan"), "x", None):
        with pytest.raises(OptionError, match="progress"):
            method.advance(wrong)  # type: ignore[arg-type]
    method.decide()
    assert method.penalty() is None or float(method.penalty() or 0) == 0
    with pytest.raises(OptionError, match="fixed already"):
        make_method(name, net, {})
    with pytest.raises(OptionError, match="takes a wrapped network"):
        make_method(name, resnet8(width=4), {})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "wm", "method_options": {"strength": "search"}}, "has no strength to search"),
        ({"method": "morphnet", "method_options": {"strength": "search"}}, "has no strength to search"),
        ({"method": ["lzr"], "method_options": {"strength": "search"}}, "method"),
        ({"method": "lzr", "method_options": {"strength": "search"}, "teacher": "train"}, "teacher"),
        ({"method": "random", "method_options": {"seed": "a"}}, "seed='a'"),
    ],
)
def test_wrong_searches(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        small_run(None, **{"teacher": None, **options})


def test_reconstruction_cuts_at_once_and_fits_what_is_left() -> None:
    torch.manual_seed(0)
    x = torch.randn(128, *EXAMPLE.shape[1:])
    missed = {}
    for name in ("wm", "reconstruction"):
        model = resnet8(width=8).eval()
        net = fxprune.wrap(model, 1 / 2, example_inputs=EXAMPLE)
        method = make_method(name, net, {})
        if name == "reconstruction":
            with pytest.raises(OptionError, match="has seen no samples"):
                method.advance(0.0)
        method.look(list(x.split(32)))
        method.advance(0.0)
        assert net.hardened
        masks = net.masks()
        method.advance(0.5)
        method.decide()
        assert (net.masks() == masks).all()
        with torch.no_grad():
            missed[name] = float((net.eval()(x) - model(x)).square().mean())
    assert missed["reconstruction"] < 0.5 * missed["wm"]
