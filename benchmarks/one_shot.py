"""A trained net cut without training: fxprune.cut beside Torch-Pruning's one-shot importances.

    python benchmarks/one_shot.py train --data cifar10.npz --net resnet20.pt     # goes on where it was cut off
    python benchmarks/one_shot.py run --data cifar10.npz --net resnet20.pt       # the rows that are not there yet
    python benchmarks/one_shot.py table                                          # results/one_shot.md of them

The net is ResNet-20 as in the papers (its stem keeps the size of the picture), trained on CIFAR-10. Every cut sees the
same training pictures, 512 of them, without labels (Torch-Pruning's Taylor importance needs labels, and gets them).
"norms" are estimated again on those pictures.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from cifar_data import MEAN, STD, Loader, Pair
from timing import machine
from torch_pruning_tool import cost, pruner

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from models import resnet20

import fxprune

RESULTS = Path(__file__).parent / "results" / "one_shot.jsonl"
TRAINED_ON, EPOCHS, RATE = 20_000, 11, 0.2
SAMPLES, BUDGETS, SEEDS = 512, (1 / 2, 1 / 4), (0, 1, 2)
PARTS = 2000  # test pictures of a quick look
STEPS = 400  # of Torch-Pruning's pruner, on the way to nothing
Row = dict[str, Any]


# ------------------------------------------------------------ the net


def the_net() -> nn.Module:
    net = resnet20()
    net.conv.stride = (1, 1)  # for pictures of 32x32
    return net


def pictures(path: str, which: str, part: slice) -> Pair:
    with np.load(path) as arrays:
        x, y = (torch.from_numpy(arrays[f"{which}_{axis}"][part]) for axis in "xy")
    return (x.float() / 255 - MEAN) / STD, y.long()


def train(path: Path, data: Pair, epochs: int) -> nn.Module:
    """SGD whose rate rises for an epoch, stays, and falls to zero in the last third of the time."""
    torch.manual_seed(0)
    net = the_net()
    loader = Loader(data, 128, training=True, shift=4)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4, nesterov=True)
    first, step, total = 0, 0, epochs * len(loader)
    if path.exists():
        kept = torch.load(path)
        net.load_state_dict(kept["net"])
        optimizer.load_state_dict(kept["optimizer"])
        first, step = kept["epoch"], kept["epoch"] * len(loader)
    for epoch in range(first, epochs):
        torch.manual_seed(epoch)
        net.train()
        for x, y in loader:
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, (step + 1) / len(loader), (total - step) / (total / 3))
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            step += 1
        whole = path.with_suffix(".part")
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, whole)
        os.replace(whole, path)
        print(f"epoch {epoch + 1} of {epochs}", flush=True)
    return net.eval()


def accuracy(net: nn.Module, data: Pair) -> float:
    net.eval()
    with torch.no_grad():
        right = [(net(x).argmax(1) == y).sum() for x, y in zip(data[0].split(250), data[1].split(250), strict=True)]
    return 100 * float(sum(right)) / len(data[1])


def reestimated(net: nn.Module, x: torch.Tensor) -> nn.Module:
    """A copy whose batch norms have the statistics of these pictures."""
    net = copy.deepcopy(net)
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for part in x.split(128):
            net(part)
    return net.eval()


# ------------------------------------------------------------ the rows


def cut(net: nn.Module, data: Pair, budget: float, seed: int, scores: str, refit: bool) -> nn.Module:
    return fxprune.cut(
        net, data[0], budget, metric="flops", scores=scores, refit=refit, seed=seed, progress=False, verify=False
    )


def torch_pruning(net: nn.Module, data: Pair, budget: float, seed: int, importance: str, scope: str) -> nn.Module:
    """One of its pruners in small steps, until the budget is met."""
    torch.manual_seed(seed)
    net = copy.deepcopy(net).eval()
    args = (torch.zeros(1, 3, 32, 32),)
    limit = budget * cost(net, args, "flops")
    if importance == "taylor":
        make = partial(by_taylor, net, args, scope)
    else:
        make = partial(pruner, net, args, importance, scope, 0.0, 1.0, STEPS)
    tool = make()
    for _ in range(STEPS):
        if importance == "taylor":
            net.zero_grad()
            F.cross_entropy(net(data[0][:128]), data[1][:128]).backward()
        tool.step()
        if cost(net, args, "flops") <= limit:
            return net
    raise ValueError("the budget was not met")


def by_taylor(net: nn.Module, args: Any, scope: str) -> Any:
    import torch_pruning as tp

    classifier = [module for module in net.modules() if isinstance(module, nn.Linear)][-1:]
    return tp.pruner.BasePruner(
        net, args, importance=tp.importance.TaylorImportance(), global_pruning=scope == "global", pruning_ratio=1.0,
        iterative_steps=STEPS, ignored_layers=classifier, in_channel_groups={}, out_channel_groups={},
    )  # fmt: skip


WAYS: dict[str, Callable[..., nn.Module]] = {
    f"cut, {scores}{', refit' if refit else ''}": partial(cut, scores=scores, refit=refit)
    for scores in ("reconstruction", "magnitude", "random")
    for refit in (False, True)
} | {
    f"Torch-Pruning, {importance}, {scope}": partial(torch_pruning, importance=importance, scope=scope)
    for importance in ("magnitude", "norm", "taylor")
    for scope in ("local", "global")
}  # fmt: skip


def run(net: nn.Module, epochs: int, path: str, rows: list[Row], seeds: tuple[int, ...], tests: int | None) -> None:
    test = pictures(path, "test", slice(tests))
    args = (torch.zeros(1, 3, 32, 32),)
    full, flops = accuracy(net, test), cost(net, args, "flops")
    for seed in seeds:
        data = pictures(path, "train", slice(seed * SAMPLES, (seed + 1) * SAMPLES))
        for budget in BUDGETS:
            for way, make in WAYS.items():
                key = {"way": way, "budget": budget, "seed": seed, "epochs": epochs, "tests": len(test[1])}
                if any(all(row[name] == value for name, value in key.items()) for row in rows):
                    continue
                start = time.perf_counter()
                slim = make(net, data, budget, seed)
                seconds = time.perf_counter() - start
                row = {
                    **key, "full": full, "accuracy": accuracy(slim, test), "flops": cost(slim, args, "flops") / flops,
                    "norms": accuracy(reestimated(slim, data[0]), test), "seconds": round(seconds, 1),
                }  # fmt: skip
                rows.append(row)
                with RESULTS.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(row, flush=True)


def table(rows: list[Row]) -> str:
    """Means over the seeds, and the spread of the accuracy where there are several."""
    epochs, tests = max((row["epochs"], row["tests"]) for row in rows)
    rows = [row for row in rows if (row["epochs"], row["tests"]) == (epochs, tests)]
    early = f", stopped while its rate was still high ({EPOCHS} epochs were planned): a first look, not a result"
    early = early if epochs < EPOCHS else ""
    lines = [
        f"ResNet-20 on CIFAR-10 (a JPEG re-encoding of it), trained for {epochs} epochs on {TRAINED_ON:,} "
        f"pictures{early}: {rows[0]['full']:.1f} % at full cost. Accuracy on {tests:,} test pictures, %, after a cut "
        f"without training, with {SAMPLES} training pictures. Means over {len({r['seed'] for r in rows})} draw(s) of "
        "them.",
        "",
        "| way | FLOPs | accuracy | norms estimated again | seconds |", "| --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for budget in BUDGETS:
        for way in WAYS:
            own = [row for row in rows if (row["way"], row["budget"]) == (way, budget)]
            if own:
                mean = {name: float(np.mean([row[name] for row in own])) for name in ("flops", "accuracy", "norms")}
                spread = f" ± {np.std([row['accuracy'] for row in own]):.1f}" if len(own) > 1 else ""
                seconds = float(np.median([row["seconds"] for row in own]))
                lines.append(
                    f"| {way} | {mean['flops']:.3f} | {mean['accuracy']:.1f}{spread} | {mean['norms']:.1f} | "
                    f"{seconds:.0f} |"
                )
    where = f"{machine()['processor']}, one thread; times on a machine that may have been busy."
    return "\n".join([*lines, "", where, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("train", "run", "table"))
    parser.add_argument("--data", help="an .npz of train_x, train_y, test_x, test_y")
    parser.add_argument("--net", type=Path, default=Path("resnet20.pt"), help="where the trained net is kept")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--quick", action="store_true", help=f"one draw of samples, and {PARTS:,} test pictures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    if options.command == "train":
        train(options.net, pictures(options.data, "train", slice(TRAINED_ON)), options.epochs)
    elif options.command == "run":
        net = the_net()
        kept = torch.load(options.net)
        net.load_state_dict(kept["net"])
        few = (SEEDS[:1], PARTS) if options.quick else (SEEDS, None)
        run(net.eval(), kept["epoch"], options.data, rows, *few)
    else:
        text = table(rows)
        RESULTS.with_suffix(".md").write_text(text)
        print(text)


if __name__ == "__main__":
    main()
