"""What one would use instead of fxprune: Torch-Pruning, as a tool for the entries of ``fxprune compare``.

    python benchmarks/torch_pruning_tool.py      # which share of its budget each variant can use, on ResNet-8

Its pruners know ratios of channels, no budgets. Their authors' benchmark raises the ratio in 400 small steps until the
net is as fast as wanted, and so does ``torch_pruning``. Ratios are coarse: a local one takes channels from many layers
at once, and one channel of a small net is much. What is chosen globally also depends on the number of steps; several
are tried, and the largest net on budget is taken. That is the best that ratios can do here, not always all of a budget.

Steps are needed: a layer that a ratio would empty keeps all of its channels, so that a large ratio, taken at once, may
give a large net. In steps a layer loses its channels down to the last one.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
import fxprune
from fxprune.count import count
from fxprune.latency.stopwatch import in_turns, usual_ratio

ENOUGH = 0.99  # of a budget: no other number of steps is tried
Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]
MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def torch_pruning(
    model: nn.Module,
    train: Batches,
    val: Batches | None,
    *,
    budget: float,
    metric: str,
    epochs: tuple[int, int, int],
    teacher: nn.Module | None,
    optimizer: MakeOptimizer,
    alpha: float = 0.9,
    temperature: float = 4.0,
    seed: int,
    example_inputs: Any,
    importance: str = "magnitude",
    scope: str = "local",
    sparsity: bool = False,
    reg: float = 5e-4,
) -> nn.Module:
    """A smaller net that costs at most ``budget`` of the model's; the model is untouched. The costs are those of the
    convolutions, or the measured time of the whole net on a batch of the example's size.

    ``importance``: "magnitude" (L1), "norm" (L2) of all weights of a group of coupled channels, or "bn_scale" (of its
    batch norms). ``scope``: all layers lose the same share ("local"), or channels are ranked over all layers
    ("global"). Each variant trains for ``sum(epochs)`` epochs, the last ``epochs[2]`` at a tenth of the learning rate:
    all of them after pruning, or, with ``sparsity``, the first ``epochs[0]`` before it, under Torch-Pruning's penalty
    of strength ``reg`` on groups ("norm") or scales ("bn_scale") instead of weight decay, as in its benchmark.
    """
    torch.manual_seed(seed)
    args = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    net = copy.deepcopy(model).eval()
    timed = metric == "latency"  # the share of the model's time, measured after every so many steps
    cost_of = (
        partial(time_share, full=copy.deepcopy(net), args=args) if timed else partial(cost, args=args, metric=metric)
    )
    limit = budget * (1.0 if timed else cost_of(net))
    make = partial(pruner, example=args, importance=importance, scope=scope, reg=reg)
    loss = loss_of(teacher, alpha, temperature)
    first, *after = epochs
    if sparsity:
        if importance == "magnitude":
            raise ValueError('Torch-Pruning trains sparse nets by importance="norm" or "bn_scale" only')
        fit(net, train, loss, optimizer, first, sparse=make(net, ratio=1.0, steps=1))
    net = shrunk(net, make, cost_of, limit, looks=50 if timed else None)
    fit(net, train, loss, optimizer, after[0] + (0 if sparsity else first), after[1])
    return net.eval()


def cost(net: nn.Module, args: tuple[Any, ...], metric: str) -> int:
    counted: int = getattr(count(net, args, {}), metric)
    return counted


def time_share(net: nn.Module, full: nn.Module, args: tuple[Any, ...]) -> float:
    """The net's time over the full one's: the median of rounds in which both take turns."""
    return usual_ratio(*in_turns([net, full], (args, {}), 15))


def pruner(
    net: nn.Module, example: tuple[Any, ...], importance: str, scope: str, reg: float, ratio: float, steps: int
) -> Any:
    """Of the net's channels, in place; all but the outputs of its classifier, the last linear layer."""
    import torch_pruning as tp

    kinds: dict[str, tuple[Any, Any]] = {
        "magnitude": (tp.pruner.BasePruner, tp.importance.MagnitudeImportance(p=1)),
        "norm": (partial(tp.pruner.GroupNormPruner, reg=reg), tp.importance.GroupMagnitudeImportance(p=2)),
        "bn_scale": (partial(tp.pruner.BNScalePruner, reg=reg), tp.importance.BNScaleImportance()),
    }
    if importance not in kinds or scope not in ("local", "global"):
        raise ValueError(f"importance is one of {', '.join(kinds)}; scope is local or global: {importance}, {scope}")
    make, score = kinds[importance]
    classifier = [module for module in net.modules() if isinstance(module, nn.Linear)][-1:]
    return make(
        net, example, importance=score, global_pruning=scope == "global", pruning_ratio=ratio, iterative_steps=steps,
        ignored_layers=classifier, in_channel_groups={}, out_channel_groups={},  # its own defaults are shared dicts
    )  # fmt: skip


def shrunk(
    net: nn.Module, make: Callable[..., Any], cost_of: Callable[[nn.Module], float], limit: float,
    looks: int | None = None,
) -> nn.Module:  # fmt: skip
    """The largest pruned net that costs at most ``limit``.

    A cost that takes long to find is looked at only so many times (``looks``) on the way to nothing.
    """
    channels = sum(module.out_channels for module in net.modules() if isinstance(module, nn.Conv2d))
    best, used = None, 0.0
    for steps in sorted({400, channels, 2 * channels}):  # the fast ones first
        pruned = copy.deepcopy(net)
        stepwise = make(pruned, ratio=1.0, steps=steps)
        every, spent = (max(steps // looks, 1), inf) if looks else (1, cost_of(pruned))
        for step in range(1, steps + 1):
            if spent <= limit:
                break
            stepwise.step()
            spent = cost_of(pruned) if step % every == 0 or step == steps else spent
        if used < spent <= limit:
            best, used = pruned, spent
        if looks and best is not None:  # what is measured differs by more than what other steps would change
            break
        if used > ENOUGH * limit:
            break
    if best is None:
        raise ValueError("no pruning ratio meets the budget")
    return best


def loss_of(teacher: nn.Module | None, alpha: float, temperature: float) -> Loss:
    """Distillation where there is a teacher, else cross entropy."""
    if teacher is None:
        return lambda net, x, y: F.cross_entropy(net(x), y)
    teacher.eval()

    def loss(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            taught = teacher(x)
        return fxprune.distillation_loss(net(x), taught, y, alpha, temperature)

    return loss


def fit(
    net: nn.Module, train: Batches, loss: Loss, make: MakeOptimizer, epochs: int, slow: int = 0, sparse: Any = None
) -> None:
    """Train, the last ``slow`` epochs at a tenth of the learning rate; ``sparse`` is a pruner that adds its penalty."""
    optimizer = make([{"params": list(net.parameters())}])  # anew for each net: pruning replaces parameters
    device = next(net.parameters()).device
    rates = [group["lr"] for group in optimizer.param_groups]
    for epoch in range(epochs + slow):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * (0.1 if epoch >= epochs else 1)
            if sparse is not None:
                group["weight_decay"] = 0
        net.train()
        for x, y in train:
            optimizer.zero_grad()
            loss(net, x.to(device), y.to(device)).backward()
            if sparse is not None:
                sparse.regularize(net)
            optimizer.step()
    net.eval()


def main() -> None:
    """No training: what a ratio can reach hardly depends on the weights."""
    from fractions import Fraction

    from rich.console import Console
    from rich.table import Table

    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from models import resnet8

    torch.manual_seed(0)
    model, args = resnet8().eval(), (torch.zeros(1, 3, 32, 32),)
    for name, weight in model.named_parameters():
        if weight.ndim == 1 and name.endswith("weight"):  # scales of batch norms, all equal in an untrained net
            nn.init.uniform_(weight, 0.2, 1.2)
    asked = [("volume", f"1/{n}") for n in (2, 4, 8, 16)] + [("flops", f"1/{n}") for n in (15, 57, 200)]
    table = Table("importance", "scope", *(f"{metric} {budget}" for metric, budget in asked))
    for importance in ("magnitude", "norm", "bn_scale"):
        for scope in ("local", "global"):
            row = []
            make = partial(pruner, example=args, importance=importance, scope=scope, reg=0.0)
            for metric, budget in asked:
                limit = float(Fraction(budget)) * cost(model, args, metric)
                net = shrunk(model, make, partial(cost, args=args, metric=metric), limit)
                row.append(f"{cost(net, args, metric) / limit:.3f}")
            table.add_row(importance, scope, *row)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
