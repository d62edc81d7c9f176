"""Hardening: on budget everywhere, nothing left that would fit, and errors that name what can be reached."""

from __future__ import annotations

import copy
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

import fxprune
from fxprune.analysis import Analysis
from fxprune.cost.target import Target
from fxprune.errors import OptionError
from fxprune.gated.wrapped import Wrapped
from tests.models import ZOO

METRICS = ("volume", "flops", "params")
BUDGETS = (1 / 2, 1 / 4, 1 / 8)
TORCHVISION = ("resnet18", "mobilenet_v3_small", "densenet121", "shufflenet_v2_x0_5", "googlenet", "efficientnet_b0")
SMALL = ("fpn", "octave", "uneven_groups", "keyword_inputs", "shufflenet_v1", "unet")
NETS = (*TORCHVISION, *SMALL)


@cache
def wrapped_net(name: str) -> Wrapped:
    if name in ZOO:
        model, example, _ = ZOO[name]()
        return fxprune.wrap(model, 1.0, example_inputs=example)
    options = {"init_weights": True, "aux_logits": False} if name == "googlenet" else {}
    model = getattr(torchvision.models, name)(weights=None, **options).eval()
    return fxprune.wrap(model, 1.0, example_inputs=torch.zeros(1, 3, 64, 64))


def prepared(name: str, budget: float | dict[str, float], metric: str = "volume", seed: int = 0) -> Wrapped:
    """The net with random gates, soft again, and another budget."""
    wrapped = wrapped_net(name)
    wrapped.target = Target.of(budget, metric)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        gates = wrapped.bank.log_alpha
        gates.copy_(torch.randn(gates.shape, generator=generator, dtype=gates.dtype) * 2)
    wrapped.bank.soften()
    return wrapped


def opened(wrapped: Wrapped) -> np.ndarray:
    assert wrapped.hardened
    return wrapped.masks()


def used(wrapped: Wrapped) -> float:
    """The share of the budget; an AssertionError if it is more than all, in whole numbers."""
    cost, full = wrapped.cost(), wrapped.full_cost()
    for name, fraction in wrapped.target.limits:
        assert cost[name] <= fraction * full[name], f"{name} {cost[name]} is over {fraction} of {full[name]}"
    return float(max(cost[name] / (fraction * full[name]) for name, fraction in wrapped.target.limits))


def fits(analysis: Analysis, target: Target, masks: np.ndarray) -> np.ndarray:
    cost, full = analysis.costs.exact(masks), analysis.full_cost
    return np.logical_and.reduce([cost[name] <= fraction * full[name] for name, fraction in target.limits])


def further(wrapped: Wrapped, allowed: np.ndarray | None = None) -> list[int]:
    """Every closed gate variable that could be opened alone without leaving the budget."""
    mask, found = opened(wrapped), []
    closed = np.flatnonzero(~mask if allowed is None else ~mask & allowed)
    for part in np.split(closed, range(64, closed.size, 64)):
        trials = np.repeat(mask[:, None], part.size, axis=1)
        trials[part, np.arange(part.size)] = True
        found += part[fits(wrapped.analysis, wrapped.target, trials)].tolist()
    return found


def check_on_budget(wrapped: Wrapped) -> None:
    assert wrapped.analysis.guards.held(opened(wrapped))
    share = used(wrapped)
    assert share >= 0.98 or not further(wrapped), f"{share:.4f} of the budget, but more would fit"


def reachable(error: OptionError) -> dict[str, float]:
    found = re.findall(r"(\w+) \S+ of the full cost; the smallest that can be reached is (\S+?)(?:;|$)", error.cause)
    return {name: float(number) for name, number in found}


def harden(
    name: str, budget: float | dict[str, float], metric: str = "volume", seed: int = 0, **options: Any
) -> Wrapped:
    """Hardened to the budget, or else to the smallest that the error names."""
    asked = dict(Target.of(budget, metric).limits)
    try:
        return prepared(name, asked, seed=seed).harden(**options)
    except OptionError as error:
        smallest = reachable(error)
        assert smallest, error.cause
        assert all(smallest[limit] > asked[limit] for limit in smallest)
        return prepared(name, asked | smallest, seed=seed).harden(**options)


def widths(wrapped: Wrapped) -> dict[str, int]:
    return {name: int(gate.mask.sum()) for name, gate in wrapped.gates.items()}


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("name", NETS)
def test_on_budget(name: str, metric: str) -> None:
    for seed, budget in enumerate(BUDGETS):
        check_on_budget(harden(name, budget, metric, seed))


@pytest.mark.parametrize("name", NETS)
def test_several_budgets_at_once(name: str) -> None:
    for budget in ({"volume": 1 / 4, "flops": 1 / 8}, {"params": 1 / 2, "volume": 1 / 3, "flops": 1 / 4}):
        check_on_budget(harden(name, budget))


@pytest.mark.parametrize("name", NETS)
def test_equal_scores_are_on_budget_too(name: str) -> None:
    zeros = {layer: torch.zeros(len(gate)) for layer, gate in wrapped_net(name).gates.items()}
    check_on_budget(harden(name, 1 / 2, scores=zeros))


def test_large_nets_use_the_whole_budget() -> None:
    for name in TORCHVISION:
        assert used(harden(name, 1 / 4, "flops")) >= 0.999, name


def test_equal_scores_cut_every_layer_alike() -> None:
    wrapped = prepared("resnet18", 1 / 4, "params")
    wrapped.harden({name: torch.ones(len(gate)) for name, gate in wrapped.gates.items()})
    shares = [count / len(wrapped.gates[name]) for name, count in widths(wrapped).items()]
    assert max(shares) - min(shares) < 0.05


def test_the_best_scores_live() -> None:
    wrapped = prepared("vgg", 1 / 2)
    best = torch.tensor([2.0, 0.0, 3.0, 0.5, 1.0, 4.0])
    first = next(iter(wrapped.gates))
    mask = wrapped.harden({first: best}).gates[first].mask
    count = int(mask.sum())
    assert 0 < count < 6
    assert set(mask.nonzero().flatten().tolist()) == set(best.argsort(descending=True)[:count].tolist())


def test_the_same_gates_give_the_same_masks() -> None:
    first = opened(harden("shufflenet_v2_x0_5", 1 / 4, "flops")).copy()
    assert np.array_equal(first, opened(harden("shufflenet_v2_x0_5", 1 / 4, "flops")))
    again = copy.deepcopy(prepared("shufflenet_v2_x0_5", 1 / 4, "flops")).harden()
    assert np.array_equal(first, opened(again))


@pytest.mark.parametrize(
    ("name", "multiple"),
    [("resnet18", 4), ("densenet121", 4), ("resnext", 4), ("uneven_groups", 4), ("resnet18", 24), ("densenet121", 5)],
)
def test_widths_are_multiples(name: str, multiple: int) -> None:
    for fill in (True, False):
        wrapped = harden(name, 1 / 2, "flops", multiple_of=multiple, fill=fill)
        used(wrapped)
        for unit in wrapped.analysis.units:
            mask = wrapped.gates[unit.name].mask.numpy()
            width = int(mask[unit.rows].sum())
            assert width % multiple == 0 or mask.all(), f"{unit.name}: {width} of {unit.channels}"


def test_multiples_use_the_budget_too() -> None:
    assert used(harden("resnet18", 1 / 4, "flops", multiple_of=8)) >= 0.98


def test_minimum_widths() -> None:
    wrapped = harden("resnet18", 1 / 4, "flops", minimum={"layer4.*": 40, "conv1": 5, "layer1.0.conv1": 10_000})
    check_on_budget(wrapped)
    found = widths(wrapped)
    assert all(count >= 40 for name, count in found.items() if name.startswith("layer4."))
    assert found["conv1"] >= 5
    assert found["layer1.0.conv1"] == 64
    of_groups = harden("uneven_groups", 1.0, minimum={"1": 4}, fill=False)  # groups of three channels
    assert widths(of_groups)["1"] >= 2


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "octave"])
def test_without_fill_nothing_closed_is_opened(name: str) -> None:
    wrapped = prepared(name, 1.0)
    before = wrapped.masks().copy()  # what lives, and what must
    wrapped.harden(fill=False)
    assert np.array_equal(opened(wrapped), before)
    cut = harden(name, 1 / 2, fill=False)
    assert used(cut) >= 0.98 or not further(cut, before)
    assert not (opened(cut) & ~before).any()
    scored = prepared(name, 1 / 2)
    scored.harden({layer: torch.rand(len(gate)) for layer, gate in scored.gates.items()}, fill=False)
    assert used(scored) > 0
    assert not (opened(scored) & ~before).any()


@pytest.mark.parametrize("name", [*SMALL, "resnet18", "googlenet"])
@pytest.mark.parametrize("metric", METRICS)
def test_the_smallest_budget_is_reachable_and_nothing_below(name: str, metric: str) -> None:
    with pytest.raises(OptionError, match="smallest that can be reached") as caught:
        prepared(name, 1e-9, metric).harden()
    least = reachable(caught.value)[metric]
    wrapped = prepared(name, least, metric).harden()
    assert 0 < used(wrapped) <= 1
    cost, full = wrapped.cost(), wrapped.full_cost()
    assert cost[metric] / full[metric] > least * 0.998  # rounded up by no more than the fourth digit
    with pytest.raises(OptionError, match="smallest that can be reached"):
        prepared(name, min(cost[metric] / full[metric], least) * 0.999, metric).harden()
    assert least <= fxprune_smallest(wrapped)[metric] * 1.002


def test_what_keeps_a_budget_out_of_reach_is_named() -> None:
    small = prepared("unet", 1e-9)
    with pytest.raises(OptionError, match=r"fix: ask for a larger budget$"):
        small.harden()
    with pytest.raises(OptionError, match=r"larger budget, a smaller multiple_of or smaller widths in minimum$"):
        small.harden(multiple_of=2, minimum={"u2.0": 2})
    model, example, _ = ZOO["unet"]()
    ignoring = fxprune.wrap(model, 1e-9, example_inputs=example, ignore=("u2.0",))
    with pytest.raises(OptionError, match=r"a larger budget or fewer layers in wrap\(ignore=\.\.\.\)$"):
        ignoring.harden()
    convs = [nn.Conv2d(3 if first else 8, 8, 3, padding=1) for first in (True, False, False)]
    frozen = nn.Sequential(convs[0], nn.FractionalMaxPool2d(2, output_size=4), *convs[1:])
    with pytest.raises(OptionError, match=r"a larger budget; or free what inspect lists as frozen$"):
        fxprune.wrap(frozen, 1e-9, example_inputs=torch.zeros(1, 3, 12, 12)).harden()


def fxprune_smallest(wrapped: Wrapped) -> dict[str, float]:
    """What ``inspect`` shows as the smallest budget."""
    analysis = wrapped.analysis
    cost, full = analysis.costs.exact(analysis.smallest), analysis.full_cost
    return {metric: cost[metric] / full[metric] for metric in METRICS}


def test_the_smallest_budget_is_the_smallest_of_all_masks() -> None:
    for name in ("keyword_inputs", "chain", "mixconv", "branch_on_size"):
        analysis = wrapped_net(name).analysis
        count = analysis.variables
        assert count <= 15
        every = (np.arange(2**count)[None] >> np.arange(count)[:, None] & 1).astype(bool)
        held = np.array([analysis.guards.held(mask) for mask in every.T])
        costs = analysis.costs.exact(every[:, held])
        for metric in METRICS:
            with pytest.raises(OptionError) as caught:
                prepared(name, 1e-9, metric).harden()
            least = costs[metric].min() / analysis.full_cost[metric]
            assert reachable(caught.value)[metric] == pytest.approx(least, rel=2e-3), (name, metric)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_scores_must_be_finite(value: float) -> None:
    wrapped = prepared("unet", 1 / 2)
    scores = torch.zeros(len(wrapped.gates["u2.0"]))
    scores[1] = value
    with pytest.raises(OptionError, match=r"scores of 'u2\.0' hold NaN or infinite"):
        wrapped.harden({"u2.0": scores})
    with torch.no_grad():
        wrapped.bank.log_alpha[0] = value
    with pytest.raises(OptionError, match="NaN or infinite"):
        wrapped.harden()
    assert not wrapped.hardened


def test_bad_options() -> None:
    wrapped = prepared("unet", 1 / 2)
    for wrong in (0, -8, 2.5, True):
        with pytest.raises(OptionError, match="multiple_of"):
            wrapped.harden(multiple_of=wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"minimum=5 names no layers\n.*{'\*': 5}"):
        wrapped.harden(minimum=5)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="matches no gated layer"):
        wrapped.harden(minimum={"nothing": 3})
    with pytest.raises(OptionError, match="no number of channels"):
        wrapped.harden(minimum={"u2.0": -1})


@pytest.mark.parametrize("name", ["unet", "uneven_groups", "octave", "mobilenet_v3_small"])
def test_the_exported_net_costs_what_was_chosen(name: str) -> None:
    for metric, budget in (("volume", 1 / 2), ("flops", 1 / 4)):
        wrapped = harden(name, budget, metric)
        slim = fxprune.export(wrapped, verify=False)
        assert slim.report.after == wrapped.cost().as_dict()
        used(wrapped)


@pytest.mark.parametrize("name", [*ZOO, "resnet18", "efficientnet_b0"])
def test_counting_is_the_formula_of_the_expected_cost(name: str) -> None:
    """On bools in numpy, for many masks at once, or on zeros and ones in torch."""
    analysis = wrapped_net(name).analysis
    masks = np.random.default_rng(0).random((analysis.variables, 6)) < np.array([0.0, 0.1, 0.3, 0.5, 0.8, 1.0])
    many = analysis.costs.exact(masks)
    for column in range(6):
        mask = masks[:, column]
        present = analysis.costs.physical(torch.from_numpy(mask).double())
        assert np.array_equal(analysis.costs.logic.present(mask[:, None])[:, 0], present.numpy() > 0)
        one, formula = analysis.costs.exact(mask), analysis.costs.of_ids(present)
        for metric, count in one.as_dict().items():
            assert count == many[metric][column] == round(float(formula[metric]))
