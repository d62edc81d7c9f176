"""Who lives, by a few sums on the device, is who lives by the id table; guards are what keeps the way short."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fxprune.analysis.guards import Sure
from fxprune.gated.circuit import Circuit, Folded
from tests.exactness import prepared
from tests.models import ZOO

OPENED = (0.0, 0.05, 0.2, 0.5, 0.9, 1.0)


@pytest.mark.parametrize("name", ZOO)
def test_it_is_the_logic_of_the_id_table(name: str) -> None:
    analysis = prepared(name)[1].analysis
    table, variables = analysis.channels.table, analysis.variables
    nothing, wanted = Sure(*np.zeros((2, table.size), dtype=bool)), np.arange(table.size)
    short, long = (Circuit(Folded(table, variables, sure), wanted) for sure in (analysis.sure, nothing))
    assert short.depth <= long.depth
    generator = np.random.default_rng(0)
    for share in OPENED:
        mask = generator.random(variables) < share
        held = analysis.guards.hold(mask, generator.random(variables))
        for circuit, opened in ((short, held), (long, mask)):
            alive = analysis.costs.logic.alive(opened[:, None])[:, 0]
            assert np.array_equal(circuit(torch.from_numpy(opened)).numpy(), alive)
        assert analysis.costs.logic.alive(held[:, None])[analysis.sure.alive].all()


@pytest.mark.parametrize("name", ZOO)
def test_masks_of_training_are_those_of_the_table(name: str) -> None:
    """Whatever is drawn, a site that masks lets through what lives, and nothing else."""
    _, wrapped, example, _ = prepared(name)
    bank, logic = wrapped.bank, wrapped.analysis.costs.logic
    before = bank.log_alpha.detach().clone()
    masks = [number for number, site in enumerate(bank.sites) if site.gate is None]
    bank.train()
    try:
        with torch.no_grad():
            bank.log_alpha.uniform_(-4, 1)
            torch.manual_seed(0)
            drawn = bank._draw(None)
            torch.manual_seed(0)
            found = bank(next(iter(example.values())) if isinstance(example, dict) else example[0])
        alive = logic.alive((drawn != 0).numpy()[:, None])[:, 0]
        for number in masks:
            assert np.array_equal((found[number] != 0).numpy().reshape(-1), alive[bank.sites[number].ids].reshape(-1))
    finally:
        bank.eval()
        with torch.no_grad():
            bank.log_alpha.copy_(before)
