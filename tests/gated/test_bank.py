"""Gates while training: hard-concrete draws, and batch norms that take them in."""

from __future__ import annotations

import copy
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

import fxprune
from fxprune.gated.bank import BETA, CLOSED_AT, GAMMA, ZETA, gated_norm, mean_gate, probability, sampled_gate
from fxprune.gated.names import BANK
from tests.models import ZOO


def test_draws_have_the_hard_concrete_distribution() -> None:
    log_alpha = torch.tensor([-3.0, CLOSED_AT, 0.0, 1.0, 3.0], dtype=torch.float64)
    drawn = sampled_gate(log_alpha, 200_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close((drawn > 0).double().mean(0), probability(log_alpha), rtol=0, atol=5e-3)
    ones = torch.sigmoid(log_alpha - BETA * math.log((1 - GAMMA) / (ZETA - 1)))
    torch.testing.assert_close((drawn == 1).double().mean(0), ones, rtol=0, atol=5e-3)
    torch.testing.assert_close(drawn.median(0).values, mean_gate(log_alpha), rtol=0, atol=1e-2)


def test_a_gate_is_closed_up_to_the_threshold() -> None:
    beside = torch.tensor([CLOSED_AT - 1e-6, CLOSED_AT + 1e-6], dtype=torch.float64)
    assert mean_gate(beside)[0] == 0 < mean_gate(beside)[1]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d])
@pytest.mark.parametrize("settings", [{}, {"momentum": None}, {"track_running_stats": False}])
def test_a_gated_norm_is_a_norm_and_a_multiply(kind: type[nn.Module], settings: dict, training: bool) -> None:
    torch.manual_seed(0)
    plain = kind(4, **settings).double().train(training)
    nn.init.normal_(plain.weight), nn.init.normal_(plain.bias)
    shared = copy.deepcopy(plain)
    gated = gated_norm(shared)
    axes = {nn.BatchNorm1d: 0, nn.BatchNorm2d: 2, nn.BatchNorm3d: 3}[kind]
    gate = torch.rand(4, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        x = torch.randn(6, 4, *(3,) * axes, dtype=torch.float64)
        expected = plain(x) * gate.reshape(-1, *(1,) * axes) if axes else plain(x) * gate
        torch.testing.assert_close(gated(x, gate), expected)
    for one, other in zip(plain.buffers(), shared.buffers(), strict=True):
        torch.testing.assert_close(one, other)
    assert isinstance(gated, kind) and gated.weight is shared.weight
    per_sample = torch.rand(6, 4, *(1,) * axes, dtype=torch.float64)
    torch.testing.assert_close(gated(x, per_sample), plain(x) * per_sample)


@pytest.mark.parametrize("name", ["resnet", "preactivation", "densenet", "recurrent", "resnext", "squeeze_excite"])
def test_a_net_in_training_draws_its_gates(name: str) -> None:
    model, example, _ = ZOO[name]()
    wrapped = fxprune.wrap(model, 0.5, example_inputs=example).train()
    for module in wrapped.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()  # so that gates are all that is random
    with torch.no_grad():
        wrapped.bank.log_alpha.uniform_(-2, 2, generator=torch.Generator().manual_seed(0))
    wrapped.bank.generator = torch.Generator().manual_seed(1)
    state = wrapped.bank.generator.get_state()
    first, second = wrapped(*example), wrapped(*example)
    assert not torch.equal(first, second)
    wrapped.bank.generator.set_state(state)
    assert torch.equal(wrapped(*example), first)
    wrapped.bank.noise = "sample"
    doubled = wrapped(*(torch.cat([x, x]) for x in example))
    assert not torch.allclose(doubled[: len(first)], doubled[len(first) :])
    wrapped.bank.eval()
    torch.testing.assert_close(wrapped(*example), wrapped(*example))
    wrapped.bank.train()
    wrapped.bank.noise = "batch"
    wrapped.set_masks({})
    torch.testing.assert_close(wrapped(*example), wrapped(*example), rtol=0, atol=0)


COMPILED = ("resnet", "preactivation", "shufflenet_v2", "squeeze_excite", "uneven_groups")
BOTH = ("resnet", "uneven_groups")  # the others draw for each sample with -m fuzz


@pytest.mark.parametrize(("name", "noise"), [
    *((name, "batch") for name in COMPILED),
    *(pytest.param(name, "sample", marks=() if name in BOTH else pytest.mark.fuzz) for name in COMPILED),
])  # fmt: skip
def test_a_training_step_compiles_into_one_graph(name: str, noise: str) -> None:
    model, example, _ = ZOO[name]()
    wrapped = fxprune.wrap(model, 0.5, example_inputs=example).train()
    wrapped.bank.noise = noise
    with torch.no_grad():
        wrapped.bank.log_alpha.uniform_(-2, 2, generator=torch.Generator().manual_seed(0))
    torch._dynamo.reset()
    compiled = torch.compile(wrapped, backend="aot_eager", fullgraph=True)
    found = []
    for net in (wrapped, compiled):
        wrapped.zero_grad()
        torch.manual_seed(1)
        output = net(*example)
        output.square().mean().backward()
        found.append((output, *(p.grad for p in wrapped.parameters() if p.grad is not None)))
    torch.testing.assert_close(found[0], found[1])


def test_wrapping_leaves_torch_as_compilers_know_it() -> None:
    """A compiler that is imported while torch's functions are being recorded would not know them afterwards."""
    code = """
import torch, fxprune
fxprune.wrap(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 1)), 0.5,
             example_inputs=torch.zeros(1, 3, 4, 4))
torch.compile(lambda x: x + torch.zeros(2) + torch.rand(2), backend="eager", fullgraph=True)(torch.ones(2))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_gates_get_gradients_from_the_data() -> None:
    model, example, _ = ZOO["resnet"]()
    wrapped = fxprune.wrap(model, 0.5, example_inputs=example).train()
    with torch.no_grad():
        wrapped.bank.log_alpha.fill_(0.0)
    wrapped(*example).square().sum().backward()
    assert bool((wrapped.bank.log_alpha.grad != 0).float().mean() > 0.5)


def test_masks_that_are_loaded_hold_the_guards() -> None:
    """Those of a version with other guards may not, and the forward pass takes for granted what guards keep."""
    model, example, _ = ZOO["resnet"]()
    wrapped = fxprune.wrap(model, 0.5, example_inputs=example).set_masks({})
    state = wrapped.state_dict()
    state[f"{BANK}.hard"] = torch.zeros_like(wrapped.bank.hard)
    wrapped.load_state_dict(state)
    assert wrapped.analysis.guards.held(wrapped.masks())
    torch.testing.assert_close(fxprune.export(wrapped)(*example), wrapped(*example))


def test_original_checkpoints_still_load() -> None:
    model, example, _ = ZOO["resnet"]()
    wrapped = fxprune.wrap(model, 0.5, example_inputs=example)
    found = wrapped.load_state_dict(model.state_dict(), strict=False)
    assert not found.unexpected_keys
    assert all(key.startswith("fxprune") for key in found.missing_keys)
