"""The hardened net as plain torch computes exactly what the wrapped one computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxprune
from fxprune.errors import OptionError
from fxprune.gated.gates_as_constants import frozen
from tests.exactness import call, check_plain, error
from tests.models import ZOO, leaves
from tests.save.artefact_nets import FOREIGN, RECORDS, hardened


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("density", [0.6, 0.2])
def test_same_outputs(name: str, density: float, tmp_path: Path) -> None:
    wrapped, example, others = hardened(name, density)
    made = frozen(wrapped)
    for given in [example, *others]:
        assert error(call(made, given), call(wrapped, given)) == 0
    if name in FOREIGN:
        return
    check_plain(made)
    loaded = fxprune.load(fxprune.save(made, tmp_path / "hardened"))
    expected, found = call(wrapped, example), call(loaded, example)
    if name in RECORDS:
        assert all(torch.equal(a, b) for a, b in zip(leaves(found), leaves(expected), strict=True))
    else:
        assert error(found, expected) == 0


def test_it_is_a_copy_under_the_same_name() -> None:
    wrapped, example, _ = hardened("parametrized")
    before = call(wrapped, example)
    made = frozen(wrapped)
    assert type(made).__name__ == type(wrapped).__name__
    with torch.no_grad():
        for tensor in (*made.parameters(), *made.buffers()):
            tensor.zero_()
    assert error(call(wrapped, example), before) == 0


@pytest.mark.parametrize("make", [nn.utils.weight_norm, nn.utils.spectral_norm])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weights_that_hooks_compute(make: Any, tmp_path: Path) -> None:
    x = torch.randn(2, 3, 4, 4)
    net = nn.Sequential(make(nn.Conv2d(3, 8, 1)), nn.ReLU(), make(nn.Conv2d(8, 4, 1)))
    wrapped = fxprune.wrap(net, 1 / 2, example_inputs=x).harden()
    wrapped(x).sum().backward()  # leaves tensors of autograd behind
    names, expected = list(wrapped.state_dict()), call(wrapped.eval(), (x,))
    loaded = fxprune.load(fxprune.save(frozen(wrapped), tmp_path / "hardened"))
    assert error(call(loaded, (x,)), expected) == 0
    assert list(wrapped.state_dict()) == names and error(call(wrapped, (x,)), expected) == 0


def test_several_types_and_a_node_called_like_a_method() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1).double()
            self.zero = nn.ModuleDict({"grad": nn.BatchNorm2d(8).double()})
            self.c = nn.Conv2d(8, 4, 1).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(self.zero["grad"](self.b(self.a(x).double())).sigmoid())

    x = torch.randn(2, 3, 4, 4)
    wrapped = fxprune.wrap(Net(), 1 / 2, example_inputs=x).eval().harden()
    assert error(call(frozen(wrapped), (x,)), call(wrapped, (x,))) == 0


def test_gates_must_be_decided() -> None:
    wrapped = fxprune.wrap(nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2, 1)), 1 / 2)
    with pytest.raises(OptionError, match="harden"):
        frozen(wrapped)
