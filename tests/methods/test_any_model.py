"""Every method decides on every net of the zoo, and what it changes about the weights stays exact after export."""

from __future__ import annotations

import copy

import pytest
import torch

import fxprune
from fxprune.errors import FxPruneError
from fxprune.methods import make_method
from tests.exactness import call, error, prepared
from tests.models import ZOO


@pytest.mark.parametrize("method", ["vq", "id", "morphnet", "ib", "wm"])
@pytest.mark.parametrize("name", sorted(ZOO))
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
