"""Every method decides on every net of the zoo, and what it changes about the weights stays exact after export."""

from __future__ import annotations

import copy

import pytest
import torch

import fxprune
from fxprune.errors import FxPruneError
from fxprune.methods import make_method
from tests.exactness import call, error, prepared
from tests.models import DIFFERENT, ZOO

DECIDING = ("vq", "id", "morphnet", "ib", "wm")
# Each net has one of the methods, and one that differs from the others has all of them; with -m fuzz, all have all.
PAIRS = [
    pytest.param(name, method, marks=() if name in DIFFERENT or method == DECIDING[number % 5] else pytest.mark.fuzz)
    for number, name in enumerate(ZOO)
    for method in DECIDING
]


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_methods_decide(name: str, method: str) -> None:
    torch.manual_seed(0)
    _, fresh, inputs, _ = prepared(name, 0.6)
    net = copy.deepcopy(fresh)
    if not net.gates:
        pytest.skip("nothing to decide")
    made = make_method(method, net, {})
    try:
        net.harden()
    except FxPruneError:
        pytest.skip("the budget cannot be met")
    net.bank.soften()
    made.advance(0.0)
    penalty = made.penalty()
    assert penalty is None or bool(torch.isfinite(penalty))
    made.decide()
    slim = fxprune.export(net.eval(), verify=False)
    assert error(call(slim, inputs), call(net, inputs)) <= 1e-9
