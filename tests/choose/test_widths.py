"""Exchanging widths on machines whose times are made up: stairs, and joins that are dear unless channels agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fxprune
from fxprune.choose.choose import choose
from fxprune.choose.widths import trade
from fxprune.cost.latency import Latency, Meeting, Table
from fxprune.cost.target import Target
from fxprune.gated.wrapped import Wrapped, use_latency
from fxprune.latency.auto import joins_of


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.outer, self.last = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        out: torch.Tensor = self.last((x + self.outer(self.inner(x).relu())).relu())
        return out


def on_stairs(step: int, copied: float = 0.0) -> Wrapped:
    """A layer takes as long as one with its widths rounded up to multiples of ``step``."""
    net = fxprune.wrap(Block(), 1 / 2, example_inputs=torch.zeros(1, 3, 8, 8))
    tables = []
    for mixer in net.analysis.channels.mixers:
        rows, columns = np.arange(mixer.ids.size + 1.0), np.arange(mixer.inputs.size + 1.0)
        times = np.outer(*(np.ceil(widths / step) * step for widths in (rows, columns)))
        tables.append(Table(mixer.ids.reshape(-1), mixer.inputs.reshape(-1), rows, columns, times))
    joins = joins_of(net.analysis.channels)
    meetings = [Meeting(*join.operands, join.out, 0.0, 0.1, copied) for join in joins if len(join.operands) == 2]
    use_latency(net, Latency(tuple(tables), (), tuple(meetings), rest=1.0))
    return net


def widths(net: Wrapped, opened: np.ndarray) -> dict[str, int]:
    return {unit.name: int(opened[unit.part].sum()) for unit in net.analysis.units}


def first_ones(net: Wrapped, **wide: int) -> np.ndarray:
    """Scores above 0 for so many of a layer's gates."""
    return np.concatenate([wide[unit.name] - 0.5 - np.arange(unit.variables) for unit in net.analysis.units]) / 100


def chosen(net: Wrapped, share: float, scores: np.ndarray, **options: object) -> np.ndarray:
    settings = {"fill": True, "multiple_of": 1, "minimum": {}} | options
    target = Target.of({"latency": share}, "latency")
    return choose(net.analysis, target, scores, None, **settings)  # type: ignore[arg-type]


def share_of(net: Wrapped, opened: np.ndarray) -> float:
    return net.analysis.costs.exact(opened).latency / net.analysis.full_cost.latency


def test_widths_end_at_the_edges_of_stairs() -> None:
    net = on_stairs(8)
    found = chosen(net, 0.2, first_ones(net, first=10, inner=11, outer=10))
    assert all(width % 8 == 0 for width in widths(net, found).values())
    assert share_of(net, found) <= 0.2


@pytest.mark.parametrize("share", [0.15, 0.3, 0.5])
def test_more_is_computed_in_the_same_time(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    net = on_stairs(1, copied=5.0)
    scores = np.random.default_rng(0).normal(size=net.analysis.variables)
    found = chosen(net, share, scores)
    monkeypatch.setattr("fxprune.choose.choose.trade", lambda analysis, opened, *more: opened)
    plain = chosen(net, share, scores)
    flops = [net.analysis.costs.exact(opened).flops for opened in (plain, found)]
    assert flops[1] > 1.1 * flops[0]
    assert share_of(net, found) <= share


def test_without_stairs_and_copies_nothing_is_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    net = on_stairs(1)
    scores = np.random.default_rng(0).normal(size=net.analysis.variables)
    found = chosen(net, 0.3, scores)
    monkeypatch.setattr("fxprune.choose.choose.trade", lambda analysis, opened, *more: opened)
    assert np.array_equal(found, chosen(net, 0.3, scores))


def test_joins_agree_where_disagreeing_is_dear() -> None:
    net = on_stairs(1, copied=20.0)
    scores = first_ones(net, first=16, inner=16, outer=16)
    part = next(unit.part for unit in net.analysis.units if unit.name == "outer")
    scores[part] = scores[part][::-1]  # channels that the stem has closed
    found = chosen(net, 0.3, scores)
    masks = {unit.name: found[unit.part] for unit in net.analysis.units}
    wider, narrower = sorted((masks["first"], masks["outer"]), key=np.sum, reverse=True)
    assert not (narrower & ~wider).any()
    assert share_of(net, found) <= 0.3


def test_within_a_layer_the_best_scores_live() -> None:
    net = on_stairs(8)
    scores = np.random.default_rng(0).normal(size=net.analysis.variables)
    found = chosen(net, 0.25, scores)
    part = next(unit.part for unit in net.analysis.units if unit.name == "inner")
    opened, own = found[part], scores[part]
    assert own[opened].min() > own[~opened].max()


def test_what_the_user_says_of_widths_holds() -> None:
    net = on_stairs(8)
    scores = first_ones(net, first=10, inner=4, outer=10)
    assert widths(net, chosen(net, 0.2, scores, minimum={"inner": 13}))["inner"] >= 13
    assert all(width % 5 == 0 or width == 32 for width in widths(net, chosen(net, 0.3, scores, multiple_of=5)).values())


def test_another_limit_holds_as_well() -> None:
    net = on_stairs(8)
    target = Target.of({"latency": 0.3, "volume": 0.2}, "latency")
    scores = first_ones(net, first=10, inner=11, outer=10)
    found = choose(net.analysis, target, scores, None, fill=True, multiple_of=1, minimum={})
    assert target.used(net.analysis.costs.exact(found), net.analysis.full_cost) <= 1


@settings(max_examples=30, deadline=None)
@given(
    step=st.sampled_from([1, 3, 4, 8, 16]),
    copied=st.sampled_from([0.0, 5.0, 100.0]),
    share=st.floats(0.2, 1.0),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_machine_any_scores(step: int, copied: float, share: float, seed: int) -> None:
    net = on_stairs(step, copied)
    generator = np.random.default_rng(seed)
    scores, target = generator.normal(size=net.analysis.variables), Target.of({"latency": share}, "latency")
    start = choose(net.analysis, target, scores, None, fill=False, multiple_of=1, minimum={})
    allowed = start | (generator.random(start.size) < generator.random())
    found = trade(net.analysis, start, scores, allowed, target, net.analysis.guards.held)
    assert share_of(net, found) <= share
    assert net.analysis.guards.held(found)
    assert not (found & ~allowed).any()
    latency = net.analysis.costs.latency
    assert latency is not None
    widths = latency.widths(net.analysis.costs.logic.present(np.stack([start, found], 1)))
    before, after = latency.worth(widths[:, 0])(widths)
    assert before == pytest.approx(0)
    assert after >= before


def test_where_training_was_is_worth_most() -> None:
    """At equal smooth time, no other widths are worth as much as those that training chose."""
    net = on_stairs(1)
    latency = replace(net.analysis.costs.latency)  # type: ignore[type-var]
    masks = np.random.default_rng(1).random((net.analysis.variables, 200)) < 0.5
    masks[:, 0] = np.random.default_rng(2).random(net.analysis.variables) < 0.4
    present = net.analysis.costs.logic.present(masks)
    widths = latency.widths(present)
    worth, time = latency.worth(widths[:, 0])(widths), latency.exact(present)
    assert (worth[time <= time[0]] <= 1e-9).all()


def test_where_no_gradients_are_kept() -> None:
    net = on_stairs(8)
    with torch.no_grad():
        found = chosen(net, 0.3, first_ones(net, first=10, inner=11, outer=10))
    assert share_of(net, found) <= 0.3


def test_a_network_without_gates_has_nothing_to_exchange() -> None:
    net = fxprune.wrap(nn.Conv2d(3, 4, 1), 1.0, example_inputs=torch.zeros(1, 3, 4, 4))
    use_latency(net, Latency(rest=1.0))
    assert chosen(net, 1.0, np.zeros(0)).size == 0
