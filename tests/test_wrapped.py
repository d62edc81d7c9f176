"""The wrapped net as a user meets it: names, checkpoints, masks and options of all kinds, wrong ones too."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fxprune
from fxprune.errors import FxPruneError, ModelError, OptionError
from fxprune.gated.gates_as_constants import frozen
from fxprune.gated.wrapped import Wrapped

IMAGE = torch.zeros(1, 3, 8, 8)


def chain() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.Conv2d(6, 4, 1))


@pytest.fixture
def wrapped() -> Wrapped:
    return fxprune.wrap(chain(), 0.6, example_inputs=IMAGE)


# ---------------------------------------------------------------- names


class Named(nn.Module):
    def __init__(self, name: str, *, loose: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2, 1)
        self.name = name
        setattr(self, name, nn.Parameter(torch.ones(1, 8, 1, 1)) if loose else nn.Conv2d(8, 8, 1))
        self.loose = loose

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held, x = getattr(self, self.name), self.first(x)
        return self.last(x * held if self.loose else held(x))


TAKEN = ("gates", "target", "bank", "cost", "masks", "options", "hardened", "analysis", "report", "graph", "code",
         "meta", "_gated", "_gates", "_analysis", "_first_forward")  # fmt: skip


@pytest.mark.parametrize("loose", [False, True])
@pytest.mark.parametrize("name", TAKEN)
def test_a_name_that_a_wrapped_net_needs_is_refused(name: str, loose: bool) -> None:
    with pytest.raises(ModelError, match=f"{name!r}.*\n.*fix: rename it"):
        fxprune.wrap(Named(name, loose=loose), 0.6, example_inputs=IMAGE)


def test_a_hardened_net_has_its_gates_already(wrapped: Wrapped, tmp_path: Path) -> None:
    hardened = fxprune.load(fxprune.save(frozen(wrapped.harden()), tmp_path / "hardened"))
    with pytest.raises(ModelError, match=r"gates already.*\n.*the original, or the slim net"):
        fxprune.wrap(hardened, 0.9, example_inputs=IMAGE)


@pytest.mark.parametrize("name", ["head", "gate", "targets", "model", "body", "weight"])
def test_other_names_are_fine(name: str) -> None:
    assert fxprune.export(fxprune.wrap(Named(name), 0.6, example_inputs=IMAGE)).report.error < 1e-9


def test_another_budget_names_its_metric() -> None:
    wrapped = fxprune.wrap(chain(), 0.9, metric="flops", example_inputs=IMAGE)
    with pytest.raises(OptionError, match=r"names no metric\n  fix: write budget=\{'flops': 0.7\}"):
        wrapped.harden(budget=0.7)  # type: ignore[arg-type]
    wrapped.harden(budget={"flops": 0.7})
    assert wrapped.cost().flops <= 0.7 * wrapped.full_cost().flops


# ---------------------------------------------------------------- the first batch


def test_a_rejected_batch_does_not_count() -> None:
    wrapped = fxprune.wrap(chain(), 0.6)
    with pytest.raises(FxPruneError):
        wrapped(torch.zeros(1, 4, 8, 8))
    with pytest.raises(OptionError, match="one batch"):
        wrapped.cost()
    wrapped(IMAGE)
    assert wrapped.full_cost() == fxprune.wrap(chain(), 0.6, example_inputs=IMAGE).full_cost()


def test_a_first_batch_of_other_inputs() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = chain()

        def forward(self, x: torch.Tensor, scale: Any = 1.0) -> torch.Tensor:
            return self.body(x) * scale

    wrapped = fxprune.wrap(Net(), 0.6)
    with pytest.raises(OptionError, match=r"another way.*\n.*example_inputs"):  # for its graph has one input
        wrapped(IMAGE, scale=torch.ones(1))
    wrapped(x=IMAGE)
    assert fxprune.export(wrapped.harden()).report.error < 1e-9


# ---------------------------------------------------------------- checkpoints


def test_checkpoints_of_the_original_load_strictly(wrapped: Wrapped) -> None:
    other = chain()
    wrapped.harden()
    masks = wrapped.masks()
    wrapped.load_state_dict(other.state_dict())
    assert torch.equal(wrapped.get_parameter("0.weight"), other[0].weight)
    assert wrapped.hardened and np.array_equal(wrapped.masks(), masks)
    inside = nn.Sequential(wrapped)
    inside.load_state_dict(nn.Sequential(other).state_dict())


def test_other_checkpoints_are_still_checked(wrapped: Wrapped) -> None:
    less = chain().state_dict()
    del less["0.weight"]
    with pytest.raises(RuntimeError, match=r"Missing.*0\.weight"):
        wrapped.load_state_dict(less)
    with pytest.raises(RuntimeError, match=r"Unexpected.*more"):
        wrapped.load_state_dict({**chain().state_dict(), "more": torch.zeros(1)})
    own = wrapped.state_dict()
    del own["fxprune_gates.hard"]
    with pytest.raises(RuntimeError, match=r"Missing.*fxprune_gates\.hard"):
        wrapped.load_state_dict(own)


# ---------------------------------------------------------------- masks and scores

OPEN = [True, False, True, True, False, False, True, True]


@pytest.mark.parametrize(
    "mask",
    [OPEN, torch.tensor(OPEN), torch.tensor(OPEN).double(), np.array(OPEN), np.array(OPEN) * 1, list(map(int, OPEN))],
    ids=["list", "tensor", "floats", "array", "integers", "list of integers"],
)  # fmt: skip
def test_masks_of_all_kinds(wrapped: Wrapped, mask: Any) -> None:
    assert wrapped.set_masks({"0": mask}).gates["0"].mask.tolist() == OPEN


def test_what_is_no_mask(wrapped: Wrapped) -> None:
    for wrong in (torch.rand(8), torch.arange(8), torch.full((8,), float("nan")), [0.5] * 8):
        with pytest.raises(OptionError, match="other values than 0 and 1"):
            wrapped.set_masks({"0": wrong})
    for wrong in ("open", [object()] * 8, None):
        with pytest.raises(OptionError, match="no array of numbers"):
            wrapped.set_masks({"0": wrong})  # type: ignore[dict-item]
    assert not wrapped.hardened


@pytest.mark.parametrize("call", ["set_masks", "harden"])
def test_what_fits_no_gate(wrapped: Wrapped, call: str) -> None:
    decide = getattr(wrapped, call)
    with pytest.raises(OptionError, match=f"{call}: 'typo' has no gate"):
        decide({"typo": torch.ones(8)})
    with pytest.raises(OptionError, match="'0' is given 7 numbers, its gate has 8"):
        decide({"0": torch.ones(7)})
    with pytest.raises(OptionError, match="a list names no layers"):
        decide([torch.ones(8)])
    assert not wrapped.hardened


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_scores_of_all_kinds(wrapped: Wrapped, make: Any) -> None:
    wrapped.harden({"0": make([8.0, 1, 7, 2, 6, 3, 5, 4]), "3": make([0.0] * 6)})
    assert wrapped.gates["0"].mask[[0, 2]].all()


# ---------------------------------------------------------------- budgets


@pytest.mark.parametrize("budget", [1 / 8, Fraction(1, 8), np.float32(1 / 8), "1/8", "0.125", "12.5%"])
def test_budgets_of_all_kinds(budget: Any) -> None:
    for given in (budget, {"volume": budget}):
        assert fxprune.wrap(chain(), given, example_inputs=IMAGE).target.limits == (("volume", 0.125),)


@pytest.mark.parametrize("budget", [0, 2, True, np.bool_(True), None, "", "1/0", "much", float("nan"), [0.5], "1e99"])
def test_what_is_no_budget(budget: Any) -> None:
    with pytest.raises(OptionError, match="not a fraction of the full cost"):
        fxprune.wrap(chain(), budget, example_inputs=IMAGE)


def test_what_export_takes(wrapped: Wrapped) -> None:
    for made, name in ((torch.compile(wrapped), "_orig_mod"), (nn.DataParallel(wrapped), "module")):
        with pytest.raises(OptionError, match=rf"takes a wrapped network.*\n.*export\(net.{name}\)"):
            fxprune.export(made)  # type: ignore[arg-type]
    with torch.no_grad():
        wrapped.get_parameter("4.weight").fill_(float("nan"))
    with pytest.raises(ModelError, match=r"4\.weight holds NaN"):
        fxprune.export(wrapped.harden())


def test_ignored_layers_by_name_or_by_several(wrapped: Wrapped) -> None:
    for ignore in ("0", ["0"], ("0",)):
        assert list(fxprune.wrap(chain(), 0.6, example_inputs=IMAGE, ignore=ignore).gates) == ["3"]
