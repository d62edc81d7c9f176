"""Every kind of layer against ``torch.linalg.lstsq`` on patches that ``unfold`` cuts out, and the surgery on channels
against fits without them."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxprune
from fxprune.cutting import least_squares, refit, score
from fxprune.cutting.least_squares import Activation, Affine, Moments, Rows, Summed, error, fit
from fxprune.cutting.positions import Where, canonical, inputs_at, outputs_at
from fxprune.cutting.samples import read_samples
from fxprune.cutting.score import RIDGE, surgery
from fxprune.cutting.sites import grouped
from tests.exactness import call
from tests.exactness import error as far


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly any ridge, and every position."""
    monkeypatch.setattr(least_squares, "RIDGES", (1e-12,))
    monkeypatch.setattr(refit, "ROWS", 10**9)


# ------------------------------------------------------------ what a layer sees

LAYERS = {
    "conv1d": (nn.Conv1d(3, 4, 3, padding=1), (3, 9)),
    "stride": (nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(0, 1)), (3, 8, 9)),
    "dilation": (nn.Conv2d(3, 4, 3, padding=2, dilation=2), (3, 8, 9)),
    "same": (nn.Conv2d(3, 4, 4, padding="same", dilation=(1, 2)), (3, 8, 9)),
    "valid": (nn.Conv2d(3, 4, 2, padding="valid"), (3, 8, 9)),
    "reflect": (nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode="reflect"), (3, 8, 9)),
    "circular": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (3, 8, 9)),
    "grouped": (nn.Conv2d(6, 4, 3, padding=1, groups=2), (6, 8, 9)),
    "depthwise": (nn.Conv2d(6, 6, 3, padding=1, groups=6), (6, 8, 9)),
    "conv3d": (nn.Conv3d(2, 3, (1, 3, 2), stride=(1, 2, 1), padding=(0, 1, 1)), (2, 3, 5, 6)),
    "transposed": (nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), (3, 4, 5)),
    "transposed, grouped": (nn.ConvTranspose2d(6, 4, (4, 3), stride=(2, 3), dilation=(1, 2), groups=2), (6, 4, 5)),
    "linear": (nn.Linear(5, 4), (5,)),
    "linear on tokens": (nn.Linear(5, 4), (7, 5)),
    "linear on maps": (nn.Linear(5, 4), (3, 7, 5)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("rows", [10**6, 24])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_patches_times_weights_are_outputs(name: str, rows: int) -> None:
    layer, shape = LAYERS[name]
    layer, x = layer.double(), torch.randn(5, *shape, dtype=torch.float64)
    y = layer(x).detach()
    groups = getattr(layer, "groups", 1)
    made = canonical(y, layer).shape
    where = Where.drawn(made[0], made[2:].numel(), rows, torch.Generator().manual_seed(0))
    weight = grouped(layer.weight, layer, groups).flatten(2)
    seen = inputs_at(x, layer, made, where, None).reshape(-1, groups, weight.shape[2])
    found = torch.einsum("ngd,grd->ngr", seen, weight).flatten(1)
    torch.testing.assert_close(found + layer.bias, outputs_at(y, layer, where))


def test_columns_are_picked() -> None:
    layer, x = nn.Conv2d(5, 4, 3), torch.randn(2, 5, 6, 6)
    where = Where(torch.arange(2), torch.arange(16))
    made = torch.Size([2, 4, 4, 4])
    torch.testing.assert_close(
        inputs_at(x, layer, made, where, [1, 4]), inputs_at(x, layer, made, where, None)[:, [1, 4]]
    )


# ------------------------------------------------------------ fits


def rows_of(count: int, columns: int, outputs: int, groups: int = 1) -> Rows:
    inputs = torch.randn(count, groups, columns, dtype=torch.float64) + 2
    return Rows(inputs, torch.randn(count, groups, outputs, dtype=torch.float64) + inputs.sum(2, keepdim=True), None)


def nothing(columns: int, outputs: int, groups: int = 1) -> Affine:
    zeros = torch.zeros(groups, columns, outputs, dtype=torch.float64)
    return Affine(zeros, zeros[:, 0])


@pytest.mark.parametrize("constant", [True, False])
def test_fit_is_least_squares(constant: bool) -> None:
    rows = rows_of(60, 5, 3, groups=2)
    found, _ = fit(rows, rows, nothing(5, 3, 2), None, constant=constant)
    for group in range(2):
        inputs = rows.inputs[:, group]
        if constant:
            inputs = torch.cat([inputs, torch.ones(60, 1, dtype=torch.float64)], 1)
        best = torch.linalg.lstsq(inputs, rows.wanted[:, group]).solution
        offset = best[5] if constant else torch.zeros(3, dtype=torch.float64)
        torch.testing.assert_close(found.maps[group], best[:5], rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(found.constant[group], offset, rtol=1e-7, atol=1e-8)


def test_more_columns_than_rows_is_the_same_ridge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(least_squares, "RIDGES", (1e-2,))
    rows, columns = rows_of(20, 50, 3), 50
    start = Affine(torch.randn(1, columns, 3, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64))
    found, known = fit(rows, rows, start, None, constant=True)
    assert known.dual
    centred = rows.inputs[:, 0] - rows.inputs[:, 0].mean(0)
    gram = centred.T @ centred / 20
    missing = rows.wanted[:, 0] - rows.wanted[:, 0].mean(0) - centred @ start.maps[0]
    ridged = gram + 1e-2 * gram.diagonal().mean() * torch.eye(columns)
    torch.testing.assert_close(found.maps[0], start.maps[0] + torch.linalg.solve(ridged, centred.T @ missing / 20))


def test_covariances_of_parts() -> None:
    rows, summed = torch.randn(5000, 2, 3) * torch.tensor([1.0, 2.0, 3.0]) + 50, Summed()
    for part in rows.split(700):
        summed.add(part)
    for group, found in enumerate(summed.covariances()):
        torch.testing.assert_close(found, rows[:, group].double().T.cov(correction=0), rtol=1e-4, atol=1e-4)


def test_known_variance() -> None:
    rows, maps = rows_of(50, 4, 2), torch.randn(1, 4, 3, dtype=torch.float64)
    made = torch.einsum("ngd,gdr->ngr", rows.inputs, maps)
    torch.testing.assert_close(Moments(rows.inputs, centred=True).variance(maps), made.var(0, unbiased=False))


def test_what_a_relu_cuts_off_need_not_be_met() -> None:
    """Targets that only a better fit of the positive part can reach: the rounds lower the error behind the ReLU."""
    inputs = torch.randn(400, 1, 3, dtype=torch.float64)
    hidden = inputs @ torch.randn(3, 4, dtype=torch.float64)
    rows = Rows(inputs, torch.where(hidden > 0, hidden, 5 * hidden), None)
    relu = Activation(0.0, float("inf"))
    plain, _ = fit(rows, rows, nothing(3, 4), None, constant=True)
    better, _ = fit(rows, rows, nothing(3, 4), relu, constant=True)
    assert error(better(rows), rows.wanted, relu) < 0.7 * error(plain(rows), rows.wanted, relu)


def test_targets_of_a_capped_relu() -> None:
    relu6 = Activation(0.0, 6.0)
    wanted = torch.tensor([-2.0, -2.0, 3.0, 9.0, 9.0])
    reached = torch.tensor([-5.0, 1.0, 4.0, 7.0, 5.0])
    assert relu6.target(wanted, reached).tolist() == [-5.0, 0.0, 3.0, 7.0, 6.0]


def test_surgery_removes_as_a_fit_without_the_channel() -> None:
    """The first channel to go is the one whose loss costs least, and costs what a fit without it says; the others as if
    all before them were gone."""
    channels, taps = 4, 2
    inputs = torch.randn(300, channels * taps, dtype=torch.float64)
    inputs[:, 2:4] += 0.9 * inputs[:, 4:6]
    covariance = inputs.T @ inputs / 300
    maps = torch.randn(channels * taps, 3, dtype=torch.float64)
    ridged = covariance + RIDGE * covariance.diagonal().mean() * torch.eye(channels * taps)

    def missed(gone: tuple[int, ...]) -> float:
        """The least (d' H d) over changes d that are -maps where channels are gone."""
        out = torch.tensor([c * taps + k for c in gone for k in range(taps)])
        keep = torch.tensor([c for c in range(channels * taps) if c not in out.tolist()])
        change = torch.zeros_like(maps)
        change[out] = -maps[out]
        change[keep] = torch.linalg.solve(ridged[keep][:, keep], ridged[keep][:, out] @ maps[out])
        return float((change * (ridged @ change)).sum())

    losses = surgery(covariance, maps, taps).tolist()
    steps = range(1, channels)
    order = min(permutations(range(channels)), key=lambda order: [missed(order[:step]) for step in steps])
    before = 0.0
    for place in range(channels - 1):
        now = missed(order[: place + 1])
        assert losses[order[place]] == pytest.approx(now - before)
        before = now


def test_surgery_on_many_outputs_is_that_on_as_many_as_inputs() -> None:
    covariance = torch.randn(300, 12, dtype=torch.float64).T.cov()
    maps = torch.randn(12, 40, dtype=torch.float64)
    few = torch.linalg.cholesky(maps @ maps.T)
    torch.testing.assert_close(surgery(covariance, maps, 3), surgery(covariance, few, 3))


def test_wide_layers_are_looked_at_tap_by_tap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel that two others are the sum of costs nothing either way."""
    torch.manual_seed(0)
    stem = nn.Conv2d(3, 6, 1)
    with torch.no_grad():
        stem.weight[5], stem.bias[5] = stem.weight[1] + stem.weight[3], stem.bias[1] + stem.bias[3]  # type: ignore[index]
    net = nn.Sequential(stem, nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1)).eval()
    wrapped, x = fxprune.wrap(net, 0.9, example_inputs=torch.zeros(2, 3, 6, 6)), torch.randn(64, 3, 6, 6)
    for widest in (2304, 1):
        monkeypatch.setattr(score, "WIDEST", widest)
        worth = score.reconstruction(wrapped, read_samples(x, net), 0, lambda name: None)["0"]
        assert int(worth.argmin()) in (1, 3, 5) and worth.min() < 1e-2 * worth.max()


def test_a_flattened_map_is_not_made_up_for_by_chance() -> None:
    """288 columns of 64 rows are always met by those that stay; channels are looked at place by place then, and each of
    these, which are independent, costs about its share."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.Flatten(), nn.Linear(8 * 36, 4)).eval()
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(8)[:, :, None, None])  # type: ignore[operator]
    wrapped, x = fxprune.wrap(net, 0.9, example_inputs=torch.zeros(2, 8, 6, 6)), torch.randn(64, 8, 6, 6)
    worth = score.reconstruction(wrapped, read_samples(x, net), 0, lambda name: None)["0"]
    assert worth.min() > 0.3 * worth.max()
    saved = score.savings(wrapped.analysis, wrapped.target)
    assert float((worth * torch.from_numpy(saved)).sum()) == pytest.approx(1, rel=0.3)  # all of the output's variance


# ------------------------------------------------------------ whole nets


def refitted(net: nn.Module, x: torch.Tensor, masks: dict[str, list[int]]) -> Any:
    wrapped = fxprune.wrap(net, 1 / 2, example_inputs=x[:2])
    wrapped.set_masks({
        name: torch.tensor([row in kept for row in range(len(wrapped.gates[name]))]) for name, kept in masks.items()
    })
    fxprune.refit(wrapped, x, progress=False)
    return wrapped.eval()


def best(inputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """What an affine map makes of rows of inputs, at best."""
    inputs = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=inputs.dtype)], 1)
    return inputs @ torch.linalg.lstsq(inputs, wanted).solution


def patches(x: torch.Tensor) -> torch.Tensor:
    return F.unfold(x, 3, padding=1).transpose(1, 2).flatten(0, 1)


def as_rows(y: torch.Tensor) -> torch.Tensor:
    return y.flatten(2).transpose(1, 2).flatten(0, 1)


X = torch.randn(72, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
FITTED = X[:63]  # the others are held back


def trained(net: nn.Module) -> nn.Module:
    net.double().train()
    for _ in range(5):
        net(torch.randn(32, *X.shape[1:], dtype=torch.float64) * 1.5)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
    return net.eval()


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_behind_pruned_ones(norm: bool, bias: bool) -> None:
    """Behind a batch norm the fit is that of its output, and the norm's statistics are those of its input."""
    net = trained(nn.Sequential(
        nn.Conv2d(3, 6, 1), nn.Tanh(), nn.Conv2d(6, 4, 3, padding=1, bias=bias or not norm),
        nn.BatchNorm2d(4) if norm else nn.Identity(), nn.Tanh(), nn.Conv2d(4, 2, 1),
    ))  # fmt: skip
    length = net[2].weight[:, [0, 3, 4]].flatten(1).norm(dim=1)
    wrapped = refitted(net, X, {"0": [0, 3, 4], "2": [0, 1, 2, 3]})
    inputs = patches(net[:2](FITTED)[:, [0, 3, 4]])
    wanted = as_rows(net[:4](FITTED))
    hidden = wrapped.get_submodule("1")(wrapped.get_submodule("0")(FITTED))
    hidden[:, [1, 2, 5]] = 0
    raw = wrapped.get_submodule("2")(hidden)
    found = raw
    if norm:
        layer = wrapped.get_submodule("3")
        found = F.batch_norm(raw, layer.running_mean, layer.running_var, layer.weight, layer.bias, eps=layer.eps)
        rows = as_rows(raw)
        torch.testing.assert_close(layer.running_mean, rows.mean(0))
        torch.testing.assert_close(layer.running_var, rows.var(0, unbiased=False))
        now = wrapped.get_submodule("2").weight[:, [0, 3, 4]].flatten(1).norm(dim=1)
        torch.testing.assert_close(now, length)
    torch.testing.assert_close(as_rows(found), best(inputs, wanted), rtol=1e-6, atol=1e-6)


class Residual(nn.Module):
    """``shortcut``: beside the block is a layer, not the stream itself."""

    def __init__(self, shortcut: bool) -> None:
        super().__init__()
        self.stem, self.a, self.b = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 5, 3, padding=1), nn.Conv2d(5, 6, 3, padding=1)
        self.beside = nn.Conv2d(6, 6, 1) if shortcut else nn.Identity()
        self.head = nn.Conv2d(6, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.stem(x))
        y = self.b(torch.tanh(self.a(x)))
        return self.head(torch.tanh(y + self.beside(x)))


def test_a_block_gives_the_stream_what_it_lacks() -> None:
    net = trained(Residual(False))
    wrapped = refitted(net, X, {"stem": [0, 1, 2], "a": [0, 1, 3], "b": [0, 2, 4, 5]})
    parts = {name: wrapped.get_submodule(name) for name in ("stem", "a", "b")}
    stream = torch.tanh(parts["stem"](FITTED)) * torch.tensor([1, 1, 1, 0, 0, 0])[:, None, None]
    inner = torch.tanh(parts["a"](stream)) * torch.tensor([1, 1, 0, 1, 0])[:, None, None]
    full = torch.tanh(net.stem(FITTED))
    whole = net.b(torch.tanh(net.a(full))) + full
    rows = [0, 2, 4, 5]
    expected = best(patches(inner[:, [0, 1, 3]]), as_rows((whole - stream)[:, rows]))
    torch.testing.assert_close(as_rows(parts["b"](inner)[:, rows]), expected, rtol=1e-6, atol=1e-6)


def test_the_second_of_two_layers_corrects_the_sum() -> None:
    net = trained(Residual(True))
    wrapped = refitted(net, X, {"stem": [0, 1, 2, 5], "a": [0, 1, 3], "b": [0, 2, 4], "beside": [0, 1, 2, 3]})
    part = wrapped.get_submodule
    stream = torch.tanh(part("stem")(FITTED)) * torch.tensor([1, 1, 1, 0, 0, 1])[:, None, None]
    inner = torch.tanh(part("a")(stream)) * torch.tensor([1, 1, 0, 1, 0])[:, None, None]
    full = torch.tanh(net.stem(FITTED))
    own, whole = net.b(torch.tanh(net.a(full))), 0
    whole = own + net.beside(full)
    living = [0, 1, 2, 5]
    # The block comes first: its own rows where the shortcut adds something later, the whole sum on row 4.
    target = torch.where(torch.tensor([1, 1, 1, 1, 0, 0], dtype=torch.bool)[:, None, None], own, whole)
    expected = best(patches(inner[:, [0, 1, 3]]), as_rows(target[:, [0, 2, 4]]))
    block = part("b")(inner)
    torch.testing.assert_close(as_rows(block[:, [0, 2, 4]]), expected, rtol=1e-6, atol=1e-6)
    block = block * torch.tensor([1, 0, 1, 0, 1, 0])[:, None, None]
    rest = as_rows((whole - block)[:, :4])
    found = as_rows(part("beside")(stream)[:, :4])
    torch.testing.assert_close(found, best(as_rows(stream[:, living]), rest), rtol=1e-6, atol=1e-6)


def test_a_depthwise_layer_is_fitted_channel_by_channel() -> None:
    net = trained(nn.Sequential(
        nn.Conv2d(3, 5, 1), nn.Conv2d(5, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.Conv2d(6, 2, 1)
    ))  # fmt: skip
    wrapped = refitted(net, X, {"0": [0, 1], "1": [0, 2, 5]})
    part = wrapped.get_submodule
    given = part("1")(part("0")(FITTED) * torch.tensor([1, 1, 0, 0, 0])[:, None, None])
    wanted, found = net[:3](FITTED), part("2")(given)
    for channel in (0, 2, 5):
        expected = best(patches(given[:, [channel]]), as_rows(wanted[:, [channel]]))
        torch.testing.assert_close(as_rows(found[:, [channel]]), expected, rtol=1e-6, atol=1e-6)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner, self.head = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 1), nn.Conv2d(6, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = torch.tanh(self.stem(x))
        return self.head(torch.tanh(self.inner(left)) + torch.tanh(self.inner(torch.tanh(3 * left))))


def test_a_layer_that_is_called_twice_has_one_solution() -> None:
    net = trained(Twice())
    wrapped = refitted(net, X, {"stem": [0, 1, 4], "inner": [0, 1, 2, 3, 4]})
    part = wrapped.get_submodule
    left = torch.tanh(part("stem")(FITTED)) * torch.tensor([1, 1, 0, 0, 1, 0])[:, None, None]
    full = torch.tanh(net.stem(FITTED))
    inputs = torch.cat([as_rows(left), as_rows(torch.tanh(3 * left))])
    wanted = torch.cat([as_rows(net.inner(full)), as_rows(net.inner(torch.tanh(3 * full)))])
    rows = [0, 1, 2, 3, 4]
    expected = best(inputs[:, [0, 1, 4]], wanted[:, rows])
    found = torch.cat([as_rows(part("inner")(left)), as_rows(part("inner")(torch.tanh(3 * left)))])
    torch.testing.assert_close(found[:, rows], expected, rtol=1e-6, atol=1e-6)


def test_gate_values_go_into_the_fit() -> None:
    """Gates that are neither zero nor one stay, and the weights make up for them."""
    net = trained(nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), nn.Tanh(), nn.Conv2d(6, 2, 1)))
    wrapped = fxprune.wrap(net, 1, example_inputs=X[:2]).eval()
    with torch.no_grad():
        wrapped.bank.log_alpha.uniform_(-1, 1)
    wrapped.set_masks({})
    assert far(call(wrapped, (X,)), call(net, (X,))) > 1e-2
    fxprune.refit(wrapped, X, progress=False)
    assert far(call(wrapped, (X,)), call(net, (X,))) <= 1e-8
    assert far(call(fxprune.export(wrapped), (X,)), call(net, (X,))) <= 1e-8
