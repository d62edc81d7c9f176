"""For every net of the zoo and every mask: the slim net computes what the wrapped one computes.

Blocks made regular and slim nets pruned again: on nets that differ in structure, and with ``-m fuzz`` on all others.
"""

from __future__ import annotations

import copy
import io
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

from fxprune.api import export, wrap
from fxprune.gated.wrapped import Wrapped
from tests.exactness import TOLERANCE, call, check_export, error, prepared, random_gates, random_masks
from tests.gates import check_gates
from tests.models import DIFFERENT, ZOO, Case, leaves, randomise

DENSITIES = (1.0, 0.7, 0.4, 0.1, 0.0)
different = pytest.mark.parametrize(
    "case", [pytest.param(name, marks=() if name in DIFFERENT else pytest.mark.fuzz) for name in ZOO], indirect=True
)


@pytest.fixture(params=list(ZOO), scope="module")  # all tests of a net in a row, in the process that wrapped it
def case(request: pytest.FixtureRequest) -> Case:
    return ZOO[request.param]


def hardened(name: str, density: float, seed: int) -> Wrapped:
    generator = torch.Generator().manual_seed(seed)
    wrapped = copy.deepcopy(prepared(name)[1])
    random_gates(wrapped, generator)
    return wrapped.set_masks(random_masks(wrapped, density, generator))


def usable(case: Case, others: list[Any]) -> list[Any]:
    return [] if case.branches else others


def test_the_nets_depend_on_their_input(case: Case) -> None:
    model, example, others = case()
    _, other_example, _ = case(seed=7)
    for one, other in zip(leaves(call(model, example)), leaves(call(model, other_example)), strict=True):
        assert float((one - other).abs().max()) > 1e-3
        assert one.numel() == one.unique().numel() or float(one.std()) > 1e-3
    for given in others:
        assert leaves(call(model, given))


def test_fresh(case: Case) -> None:
    """A freshly wrapped net, hardened or not, computes what the original computes, at every size."""
    model, wrapped, example, others = prepared(case.name)
    for given in [example, *usable(case, others)]:
        expected = call(model, given)
        assert error(call(wrapped, given), expected) <= 1e-12
        assert error(call(wrapped.unwrap(), given), expected) <= 1e-12
    full = copy.deepcopy(wrapped).set_masks({})
    assert full.cost() == wrapped.cost()  # of parameters that are shared or computed the slim net has more than one
    assert replace(full.cost(), params=0) == replace(wrapped.full_cost(), params=0)
    check_export(full, [example, *usable(case, others)])
    assert error(call(export(full), example), call(model, example)) <= TOLERANCE


@pytest.mark.parametrize("density", DENSITIES)
def test_exact(case: Case, density: float) -> None:
    _, _, example, others = prepared(case.name)
    check_export(hardened(case.name, density, seed=int(100 * density) + 1), [example, *usable(case, others)])


@pytest.mark.parametrize("seed", range(3))
def test_exact_again(case: Case, seed: int) -> None:
    """Other random masks, a density per layer. From here on export does not compare once more what is compared here."""
    _, _, example, others = prepared(case.name)
    generator = torch.Generator().manual_seed(1000 + seed)
    wrapped = copy.deepcopy(prepared(case.name)[1])
    random_gates(wrapped, generator)
    masks = {
        name: torch.rand(len(gate), generator=generator) < torch.rand((), generator=generator)
        for name, gate in wrapped.gates.items()
    }
    check_export(wrapped.set_masks(masks), [example, *usable(case, others)], verify=False)


@different
@pytest.mark.parametrize("connectivity", ["dense", "auto"])
@pytest.mark.parametrize("density", [0.6, 0.3])
def test_exact_with_regular_blocks(case: Case, connectivity: str, density: float) -> None:
    _, _, example, others = prepared(case.name)
    wrapped = hardened(case.name, density, seed=int(100 * density) + 2)
    slim = check_export(wrapped, [example, *usable(case, others)], connectivity, verify=False)
    assert slim.report.after["volume"] >= wrapped.cost().volume
    if connectivity == "dense" and case.name in ("resnet", "preactivation", "mobilenet"):
        assert set(slim.report.joins) <= {"plain", "through"}


def test_exact_single_layers(case: Case) -> None:
    """One layer closed as far as possible, all others open."""
    _, _, example, _ = prepared(case.name)
    wrapped = copy.deepcopy(prepared(case.name)[1])
    random_gates(wrapped, torch.Generator().manual_seed(3))
    for name, gate in wrapped.gates.items():
        try:
            closed = wrapped.set_masks({name: torch.zeros(len(gate), dtype=torch.bool)})
            check_export(closed, [example], verify=False)
        except AssertionError as problem:
            raise AssertionError(f"{name} closed: {problem}") from problem


def test_copies(case: Case) -> None:
    """state_dict, deepcopy and pickle keep what a net computes."""
    model, _, example, _ = prepared(case.name)
    wrapped = hardened(case.name, 0.5, seed=11)
    expected = call(wrapped, example)
    assert error(call(copy.deepcopy(wrapped), example), expected) == 0
    other = wrap(case(seed=5)[0], 0.5, example_inputs=example, verify=False)
    assert error(call(other, example), expected) > 1e-6
    other.load_state_dict(wrapped.state_dict())
    assert error(call(other, example), expected) == 0
    assert other.cost() == wrapped.cost()
    missing = wrapped.load_state_dict(model.state_dict(), strict=False)
    assert not missing.unexpected_keys
    assert all(key.startswith("fxprune") for key in missing.missing_keys)
    if case.pickles:
        again = pickle.loads(pickle.dumps(wrapped))
        assert error(call(again, example), expected) == 0
        assert again.cost() == wrapped.cost()
        check_export(again, [example], verify=False)


def test_slim_copies(case: Case) -> None:
    """A slim net is an ordinary module: its state loads into a copy, it pickles, its parameters can be trained."""
    _, _, example, _ = prepared(case.name)
    slim = export(hardened(case.name, 0.5, seed=12))
    expected = call(slim, example)
    other = copy.deepcopy(slim)
    randomise(other, torch.Generator().manual_seed(1))
    other.load_state_dict(slim.state_dict())
    assert error(call(other, example), expected) == 0
    file = io.BytesIO()
    torch.save(slim.state_dict(), file)
    if case.pickles:
        assert error(call(pickle.loads(pickle.dumps(slim)), example), expected) == 0
    outputs = leaves(slim(**example) if isinstance(example, dict) else slim(*example))
    sum(output.square().sum() for output in outputs if output.requires_grad).backward()  # type: ignore[union-attr]
    assert all(p.grad is not None for p in slim.parameters() if p.requires_grad)


def test_freezes_gates_and_leaves(case: Case) -> None:
    model, wrapped, _, _ = prepared(case.name)
    channels = wrapped.analysis.channels
    assert bool(channels.trace.leaves) == case.leaf
    check_gates(model, wrapped.analysis, case.frozen, case.gates)


def test_original_is_untouched(case: Case) -> None:
    model, example, _ = case()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = call(model, example)
    wrapped = wrap(model, 0.5, example_inputs=example)
    random_gates(wrapped, torch.Generator().manual_seed(0))
    export(wrapped.set_masks(random_masks(wrapped, 0.5, torch.Generator().manual_seed(0))))
    assert error(call(model, example), expected) == 0
    assert list(before) == list(model.state_dict())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_wrapped_in_training_mode() -> None:
    """Wrapping or exporting a net in training mode changes nothing about its eval mode."""
    for name in ("preactivation", "functional_norm", "stochastic_depth", "vgg"):
        model, example, _ = ZOO[name]()
        wrapped = wrap(model.train(), 0.5, example_inputs=example)
        assert wrapped.training
        wrapped.set_masks(random_masks(wrapped, 0.5, torch.Generator().manual_seed(0)))
        slim = export(wrapped)
        assert slim.training
        assert error(call(slim.eval(), example), call(wrapped.eval(), example)) <= TOLERANCE


@pytest.mark.parametrize("density", [None, 1.0, 0.5])
def test_specialised_branch_raises(density: float | None) -> None:
    """A Python branch that would go the other way raises; where it goes the same way the net is exact."""
    model, wrapped, example, (same, different) = prepared("branch_on_size")
    if density is not None:
        wrapped = hardened("branch_on_size", density, seed=1)
        check_export(wrapped, [example, same])
        with pytest.raises(AssertionError):
            call(export(wrapped), different)
    else:
        assert error(call(wrapped, same), call(model, same)) <= 1e-12
    with pytest.raises(AssertionError):
        call(wrapped, different)


# -------------------------------------------------------------------- mutations: the tests above can fail


def without_masks(wrapped: Wrapped) -> Wrapped:
    """The wrapped net without its liveness masks."""
    blind = copy.deepcopy(wrapped)
    gates = sum(blind.bank.sizes[:2])  # what is multiplied comes first
    assert sum(blind.bank.sizes) > gates

    def let_through(opened: torch.Tensor) -> torch.Tensor:
        alive = wrapped.bank.living(opened)
        return torch.cat([alive[:gates], torch.ones_like(alive[gates:])])

    blind.bank.living = let_through
    return blind


@pytest.mark.parametrize(
    "name", ["preactivation", "odd_activations", "densenet", "shufflenet_v2", "exponentials", "parameters"]
)
def test_masks_are_needed(name: str) -> None:
    wrapped = hardened(name, 0.4, seed=2)
    example = prepared(name)[2]
    assert error(call(export(wrapped), example), call(wrapped, example)) <= TOLERANCE
    assert error(call(without_masks(wrapped), example), call(wrapped, example)) > 1e-3


def test_a_lost_gate_is_noticed(case: Case) -> None:
    model, wrapped, _, _ = prepared(case.name)
    layers = wrapped.analysis.layers
    for number, layer in enumerate(layers):
        for instead in ([replace(layer, units=())], []) if layer.gated else ():
            left = (*layers[:number], *instead, *layers[number + 1 :])
            with pytest.raises(AssertionError, match=f"gates of {layer.name}: "):
                check_gates(model, replace(wrapped.analysis, layers=left), case.frozen, case.gates)


def test_gates_are_needed(case: Case) -> None:
    """Masks change what a net computes, and so do gate values."""
    model, fresh, example, _ = prepared(case.name)
    if len(fresh.gates) == 0:
        pytest.skip("no gate, as the case declares")
    assert error(call(hardened(case.name, 1.0, seed=2), example), call(model, example)) > 1e-6
    masked = copy.deepcopy(fresh)
    masked.set_masks(random_masks(masked, 0.5, torch.Generator().manual_seed(1)))
    assert error(call(masked, example), call(model, example)) > 1e-6


def test_index_buffers_are_needed() -> None:
    """Permuting any index of a slim net changes what it computes."""
    seen = 0
    for name in ("resnet", "densenet", "option_a", "shufflenet_v1", "res2net", "gated_tanh"):
        example = prepared(name)[2]
        for seed in range(4):
            slim = export(hardened(name, 0.5, seed=seed))
            expected = call(slim, example)
            for path, buffer in list(slim.named_buffers()):
                if buffer.dtype != torch.int64 or buffer.ndim != 1 or buffer.unique().numel() < 2:
                    continue
                kept = buffer.clone()
                buffer.copy_(buffer.roll(1))
                assert error(call(slim, example), expected) > 1e-6, f"{name}: {path}"
                buffer.copy_(kept)
                seen += 1
            assert error(call(slim, example), expected) == 0
    assert seen >= 5


@different
@pytest.mark.parametrize("density", [0.7, 0.5])
def test_pruned_again(case: Case, density: float) -> None:
    """A slim net is wrapped, pruned and exported like any other."""
    _, _, example, others = prepared(case.name)
    slim = export(hardened(case.name, density, seed=21))
    again = wrap(slim, 0.5, example_inputs=example)
    assert error(call(again, example), call(slim, example)) <= 1e-12
    generator = torch.Generator().manual_seed(4)
    random_gates(again, generator)
    check_export(again.set_masks(random_masks(again, 0.5, generator)), [example, *usable(case, others)])
