"""Scatter-adds: the form follows how channels lie in memory; slim nets with them can be pruned again."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import fx, nn

import fxprune
from fxprune.gated.wrapped import Wrapped
from fxprune.slim.order import _rank
from tests.exactness import check_export, random_masks


class Stream(nn.Module):
    """Six layers add to one stream, so that its sets cannot all be contiguous."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 5, 3)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)) for _ in range(6)
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = self.relu(x + block(x))
        return self.head(x)


class Tokens(nn.Module):
    """The same with linear layers, whose channels are the last axis."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(3, width), nn.Linear(width, 5)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.head(x)


def example(net: nn.Module) -> torch.Tensor:
    sizes = (2, 7, 3) if isinstance(net, Tokens) else (2, 3, 8, 9)
    return torch.randn(sizes, dtype=torch.float64)


def hardened(net: nn.Module, x: torch.Tensor, seed: int) -> Wrapped:
    wrapped = fxprune.wrap(net.double().eval(), 1.0, example_inputs=x)
    return wrapped.set_masks(random_masks(wrapped, 0.5, torch.Generator().manual_seed(seed)))


def methods(slim: fx.GraphModule) -> set[str]:
    return {str(node.target) for node in slim.graph.nodes if node.op == "call_method"}


@pytest.mark.parametrize("last", [False, True])
def test_the_form_follows_the_memory_format(last: bool) -> None:
    torch.manual_seed(0)
    net = Stream().to(memory_format=torch.channels_last if last else torch.contiguous_format)
    slim = fxprune.export(hardened(net, example(net), 0))
    assert slim.report.joins["scatter"] >= 2
    assert ("scatter_add_" in methods(slim)) is last and ("index_add_" in methods(slim)) is not last
    assert slim.relu.inplace  # also behind a scatter-add
    assert "index_select" not in methods(slim)  # the order of channels makes every side one slice


@pytest.mark.parametrize("last", [False, True])
def test_streams_that_grow_keep_the_memory_format(last: bool) -> None:
    torch.manual_seed(0)
    memory = torch.channels_last if last else torch.contiguous_format
    net = Stream().to(memory_format=memory)
    slim = fxprune.export(hardened(net, example(net), 1)).to(memory_format=memory)
    grown: list[torch.Tensor] = []

    class Noted(fx.Interpreter):
        def run_node(self, n: fx.Node) -> object:
            made = super().run_node(n)
            grown.extend([made] if n.op == "call_module" or n.target in ("permute", torch.cat) else [])
            return made

    with torch.no_grad():
        Noted(slim).run(example(net).to(memory_format=memory))
    maps = [made for made in grown if made.shape[2:] == (8, 9)]
    assert torch.cat in {node.target for node in slim.graph.nodes}
    assert len(maps) > 12 and all(made.is_contiguous(memory_format=memory) for made in maps)
    assert ("permute" in methods(slim)) is last


class Shortcut(nn.Module):
    """A convolution of 1x1 that reads a stem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv, self.shortcut = nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(4, 6, 1)
        self.head = nn.Conv2d(6, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        return self.head(self.conv(x) + self.shortcut(x)).mean((2, 3))


def test_one_living_channel_keeps_the_memory_format() -> None:
    """A map of one channel lies alike in both formats: by its strides torch tells which it is."""
    torch.manual_seed(0)
    net = Shortcut().double().eval().to(memory_format=torch.channels_last)
    x = torch.randn(16, 3, 8, 9, dtype=torch.float64)  # on one thread torch has other layers for a small batch
    wrapped = fxprune.wrap(net, 1.0, example_inputs=x)
    masks = {name: torch.ones(len(gate), dtype=torch.bool) for name, gate in wrapped.gates.items()}
    slim = check_export(wrapped.set_masks({**masks, "stem": torch.arange(4) == 2}), [(x,)])
    made: list[torch.Tensor] = []
    for name in ("conv", "shortcut"):
        slim.get_submodule(name).register_forward_hook(lambda layer, args, out: made.append(out))
    copy.deepcopy(slim).float()(x.float())
    assert len(made) == 2 and not any(each.is_contiguous() for each in made)
    check_export(hardened(slim, x, 1), [(x,)])


def test_channels_at_the_end_are_scattered_there() -> None:
    torch.manual_seed(0)
    assert "scatter_add_" in methods(fxprune.export(hardened(Tokens(), example(Tokens()), 0)))


@pytest.mark.parametrize("kind", ["maps", "channels last", "tokens"])
@pytest.mark.parametrize("seed", range(3))
def test_exact_trained_and_pruned_again(kind: str, seed: int) -> None:
    torch.manual_seed(seed)
    net = Tokens() if kind == "tokens" else Stream()
    if kind == "channels last":
        net = net.to(memory_format=torch.channels_last)
    x = example(net)
    wrapped = hardened(net, x, seed)
    slim = check_export(wrapped, [(x,)])
    given = [x.clone().requires_grad_() for _ in range(2)]
    for each, inputs in zip((wrapped, slim), given, strict=True):
        each.eval()(inputs).square().sum().backward()
    torch.testing.assert_close(given[1].grad, given[0].grad)
    assert not fxprune.inspect(slim, x).freezes
    check_export(hardened(slim, x, seed + 1), [(x,)])


def test_three_writers_need_two_runs_at_most() -> None:
    """Whatever they write: sorted by rank, the first has one run, and so has the second; the third has two."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        sets = [(torch.rand(40, generator=generator) < 0.5).numpy() for _ in range(3)]
        rank = _rank(sets)
        for number, members in enumerate(sets):
            places = sorted(rank[members])
            runs = 1 + sum(b - a > 1 for a, b in itertools.pairwise(places))
            assert runs <= max(number, 1)


class Exchanged(nn.Module):
    """A sum over the last axis is read as it is, and with its axes exchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layers = nn.Linear(3, 24), nn.ModuleList(nn.Linear(24, 24) for _ in range(5))
        self.conv, self.head = nn.Conv1d(3, 24, 1), nn.Linear(24, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.stem(x)
        for layer in self.layers:
            tokens = tokens + layer(torch.relu(tokens))
        other = tokens.permute(0, 2, 1) + self.conv(x.permute(0, 2, 1))
        return self.head(torch.relu(other).permute(0, 2, 1)) + self.head(tokens)


@pytest.mark.parametrize("seed", range(4))
def test_a_sum_that_is_read_again_is_not_written_to(seed: int) -> None:
    torch.manual_seed(seed)
    wrapped = fxprune.wrap(Exchanged().double().eval(), 1 / 2, example_inputs=torch.randn(2, 5, 3).double())
    masks = {name: torch.rand(len(gate)) < 0.6 for name, gate in wrapped.gates.items()}
    report = fxprune.export(wrapped.set_masks({**masks, "conv": masks["layers.4"]})).report
    assert report.error < 1e-9 and "scatter" in report.joins
