"""Time as a budget. What is asserted here holds however busy the machine is; the figures are in benchmarks/."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fxprune
from examples.models import resnet8
from fxprune.cost.latency import Latency, Line, Meeting, Table, not_negative
from fxprune.errors import OptionError
from fxprune.gated.wrapped import Wrapped, use_latency
from fxprune.latency import measure as layers
from fxprune.latency import process
from fxprune.latency.cache import CACHE, as_json, from_json

X = torch.zeros(2, 3, 16, 16)


def small() -> nn.Module:
    torch.manual_seed(0)
    return resnet8(width=8).eval()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of somebody who measured the small net before."""
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE, str(folder))
        fxprune.wrap(small(), 1 / 2, metric="latency", example_inputs=X)
    return folder


@pytest.fixture
def wrapped(measured: Path, cache: Path) -> Wrapped:
    shutil.copytree(measured, cache)
    return fxprune.wrap(small(), 1 / 2, metric="latency", example_inputs=X)


def some_latency() -> Latency:
    rng = np.random.default_rng(0)
    times = np.pad(np.sort(np.sort(rng.random((3, 2)) * 100, 0), 1), ((1, 0), (1, 0)))
    table = Table(np.arange(2, 18), np.arange(18, 24), np.array([0.0, 4, 8, 16]), np.array([0.0, 2, 6]), times)
    joined = Meeting(np.arange(2, 6), np.arange(6, 10), np.arange(10, 14), 5.0, 2.0, 3.0)
    return Latency((table,), (Line(np.arange(2, 18), 7.0, 0.5),), (joined,), scale=1.25, rest=11.0)


def test_the_exact_time_by_hand() -> None:
    found, present = some_latency(), np.zeros((24, 1), dtype=bool)
    assert found.exact(present).tolist() == [1.25 * 11]
    present[2:7], present[18:20], present[10:15] = True, True, True  # 10 rows, 2 columns
    table = found.tables[0]
    looked_up = (3 * table.times[2, 1] + table.times[3, 1]) / 4
    joined = 5 + 2 * 1 + 3 * 4 * 0  # one channel meets four, and nothing is new
    expected = 1.25 * (11 + looked_up + 7 + 0.5 * 10 + joined)
    assert found.exact(present)[0] == pytest.approx(expected)


def test_expected_times_are_differentiable_and_agree_with_exact_ones() -> None:
    found = some_latency()
    present = np.zeros((24, 1), dtype=bool)
    present[2:10], present[10:14], present[18:24] = True, True, True
    p = torch.from_numpy(present[:, 0]).double().requires_grad_()
    time = found.expected(p)
    assert float(time.detach()) == pytest.approx(found.exact(present)[0])
    (slope,) = torch.autograd.grad(time, p)
    assert (slope[2:24] >= 0).all() and slope[2:18].sum() > 0


def test_two_nets_take_what_they_were_seen_to_take() -> None:
    found, present = some_latency(), np.ones((24, 2), dtype=bool)
    present[5:18, 0] = False
    for times in ([300.0, 1000.0], [900.0, 1000.0]):  # corrected again and again
        found.fit(present, np.array(times))
        np.testing.assert_allclose(found.exact(present), times)
    found.fit(present, np.array([2000.0, 1000.0]))  # a net that is slower than all of it: only the scale is kept
    assert found.exact(present)[1] == pytest.approx(1000) and found.exact(present)[0] < 1000


@pytest.mark.parametrize("bend", [0.6, 1.0, 1.5])
def test_the_budget_is_used_however_wrong_the_model_is(
    wrapped: Wrapped, monkeypatch: pytest.MonkeyPatch, bend: float
) -> None:
    """A machine on which nets take another time than the model believes."""
    lines = tuple(Line(mixer.ids.reshape(-1), 20.0, 10.0) for mixer in wrapped.analysis.channels.mixers)
    model = Latency(lines=lines, rest=50.0)
    use_latency(wrapped, model)

    def seen(nets: list[np.ndarray], *_: object) -> list[list[float]]:
        own, full = model.exact(np.stack(nets, 1))
        return [[1e-9 * full * (own / full) ** bend], [1e-9 * full]]

    monkeypatch.setattr("fxprune.latency.budget.compiled", lambda _, present: present)
    monkeypatch.setattr("fxprune.latency.budget.example_inputs", lambda *_: None)
    monkeypatch.setattr("fxprune.latency.budget.own_process", lambda: nullcontext(seen))
    wrapped.harden()
    everyone = np.ones(wrapped.analysis.variables, dtype=bool)
    used = wrapped.cost().latency / wrapped.full_cost().latency
    present = [wrapped.analysis.costs.logic.present(mask[:, None])[:, 0] for mask in (wrapped.masks(), everyone)]
    assert (own := seen(present))[0][0] / own[1][0] == pytest.approx(used, rel=1e-3)
    assert 0.9 / 2 <= used <= 1 / 2
    assert pickle.loads(pickle.dumps(wrapped)).cost() == wrapped.cost()


def test_a_machine_on_which_time_jumps(wrapped: Wrapped, monkeypatch: pytest.MonkeyPatch) -> None:
    """From some width on everything takes twice as long: the budget is kept, by the largest net below the jump."""
    model = Latency(lines=tuple(Line(mixer.ids.reshape(-1), 0.0, 10.0) for mixer in wrapped.analysis.channels.mixers))
    use_latency(wrapped, model)
    tried: list[float] = []

    def seen(nets: list[np.ndarray], *_: object) -> list[list[float]]:
        own, full = model.exact(np.stack(nets, 1))
        tried.append(own / full)
        return [[1e-9 * own * (2 if own > 0.4 * full else 1)], [1e-9 * full]]

    monkeypatch.setattr("fxprune.latency.budget.compiled", lambda _, present: present)
    monkeypatch.setattr("fxprune.latency.budget.example_inputs", lambda *_: None)
    monkeypatch.setattr("fxprune.latency.budget.own_process", lambda: nullcontext(seen))
    wrapped.harden()
    used = wrapped.cost().latency / wrapped.full_cost().latency
    assert 0.3 < used <= 0.4 and used == pytest.approx(max(share for share in tried if share <= 0.4), rel=1e-3)


def test_a_net_that_was_lucky_once(wrapped: Wrapped, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which slim nets are faster than in others does not decide alone."""
    model = Latency(lines=tuple(Line(mixer.ids.reshape(-1), 0.0, 10.0) for mixer in wrapped.analysis.channels.mixers))
    use_latency(wrapped, model)

    def in_process(factor: float) -> Callable[..., list[list[float]]]:
        def seen(nets: list[np.ndarray], *_: object) -> list[list[float]]:
            own, full = model.exact(np.stack(nets, 1))
            return [[1e-9 * factor * own], [1e-9 * full]]

        return seen

    processes = iter([nullcontext(in_process(0.92)), nullcontext(in_process(1.0))])
    monkeypatch.setattr("fxprune.latency.budget.compiled", lambda _, present: present)
    monkeypatch.setattr("fxprune.latency.budget.example_inputs", lambda *_: None)
    monkeypatch.setattr("fxprune.latency.budget.own_process", lambda: next(processes))
    wrapped.harden()
    present = wrapped.analysis.costs.logic.present(wrapped.masks()[:, None])
    own, full = model.exact(np.concatenate([present, np.ones_like(present)], 1))
    assert 0.9 / 2 <= own / full <= 1 / 2


def test_a_budget_of_latency_is_met_by_its_own_measure(wrapped: Wrapped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fxprune.latency.budget.own_process", process.own_process)
    full = wrapped.full_cost().latency
    assert isinstance(full, int) and full > 0
    wrapped.harden()  # measures the unpruned net again, which another process may have slowed down
    assert wrapped.cost().latency <= wrapped.full_cost().latency / 2
    report = fxprune.export(wrapped).report
    assert report.error <= 1e-9 and report.after["latency"] <= report.before["latency"] / 2


def test_training_feels_the_time(wrapped: Wrapped) -> None:
    for step in range(40):
        wrapped.progress = step / 40
        (wrapped.train()(torch.randn(2, 3, 16, 16)).square().mean() + wrapped.budget_loss()).backward()
    wrapped.progress = 1.0
    assert wrapped.cost().latency < 0.75 * wrapped.full_cost().latency


def test_a_network_is_measured_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fxprune.wrap(small(), 1 / 2, metric="latency", example_inputs=X)
    (file,) = cache.iterdir()
    monkeypatch.setattr("fxprune.latency.budget.measure", lambda *_: pytest.fail("measured again"))
    again = fxprune.wrap(small(), 1 / 4, metric="latency", example_inputs=X)
    assert again.full_cost() == first.full_cost()
    monkeypatch.undo()
    monkeypatch.setenv("FXPRUNE_CACHE", str(cache))
    file.write_text("{")  # a damaged file is measured anew
    assert fxprune.wrap(small(), 1 / 2, metric="latency", example_inputs=X).full_cost().latency > 0
    assert from_json(file.read_text()).tables


def test_copies_and_pickles_count_alike(wrapped: Wrapped) -> None:
    for other in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert other.full_cost() == wrapped.full_cost()


def test_a_copy_learns_for_itself_what_it_takes(wrapped: Wrapped) -> None:
    before = wrapped.full_cost()
    use_latency(copy.deepcopy(wrapped), some_latency())
    assert wrapped.full_cost() == before


@pytest.mark.parametrize("change", [{"2": nn.GELU()}, {"3": nn.Conv2d(4, 3, 3, padding=2, dilation=2)}])
def test_other_layers_are_another_network(cache: Path, change: dict[str, nn.Module]) -> None:
    for changes in ({}, change):
        layers = [nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1)]
        net = nn.Sequential(*(changes.get(str(number), layer) for number, layer in enumerate(layers)))
        fxprune.wrap(net, 0.9, metric="latency", example_inputs=X)
    assert len(list(cache.iterdir())) == 2


def test_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FXPRUNE_CACHE", str(tmp_path / "file"))
    assert fxprune.wrap(small(), 1 / 2, metric="latency", example_inputs=X).full_cost().latency > 0


def test_a_network_without_gates() -> None:
    wrapped = fxprune.wrap(small(), 1 / 2, metric="latency", example_inputs=X, ignore=["*"])
    with pytest.raises(OptionError, match="the budget cannot be met"):
        wrapped.harden()


def test_several_processes_would_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    with pytest.raises(OptionError, match="each of several processes"):
        fxprune.wrap(small(), 1 / 2, metric="latency", example_inputs=X)


def test_a_resumed_run_knows_what_its_net_was_measured_to_take(tmp_path: Path) -> None:
    data = [(torch.randn(2, 3, 16, 16), torch.tensor([0, 1])) for _ in range(2)]

    def run(**changes: Any) -> fxprune.Pruned:
        return fxprune.prune(
            small(), data, None, budget=1 / 2, metric="latency", epochs=(1, 1, 0), teacher=None, run=tmp_path / "run",
            progress=False, **changes,
        )  # fmt: skip

    first = run()
    shutil.rmtree(tmp_path / "run" / "slim")
    assert run().report["cost"] == first.report["cost"]


def test_what_is_kept_is_what_was_measured() -> None:
    found = some_latency()
    again = from_json(as_json(found, {"cores": 2}))
    present = np.random.default_rng(1).random((24, 50)) < 0.5
    np.testing.assert_array_equal(again.exact(present), found.exact(present))


def test_without_an_example_there_is_no_time() -> None:
    with pytest.raises(OptionError, match="needs to know the inputs"):
        fxprune.wrap(small(), 1 / 2, metric="latency")


def test_several_budgets_at_once(measured: Path, cache: Path) -> None:
    shutil.copytree(measured, cache)
    wrapped = fxprune.wrap(small(), {"latency": 0.8, "volume": 1 / 4}, example_inputs=X).harden()
    full, cost = wrapped.full_cost(), wrapped.cost()
    assert cost.volume <= full.volume / 4 and cost.latency <= 0.8 * full.latency


def test_layers_of_every_kind_have_a_table() -> None:
    device = torch.device("cpu")
    for layer, shape in [
        (nn.Conv2d(8, 24, 3, padding=1), (1, 8, 6, 6)),
        (nn.Conv2d(16, 16, 3, groups=16), (1, 16, 6, 6)),
        (nn.Conv2d(16, 32, 3, groups=4), (2, 16, 6, 6)),
        (nn.ConvTranspose2d(8, 4, 2, stride=2, output_padding=1), (1, 8, 5, 5)),
        (nn.Conv1d(4, 6, 3), (1, 4, 9)),
        (nn.Conv2d(8, 24, 3).to(memory_format=torch.channels_last), (1, 8, 6, 6)),
        (nn.Linear(8, 24), (2, 6, 6, 8)),
    ]:
        at_rows, at_columns, times = layers.measure_layer(layer, shape, device)
        assert times.shape == (at_rows.size, at_columns.size)
        assert (times[1:, 1:] > 0).all() and (times[0] == 0).all()
        assert at_rows[-1] == layers.widths(layer)[0]
        assert (np.diff(at_rows) > 0).all() and (np.diff(at_columns) > 0).all()


def test_times_that_fit_no_line_get_no_negative_one() -> None:
    found = not_negative(np.array([[1.0, 1], [1, 2], [1, 4]]), np.array([8.0, 6, 2]))
    assert min(found) >= 0


def test_training_follows_a_slope_without_dips() -> None:
    """16 channels are faster than 15, and so they are when measured; but closing gates must be worth it."""
    at_rows, at_columns = np.array([0.0, 1, 8, 15, 16]), np.array([0.0, 1, 8])
    times = 5.0 + 2 * np.outer(at_rows, at_columns) + 3 * at_rows[:, None]
    times[3] *= 1.4
    times[0] = times[:, 0] = 0
    found = Latency((Table(np.arange(2, 18), np.arange(18, 26), at_rows, at_columns, times),))
    p = torch.ones(26, dtype=torch.float64, requires_grad=True)
    (local,) = torch.autograd.grad(found.expected(p), p)
    (smooth,) = torch.autograd.grad(found.smooth(p), p)
    assert local[2] < 0 and bool((smooth[2:] > 0).all())
    assert smooth[2].item() == pytest.approx(2 * 8 + 3, rel=0.35)


def test_slopes_of_a_wrapped_net_are_never_negative(wrapped: Wrapped) -> None:
    for share in (1.0, 0.6, 0.2):
        gates = torch.full((wrapped.analysis.variables,), share, dtype=torch.float64)
        (slope,) = wrapped.analysis.costs.slopes(gates, ["latency"])
        assert bool((slope >= 0).all()) and float(slope.max()) > 0
