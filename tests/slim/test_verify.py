"""A graph that computes something else than its model is refused before anything is trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxprune
from fxprune.errors import TraceError

X = torch.zeros(2, 3, 6, 6)


class Looks(nn.Module):
    """At what no tracer can know."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        if type(x) is torch.Tensor:
            x = x + 1
        return self.head(x)


class Behind(Looks):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.head(self.conv(x))
        return x * 2 if type(x) is torch.Tensor else x


def test_the_first_layer_that_differs_is_named() -> None:
    said = r"something else than the model, from 'head' on\n  at:  .*test_verify.py:\d+"
    with pytest.raises(TraceError, match=said):
        fxprune.wrap(Looks(), 1 / 2, example_inputs=X)
    with pytest.raises(TraceError, match="behind all of its layers"):
        fxprune.wrap(Behind(), 1 / 2, example_inputs=X)
    fxprune.wrap(Looks(), 1 / 2, example_inputs=X, verify=False)


def test_without_an_example_the_first_forward_pass_is_compared() -> None:
    for net, agrees in ((Looks(), False), (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), True)):
        wrapped = fxprune.wrap(net, 1 / 2)
        if agrees:
            assert torch.equal(wrapped.train()(X), net.train()(X))
            assert wrapped.training
            assert wrapped.get_submodule("1").num_batches_tracked == 1  # the comparison leaves no trace
        else:
            with pytest.raises(TraceError, match="something else than the model"):
                wrapped(X)
            fxprune.wrap(net, 1 / 2, verify=False)(X)


def test_a_leaf_mends_it() -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 1), Looks())
    wrapped = fxprune.wrap(net, 0.9, example_inputs=X, leaf=["1"]).eval()
    x = torch.randn(2, 3, 6, 6)
    torch.testing.assert_close(wrapped(x), net.eval()(x))


class Range(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_meta and x.max() > 1:
            raise ValueError("pictures are between 0 and 1")
        return x


def test_a_model_that_refuses_noise_is_compared_on_the_example() -> None:
    net = nn.Sequential(Range(), Looks())
    with pytest.raises(TraceError, match=r"from '1\.head' on"):
        fxprune.wrap(net, 1 / 2, example_inputs=X, leaf=["0"])


class Writes(Looks):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.sub_(1)
        return super().forward(x)


def test_inputs_that_are_written_to_are_compared_all_the_same() -> None:
    with pytest.raises(TraceError, match="from 'head' on"):
        fxprune.wrap(Writes(), 1 / 2, example_inputs=X)


class Draws(Looks):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x) * torch.rand_like(x[:, :1, :4, :4]))


class Counts(Looks):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.head(self.conv(x)) * self.calls


class Chance(Looks):
    """Differs from itself, whatever the seed."""

    times = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Chance.times += 1
        return self.head(self.conv(x)) * Chance.times


class Logarithm(Looks):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x.log()))


class Picky(Looks):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x)) / (x.abs().sum() == 0)  # no number for noise


@pytest.mark.parametrize("kind", [Draws, Chance, Logarithm, Picky])
def test_nobody_is_refused_for_what_is_no_difference(kind: type[nn.Module]) -> None:
    net = kind().train()
    wrapped = fxprune.wrap(net, 1 / 2, example_inputs=X)
    assert wrapped.training and net.training


def test_nothing_is_changed() -> None:
    """Neither the random numbers nor what a wrapped net holds."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(), nn.Conv2d(8, 2, 1))
    before = torch.random.get_rng_state()
    wrapped = fxprune.wrap(net, 1 / 2, example_inputs=X)
    assert torch.equal(before, torch.random.get_rng_state())
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(wrapped.state_dict()[name], tensor, rtol=0, atol=0)
    calls = []
    for verify in (False, True):  # a hook of the user's may do anything
        seen: list[int] = []
        handle = net[0].register_forward_hook(lambda *_, seen=seen: seen.append(1))
        fxprune.wrap(net, 1 / 2, example_inputs=X, verify=verify)
        handle.remove()
        calls.append(len(seen))
    assert calls[0] == calls[1]


def test_what_forward_counts_is_put_back() -> None:
    assert fxprune.wrap(Counts(), 1 / 2, example_inputs=X).state_dict()["calls"] == 0
