from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import fxprune

PICTURE = torch.zeros(1, 3, 32, 32)


@pytest.fixture(scope="module")
def models() -> ModuleType:
    path = Path(__file__).parents[1] / "examples" / "models.py"
    spec = importlib.util.spec_from_file_location("example_models", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _shortcuts(model: nn.Module) -> set[str]:
    return {name for name, m in model.named_modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)}


def test_resnet8_costs_what_the_trials_quote(models: ModuleType) -> None:
    seen = fxprune.inspect(models.resnet8(), PICTURE)
    assert seen.cost["volume"] == 43_008
    assert seen.cost["flops"] == 2 * 12_279_808
    assert seen.prunable == 1.0


def test_resnet8_guards_the_stem_and_the_shortcuts(models: ModuleType) -> None:
    model = models.resnet8()
    guarded = {layer.name for layer in fxprune.inspect(model, PICTURE).layers if layer.guarded}
    assert guarded == {"conv"} | _shortcuts(model)
    assert len(_shortcuts(model)) == 2


def test_wrn_28_12_costs_what_the_paper_divides_by(models: ModuleType) -> None:
    seen = fxprune.inspect(models.wrn(28, 12), PICTURE)
    assert seen.cost["volume"] == 3_112_960
    assert seen.cost["flops"] == 15_087_796_224


@pytest.mark.parametrize(("depth", "width"), [(10, 1), (16, 2), (28, 12)])
def test_wrn_guards_the_stem_and_the_shortcuts(models: ModuleType, depth: int, width: int) -> None:
    model = models.wrn(depth, width)
    guarded = {layer.name for layer in fxprune.inspect(model, PICTURE).layers if layer.guarded}
    assert guarded == {"conv"} | _shortcuts(model)
    assert len(_shortcuts(model)) == (3 if width > 1 else 2)  # at width 1 the first group changes no shape


def test_wrn_refuses_a_depth_that_does_not_exist(models: ModuleType) -> None:
    with pytest.raises(ValueError, match="6 n \\+ 4"):
        models.wrn(depth=27)


def test_examples_train(models: ModuleType) -> None:
    for model in (models.resnet8(width=4), models.wrn(10, 1)):
        loss = model(torch.randn(2, 3, 32, 32)).square().sum()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
