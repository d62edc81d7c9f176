"""What a net costs is what others count: torch's flop counter, the sizes of parameters, and hooks for the volume.

On every net of the zoo, unpruned and on budget. Under random masks: tests/test_exact.py, which exports under them.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fxprune
from fxprune.api import export
from tests.exactness import flops_of, params_of, prepared
from tests.models import ZOO
from tests.save.artefact_nets import hardened

METRICS = ("volume", "flops", "params")
nets = pytest.mark.parametrize("name", ZOO)


@nets
def test_unpruned(name: str) -> None:
    model, wrapped, example, _ = prepared(name)
    full = wrapped.full_cost()
    assert full.params == params_of(model)
    assert full.flops == flops_of(model, example) or name == "encodes_and_decodes"


@nets
def test_expected(name: str) -> None:
    """The expectation of a mask is its cost."""
    wrapped, _, _ = hardened(name, 0.5)
    costs, mask = wrapped.analysis.costs, wrapped.masks()
    expected, exact = costs.expected(torch.from_numpy(mask).double()), costs.exact(np.stack([mask, ~mask], 1))
    for metric in METRICS:
        assert float(expected[metric]) == pytest.approx(exact[metric][0])


@nets
@pytest.mark.parametrize("metric", ["flops", "params"])
def test_on_budget(name: str, metric: str) -> None:
    """A quarter is at most a quarter, of everything; and nearly a quarter, if gates are small beside it."""
    model, wrapped, example, _ = prepared(name)
    full, smallest = wrapped.full_cost()[metric], wrapped.analysis.costs.exact(wrapped.analysis.smallest)[metric]
    budget = max(1 / 4, 1.2 * smallest / full)
    if budget >= 1:
        pytest.skip("nothing to prune")
    net = fxprune.wrap(model, budget, metric=metric, example_inputs=example, verify=False)
    generator = np.random.default_rng(0)
    slim = export(net.harden({name: generator.random(len(gate)) for name, gate in net.gates.items()}), verify=False)
    counted = {"flops": flops_of(slim, example), "params": params_of(slim)}[metric]
    assert net.cost()[metric] <= budget * full
    assert counted <= budget * full
