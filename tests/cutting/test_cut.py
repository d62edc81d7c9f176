"""A cut net is exact, on budget, and as near to the unpruned one as least squares get it."""

from __future__ import annotations

import copy
import io
import json
import pickle
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import fxprune
from fxprune.cutting import lockstep, polish, refit
from fxprune.cutting.least_squares import fit
from fxprune.cutting.lockstep import frontiers
from fxprune.errors import DataError, FxPruneError, ModelError, OptionError
from tests.exactness import TOLERANCE, call, check_plain, error, prepared
from tests.models import DIFFERENT, ZOO, leaves


def resnet(width: int = 8) -> nn.Module:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))

    stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
    net = nn.Sequential(stem, Block(), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5))
    net.train()
    for _ in range(3):  # statistics that are not those of a fresh net
        net(torch.randn(32, 3, 8, 8))
    return net.eval()


def pictures(count: int = 96) -> torch.Tensor:
    return torch.randn(count, 3, 8, 8)


def test_on_budget_and_reported() -> None:
    net = resnet()
    slim = fxprune.cut(net, pictures(), 1 / 2, metric="flops", progress=False)
    report: Any = slim.report
    assert 0.4 < report.after["flops"] / report.before["flops"] <= 0.5
    assert report.error <= TOLERANCE and not slim.training
    assert report.samples == 96 and report.held_back == 12
    assert report.left == {} and set(report.layers) == set(report.widths)
    assert all(layer["after"] <= layer["before"] for layer in report.layers.values())
    assert set(report.seconds) == {"wrap", "choose", "refit", "export"}
    assert 0 <= report.agreement <= 1
    json.dumps(report.as_dict())
    check_plain(slim)
    assert copy.deepcopy(slim).report.layers == pickle.loads(pickle.dumps(slim)).report.layers == report.layers


def test_the_refit_brings_the_outputs_nearer() -> None:
    net, x = resnet(), pictures(256)
    missed = {
        refit: fxprune.cut(net, x, 1 / 2, refit=refit, progress=False).report.missed for refit in (False, True)
    }
    assert missed[True] < 0.5 * missed[False]


def test_deterministic_and_the_model_is_untouched() -> None:
    net, x = resnet(), pictures()
    net[1].train()
    before, modes = copy.deepcopy(net.state_dict()), [module.training for module in net.modules()]
    state = torch.get_rng_state()
    one = fxprune.cut(net, x, 1 / 2, progress=False)
    assert torch.equal(torch.get_rng_state(), state)
    torch.randn(3)
    other = fxprune.cut(net, x, 1 / 2, progress=False)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("metric", ["volume", "params", {"volume": 0.7, "flops": 0.4}])
def test_metrics(metric: Any) -> None:
    given = {"budget": metric} if isinstance(metric, dict) else {"budget": 0.6, "metric": metric}
    slim = fxprune.cut(resnet(), pictures(), progress=False, **given)
    for name, share in (metric if isinstance(metric, dict) else {metric: 0.6}).items():
        assert slim.report.after[name] <= share * slim.report.before[name]


def test_multiple_of() -> None:
    slim = fxprune.cut(resnet(16), pictures(), 1 / 2, multiple_of=4, progress=False)
    assert all(width % 4 == 0 for name, width in slim.report.widths.items() if name != "5")


@pytest.mark.parametrize("scores", ["magnitude", "random", "own"])
def test_other_scores(scores: str) -> None:
    net = resnet()
    given: Any = scores
    if scores == "own":
        given = {name: torch.arange(len(gate)) for name, gate in fxprune.wrap(net, 1 / 2).gates.items()}
    slim = fxprune.cut(net, pictures(), 1 / 2, scores=given, progress=False)
    assert slim.report.after["volume"] <= slim.report.before["volume"] / 2
    if scores == "own":  # the last channels stay
        kept = [layer["mask"] for layer in slim.report.living["layers"].values()]
        assert all(mask == "".join(sorted(mask)) for mask in kept)


def redundant(net: nn.Sequential, generator: torch.Generator) -> None:
    """Every layer but the last writes half of its channels twice over: as mixtures of the others."""
    with torch.no_grad():
        for layer in list(net)[:-1]:
            if isinstance(layer, nn.Conv2d):
                half = layer.weight.shape[0] // 2
                mixture = torch.randn(half, half, generator=generator, dtype=torch.float64) / half**0.5
                layer.weight[half:] = torch.einsum("ij,jklm->iklm", mixture, layer.weight[:half])
                layer.bias[half:] = mixture @ layer.bias[:half]


@pytest.mark.parametrize("behind", [nn.Identity, nn.AvgPool2d])
def test_redundant_channels_cost_nothing(behind: Any) -> None:
    """Without anything nonlinear between the layers what is left computes the very same."""
    torch.manual_seed(1)
    pool = behind() if behind is nn.Identity else behind(2)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3), pool, nn.Conv2d(12, 4, 1)).double().eval()
    redundant(net, torch.Generator().manual_seed(0))
    x = torch.randn(128, 3, 10, 10, dtype=torch.float64)
    wrapped = fxprune.wrap(net, 1, example_inputs=x[:2])
    halves = wrapped.set_masks({name: torch.arange(len(gate)) < len(gate) / 2 for name, gate in wrapped.gates.items()})
    slim = fxprune.cut(net, x, halves.cost().volume / wrapped.full_cost().volume, progress=False)
    assert [slim.report.widths[name] for name in ("0", "1", "3")] == [4, 6, 4]
    assert error(call(slim, (x,)), call(net, (x,))) <= 1e-8


NAMES = [pytest.param(name, marks=() if name in DIFFERENT else pytest.mark.fuzz) for name in ZOO]


def many(inputs: Any, count: int, generator: torch.Generator) -> Any:
    def drawn(value: torch.Tensor) -> torch.Tensor:
        return torch.randn(count, *value.shape[1:], generator=generator, dtype=torch.float64)

    return {k: drawn(v) for k, v in inputs.items()} if isinstance(inputs, dict) else tuple(map(drawn, inputs))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.* calibration samples are few")
def test_every_net(name: str) -> None:
    """Exact against the refitted net at full width, which is what ``report.error`` says, and no worse than before."""
    model, example, _ = ZOO[name]()
    samples = many(example, 24, torch.Generator().manual_seed(0))
    analysis = prepared(name)[1].analysis
    budget = 0.5 + 0.5 * analysis.costs.exact(analysis.smallest).volume / analysis.full_cost.volume
    slim = fxprune.cut(model, samples, budget, example_inputs=example, progress=False)
    assert slim.report.error <= TOLERANCE
    assert slim.report.after["volume"] <= budget * slim.report.before["volume"]
    assert all(layer["after"] <= layer["before"] for layer in slim.report.layers.values())
    assert all(bool(leaf.isfinite().all()) for leaf in leaves(call(slim, example)) if leaf.is_floating_point())


# ------------------------------------------------------------ calibration


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_all_forms_of_calibration() -> None:
    net, x = resnet(4), pictures(64)
    labels = torch.arange(64) % 5
    data = torch.utils.data.TensorDataset(x, labels)
    loader = torch.utils.data.DataLoader(data, batch_size=20)
    forms = [list(x.split(10)), list(x), loader, data, [{"input": part} for part in x.split(32)], (x,), (x, labels)]
    forms += [[(x[:32],), (x[32:],)], (part for part in x.split(16)), [[(x, labels)][0]]]
    expected = fxprune.cut(net, x, 1 / 2, progress=False)
    for number, form in enumerate(forms):
        assert same(fxprune.cut(net, form, 1 / 2, progress=False), expected), number


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Conv2d(3, 8, 1), nn.Conv2d(2, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.left(left)) + torch.relu(self.right(right)))


def test_several_inputs() -> None:
    net, left, right = TwoInputs().eval(), torch.randn(64, 3, 4, 4), torch.randn(64, 2, 4, 4)
    parts = list(zip(left.split(16), right.split(16), strict=True))
    forms = [
        {"left": left, "right": right}, parts, [(*pair, torch.arange(16)) for pair in parts],
        [(pair, torch.arange(16)) for pair in parts], [{"left": a, "right": b} for a, b in parts],
    ]  # fmt: skip
    expected = fxprune.cut(net, (left, right), 1 / 2, progress=False)
    for number, form in enumerate(forms):
        assert same(fxprune.cut(net, form, 1 / 2, progress=False), expected), number


X = pictures(64)
NAN = torch.cat([X, torch.full((1, 3, 8, 8), torch.nan)])


@pytest.mark.parametrize(
    ("calibration", "kind", "cause"),
    [
        (X[:0], DataError, "no samples"),
        ([], DataError, "no samples"),
        (None, DataError, "of type NoneType"),
        (X[:1], DataError, "1 sample"),
        ([X[:4], X[:4, :, :6]], DataError, "batch 1 holds samples of 3x6x8, batch 0 of 3x8x8"),
        (NAN, DataError, "NaN"),
        (torch.arange(64), DataError, "labels where inputs are expected"),
        ([(torch.arange(64), X)], DataError, "labels where inputs are expected"),
        (X[:1].expand(64, 3, 8, 8), DataError, "all 64 calibration samples are the same"),
        (torch.randn(64, 4, 8, 8), DataError, "the model rejects the calibration samples"),
    ],
)
def test_bad_calibration(calibration: Any, kind: type[FxPruneError], cause: str) -> None:
    with pytest.raises(kind) as raised:
        fxprune.cut(resnet(4), calibration, 1 / 2, progress=False)
    assert cause in raised.value.cause
    assert raised.value.fix


def test_a_net_that_answers_all_alike() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    nn.init.zeros_(net[2].weight)
    with pytest.raises(ModelError, match="do not depend on its inputs"):
        fxprune.cut(net, pictures(), 1 / 2, progress=False)


def test_a_budget_that_cannot_be_met() -> None:
    with pytest.raises(OptionError, match="the smallest that can be reached"):
        fxprune.cut(resnet(), pictures(), 1 / 1000, progress=False)


def test_unknown_scores() -> None:
    with pytest.raises(OptionError, match="scores='best' is unknown"):
        fxprune.cut(resnet(), pictures(), 1 / 2, scores="best", progress=False)


def test_few_samples_are_told() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 16), nn.ReLU(), nn.Linear(16, 4))
    with pytest.warns(UserWarning, match=r"64 calibration samples are few: '3' needs \d+"):
        fxprune.cut(net.eval(), X, 1 / 2, progress=False)


def test_refit_of_any_hardened_net() -> None:
    net, x = resnet(), pictures(256)
    wrapped = fxprune.wrap(net, 1 / 2, example_inputs=x[:2])
    with pytest.raises(OptionError, match="hardened"):
        fxprune.refit(wrapped, x, progress=False)
    wrapped.set_masks({name: torch.arange(len(gate)) % 2 == 0 for name, gate in wrapped.gates.items()})
    masks, training = wrapped.masks(), wrapped.training
    before = error(call(wrapped.eval(), (x,)), call(net, (x,)))
    wrapped.train(training)
    layers = fxprune.refit(wrapped, x, progress=False)
    assert (wrapped.masks() == masks).all() and wrapped.training == training
    assert error(call(wrapped.eval(), (x,)), call(net, (x,))) < 0.7 * before
    assert all(layer["after"] <= layer["before"] for layer in layers.values())


def test_a_bar_on_a_terminal_only() -> None:
    shown = {}
    for terminal in (True, False):
        written = io.StringIO()
        console = Console(file=written, force_terminal=terminal, width=80)
        fxprune.cut(resnet(4), X, 1 / 2, progress=console)
        shown[terminal] = written.getvalue()
    assert "exporting" in shown[True] and "GB of memory are needed" in shown[True] and shown[False] == ""


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left behind: the model is as it was, and the bar is gone."""
    net = resnet(4)
    before, written, calls = copy.deepcopy(net.state_dict()), io.StringIO(), 0

    def stops(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return fit(*args, **kwargs)

    monkeypatch.setattr(refit, "fit", stops)
    console = Console(file=written, force_terminal=True, width=80)
    with pytest.raises(KeyboardInterrupt):
        fxprune.cut(net, X, 1 / 2, progress=console)
    assert written.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K")  # the cursor shows again, the line is empty
    assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in before.items())


def test_what_is_alive_at_once() -> None:
    """The input beside the first result, then the first beside the second: 8 numbers of a sample at the most."""
    net = nn.Sequential(nn.Conv1d(3, 4, 1, bias=False), nn.ReLU(), nn.Conv1d(4, 1, 1, bias=False))
    traced = fxprune.wrap(net, 1, example_inputs=torch.zeros(2, 3, 1)).analysis.channels.trace
    assert max(frontiers(traced)) == 4 * 8


def test_as_many_samples_take_part_as_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few where maps are large, all behind the pooling; those that wait catch up, with fitted weights."""
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(8)]
    net = nn.Sequential(*layers, nn.Conv2d(8, 16, 1), nn.ReLU(), nn.Conv2d(16, 4, 1)).eval()
    x = torch.randn(256, 3, 16, 16)
    free = fxprune.cut(net, x, 1 / 2, scores="magnitude", progress=False).report
    largest = 2 * (8 + 8) * 16 * 16 * 4  # bytes of a sample in both nets, between a convolution and its ReLU
    for module in (lockstep, refit):
        monkeypatch.setattr(module, "ALIVE", 64 * largest)
    counts: list[int] = []

    def counted(nets: Any, site: Any) -> list[int]:
        found = awake(nets, site)
        sizes = [len(chunk["input"]) for chunk in nets.full.inputs]
        counts.append(sum(sizes[number] for number in found))
        assert not any(nets.full.values[number] for number in range(len(sizes)) if number not in found)
        return found

    awake = refit._Nets._awake
    monkeypatch.setattr(refit._Nets, "_awake", counted)
    bounded = fxprune.cut(net, x, 1 / 2, scores="magnitude", progress=False).report
    assert min(counts) <= 64 and counts[-1] == 256
    assert bounded.missed < 1.1 * free.missed


def test_polish_is_kept_only_if_it_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = resnet(), pictures(256)

    def cut(steps: Any) -> Any:
        return fxprune.cut(net, x, 1 / 4, polish=steps, refit=False, progress=False)

    plain = cut(0)
    monkeypatch.setattr(polish, "RATE", 1e-3)
    fine = cut(60)
    assert plain.report.polished is None and fine.report.polished is True
    assert fine.report.missed < 0.9 * plain.report.missed and "polish" in fine.report.seconds
    assert not any(weight.grad is not None for weight in fine.parameters())
    assert same(fine, cut(60))
    monkeypatch.setattr(polish, "RATE", 10.0)
    ruined = cut(5)
    assert ruined.report.polished is False and same(ruined, plain)
    with pytest.raises(OptionError, match=r"polish=1\.5 is not a number of steps"):
        cut(1.5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    slim = fxprune.cut(resnet().to(dtype), pictures(128).to(dtype), 1 / 2, progress=False)
    assert all(layer["after"] <= layer["before"] for layer in slim.report.layers.values())
    assert slim.report.missed < 0.7
