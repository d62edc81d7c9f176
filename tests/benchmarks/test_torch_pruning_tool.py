"""The other tool of the comparison is held to the same rules: on budget, as close to it as it can, and trained."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from tests.train.small_run import loaders, resnet8
from torch_pruning_tool import cost, torch_pruning

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own
    pytest.importorskip("torch_pruning")
pytestmark = pytest.mark.filterwarnings("ignore::Warning:torch_pruning.*")
EXAMPLE = torch.zeros(1, 3, 16, 16)
SCOPES = ("local", "global")
VARIANTS: list[dict[str, Any]] = [
    *({"importance": name, "scope": scope} for name in ("magnitude", "norm", "bn_scale") for scope in SCOPES),
    {"importance": "norm", "scope": "global", "sparsity": True},
    {"importance": "bn_scale", "scope": "global", "sparsity": True},
]  # fmt: skip


def sgd(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=5e-4)


def small_net() -> nn.Module:
    """Scales of batch norms differ, as in a trained net: of equals, global pruning takes all or none."""
    net: nn.Module = resnet8(8)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.2, 1.2)
    return net.eval()


def batches() -> Any:
    return loaders(batch_size=16, augment=False, most=200)[0]


def pruned(model: nn.Module, teacher: nn.Module | None = None, **options: Any) -> nn.Module:
    settings = {"budget": 1 / 4, "metric": "volume", "epochs": (1, 2, 1), "optimizer": sgd, "seed": 0}
    settings["example_inputs"] = EXAMPLE
    return torch_pruning(model, batches(), None, teacher=teacher, **{**settings, **options})


def mean_loss(net: nn.Module) -> float:
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(net(x), y) for x, y in batches()]
    return float(torch.stack(losses).mean())


def share(net: nn.Module, model: nn.Module, metric: str = "volume") -> float:
    return cost(net, (EXAMPLE,), metric) / cost(model, (EXAMPLE,), metric)


@pytest.mark.parametrize("options", VARIANTS, ids=lambda options: " ".join(map(str, options.values())))
def test_on_budget_and_trained(options: dict[str, Any]) -> None:
    model = small_net()
    before = copy.deepcopy(model.state_dict())
    net = pruned(model, **options)
    assert 0.8 / 4 < share(net, model) <= 1 / 4
    assert not net.training and net(torch.zeros(2, 3, 16, 16)).shape == (2, 10)
    assert mean_loss(net) < 2.2  # of ln 10 = 2.3 without any training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_other_metrics_and_a_teacher() -> None:
    model = small_net()
    net = pruned(model, model, metric="flops", scope="global", epochs=(0, 1, 0))
    assert share(net, model, "flops") <= 1 / 4
    net = pruned(model, model, metric="params", importance="norm", sparsity=True, epochs=(1, 1, 0))
    assert share(net, model, "params") <= 1 / 4


def test_a_share_of_the_time() -> None:
    model, example = resnet8(32).eval(), torch.randn(16, 3, 32, 32)
    net = pruned(model, metric="latency", budget=0.8, epochs=(0, 1, 0), example_inputs=example)
    assert share(net, model) < 1


def test_the_seed_decides() -> None:
    model = small_net()
    one, same, other = (pruned(model, epochs=(0, 1, 0), seed=seed).fc.weight for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_epochs_count_alike() -> None:
    """Sparse training takes epochs from those after pruning, and the last are slow."""
    model, rates = small_net(), []

    def watched(groups: Any) -> torch.optim.Optimizer:
        optimizer = sgd(groups)
        optimizer.register_step_post_hook(lambda made, *_: rates.append(round(made.param_groups[0]["lr"], 9)))
        return optimizer

    steps = len(batches())
    for options in ({}, {"importance": "norm", "sparsity": True}):
        rates.clear()
        pruned(model, optimizer=watched, epochs=(1, 1, 1), **options)
        assert rates == [0.05] * 2 * steps + [0.005] * steps


def test_what_cannot_be_done_is_told() -> None:
    model = small_net()
    with pytest.raises(ValueError, match="no pruning ratio meets the budget"):
        pruned(model, budget=1 / 1000, epochs=(0, 1, 0))
    with pytest.raises(ValueError, match="importance is one of"):
        pruned(model, importance="luck")
    with pytest.raises(ValueError, match='by importance="norm"'):
        pruned(model, sparsity=True)
