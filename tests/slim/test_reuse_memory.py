"""Which joins write to their operand, and that nobody can tell."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxprune
from fxprune.gated.wrapped import Wrapped
from fxprune.rules.operands import ADD_TO

Masks = dict[str, list[int]]


class Block(nn.Module):
    """Two branches meet; ``shared`` reads one of them again."""

    def __init__(self, *, shared: bool = False, activation: bool = False) -> None:
        super().__init__()
        self.one, self.other, self.last = (nn.Conv2d(3 if n < 2 else 6, 6, 3, padding=1) for n in range(3))
        self.norm, self.relu = nn.BatchNorm2d(6), nn.ReLU(inplace=True)
        self.shared, self.activation = shared, activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, z = self.norm(self.one(x)), self.other(x)
        if self.activation:
            y, z = torch.tanh(y), torch.tanh(z)
        total = self.relu(y + z)
        return self.last(total + y.exp() if self.shared else total).mean(1)


def pruned(net: nn.Module, masks: Masks) -> Wrapped:
    example = torch.zeros(1, 3, 6, 7, dtype=next(net.parameters()).dtype)
    wrapped = fxprune.wrap(net.eval(), 0.5, example_inputs=example)
    return wrapped.set_masks({name: torch.isin(torch.arange(6), torch.tensor(kept)) for name, kept in masks.items()})


def exported(net: nn.Module, masks: Masks) -> torch.fx.GraphModule:
    return fxprune.export(pruned(net, masks))


def ops(slim: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in slim.graph.nodes if node.op == "call_method" or node.target is ADD_TO]


EQUAL: Masks = {"one": [0, 1, 2], "other": [0, 1, 2]}
NESTED: Masks = {"one": [0, 1, 2, 3], "other": [1, 2]}
OVERLAPPING: Masks = {"one": [0, 1, 2], "other": [2, 3]}
DISJOINT: Masks = {"one": [0, 1, 2], "other": [3, 4]}


def test_a_sum_of_equal_sets_is_written_to_one_of_them() -> None:
    assert "add_" in ops(exported(Block(), EQUAL))
    assert exported(Block(), EQUAL).relu.inplace


def test_a_slice_is_added_in_place_without_a_copy() -> None:
    slim = exported(Block(), NESTED)
    assert str(ADD_TO) in ops(slim) and "clone" not in ops(slim)


def test_new_channels_are_appended_first() -> None:
    slim = exported(Block(), OVERLAPPING)
    assert str(ADD_TO) in ops(slim) and "clone" not in ops(slim)
    assert slim.report.joins == {"slice": 1}
    assert exported(Block(), DISJOINT).report.joins == {"concat": 1}


def test_what_others_read_is_copied() -> None:
    assert "clone" in ops(exported(Block(shared=True), NESTED))
    slim = exported(Block(shared=True), EQUAL)
    assert "add_" in ops(slim)  # to the other operand
    assert slim.graph.find_nodes(op="call_method", target="add_")[0].args[0].target == "other"


def test_what_gradients_need_is_copied() -> None:
    """tanh computes its gradient from its result."""
    assert "clone" in ops(exported(Block(activation=True), NESTED))
    assert "add_" not in ops(exported(Block(activation=True), EQUAL))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("activation", [False, True])
@pytest.mark.parametrize("masks", [EQUAL, NESTED, OVERLAPPING, DISJOINT])
def test_gradients_are_those_of_the_wrapped_net(shared: bool, activation: bool, masks: Masks) -> None:
    torch.manual_seed(0)
    net = Block(shared=shared, activation=activation).double()
    wrapped = pruned(net, masks)
    slim = fxprune.export(wrapped)
    x = torch.randn(2, 3, 6, 7, dtype=torch.float64)
    gradients = []
    for each in (wrapped, slim, copy.deepcopy(slim)):
        given = x.clone().requires_grad_()
        each(given).square().sum().backward()
        gradients.append(given.grad)
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0])


def test_dead_code_elimination_of_torch_fx_keeps_the_joins() -> None:
    torch.manual_seed(0)
    slim = exported(Block(), NESTED)
    x = torch.randn(2, 3, 6, 7)
    expected = slim(x)
    slim.graph.eliminate_dead_code()
    slim.recompile()
    torch.testing.assert_close(slim(x), expected, rtol=0, atol=0)
