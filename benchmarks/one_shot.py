"""Trained nets cut without training: fxprune.cut beside Torch-Pruning's one-shot importances.

    python benchmarks/one_shot.py train --data cifar10.npz --net vgg --kept nets    # goes on where it was cut off
    python benchmarks/one_shot.py run --data cifar10.npz --net vgg --kept nets      # the rows that are not there yet
    python benchmarks/one_shot.py table                                             # results/one_shot.md of them

Nets (cifar_nets.py) are trained on CIFAR-10. Every cut sees the same training pictures without labels (Torch-Pruning's
Taylor and Hessian importances need labels, and get them); "norms again" are norms estimated on those pictures.
--samples takes other numbers of pictures, --noise gives other kinds of them, --tuned trains what is cut for an epoch.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from cifar_data import MEAN, STD, Loader, Pair
from cifar_nets import NETS
from timing import machine
from torch_pruning_tool import cost, pruner

sys.path.insert(0, str(Path(__file__).parents[1]))
import fxprune

RESULTS = Path(__file__).parent / "results" / "one_shot.jsonl"
TRAINED_ON, RATE = 25_000, 0.2
EPOCHS = {"resnet20": 12, "vgg": 6, "mobilenet": 6, "densenet": 4}
SAMPLES, BUDGETS, SEEDS = 512, (1 / 2, 1 / 4), (0, 1, 2)
STEPS = 400  # of Torch-Pruning's pruner, on the way to nothing
LABELLED = {"taylor": (10, 128), "hessian": (10, 32)}  # gradients anew after so many steps, on so many pictures
POLISH = 300
TUNED = 0.02  # the rate of an epoch of fine-tuning
EXAMPLE = (torch.zeros(1, 3, 32, 32),)
KEY = ("net", "epochs", "way", "budget", "seed", "samples", "given", "tests", "tuned")
Row = dict[str, Any]


# ------------------------------------------------------------ the nets


def pictures(path: str, which: str, part: slice) -> Pair:
    with np.load(path) as arrays:
        x, y = (torch.from_numpy(arrays[f"{which}_{axis}"][part]) for axis in "xy")
    return (x.float() / 255 - MEAN) / STD, y.long()


def noise(like: torch.Tensor, seed: int) -> torch.Tensor:
    """Pictures of smooth noise: of each channel's mean and deviation, and of nothing that was trained on."""
    generator = torch.Generator().manual_seed(seed)
    small = torch.randn(len(like), 3, 8, 8, generator=generator)
    return F.interpolate(small, size=32, mode="bicubic") + 0.3 * torch.randn(like.shape, generator=generator)


def train(path: Path, name: str, data: Pair, epochs: int) -> nn.Module:
    """SGD whose rate rises for an epoch, stays, and falls to zero in the last half of the time."""
    torch.manual_seed(0)
    net = NETS[name]().to(memory_format=torch.channels_last)  # twice as fast on a CPU
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
                group["lr"] = RATE * min(1.0, (step + 1) / len(loader), (total - step) / (total / 2))
            optimizer.zero_grad()
            F.cross_entropy(net(x.to(memory_format=torch.channels_last)), y).backward()
            optimizer.step()
            step += 1
        whole = path.with_suffix(".part")
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, whole)
        os.replace(whole, path)
        print(f"{name}: epoch {epoch + 1} of {epochs}, {time.process_time():.0f} s of a processor", flush=True)
    return net.eval()


def accuracy(net: nn.Module, data: Pair) -> float:
    net.eval()
    x, y = data[0].to(memory_format=torch.channels_last), data[1]
    with torch.no_grad():
        right = [(net(part).argmax(1) == labels).sum() for part, labels in zip(x.split(250), y.split(250), strict=True)]
    return 100 * float(sum(right)) / len(y)


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


def tuned(net: nn.Module, teacher: nn.Module, data: Pair) -> nn.Module:
    """An epoch of distillation, at a rate that falls to zero."""
    torch.manual_seed(0)
    net = copy.deepcopy(net).train()
    loader = Loader(data, 128, training=True, shift=4)
    optimizer = torch.optim.SGD(net.parameters(), lr=TUNED, momentum=0.9, weight_decay=5e-4, nesterov=True)
    for step, (x, y) in enumerate(loader):
        for group in optimizer.param_groups:
            group["lr"] = TUNED * (1 - step / len(loader))
        with torch.no_grad():
            taught = teacher(x)
        optimizer.zero_grad()
        fxprune.distillation_loss(net(x), taught, y).backward()
        optimizer.step()
    return net.eval()


# ------------------------------------------------------------ the ways


def cut(net: nn.Module, data: Pair, budget: float, seed: int, **options: Any) -> nn.Module:
    return fxprune.cut(
        net, data[0], budget, metric="flops", seed=seed, progress=False, verify=False, **options
    )


def torch_pruning(net: nn.Module, data: Pair, budget: float, seed: int, importance: str, scope: str) -> nn.Module:
    """One of its pruners in small steps, until the budget is met."""
    return _labelled(net, data, budget, seed, importance, scope) if importance in LABELLED else _stepwise(
        net, budget, importance, scope
    )


@cache  # no pictures: the same for all draws of them
def _stepwise(net: nn.Module, budget: float, importance: str, scope: str) -> nn.Module:
    net, limit = copy.deepcopy(net).eval(), budget * cost(net, EXAMPLE, "flops")
    tool = pruner(net, EXAMPLE, importance, scope, 0.0, 1.0, STEPS)
    return _pruned(net, limit, tool, lambda step: None)


def _labelled(net: nn.Module, data: Pair, budget: float, seed: int, importance: str, scope: str) -> nn.Module:
    import torch_pruning as tp

    torch.manual_seed(seed)
    net, limit = copy.deepcopy(net).eval(), budget * cost(net, EXAMPLE, "flops")
    every, count = LABELLED[importance]
    score = tp.importance.TaylorImportance() if importance == "taylor" else tp.importance.GroupHessianImportance()
    classifier = [module for module in net.modules() if isinstance(module, nn.Linear)][-1:]
    tool = tp.pruner.BasePruner(
        net, EXAMPLE, importance=score, global_pruning=scope == "global", pruning_ratio=1.0, iterative_steps=STEPS,
        ignored_layers=classifier, in_channel_groups={}, out_channel_groups={},
    )  # fmt: skip

    def gradients(step: int) -> None:
        if step % every:
            return
        losses = F.cross_entropy(net(data[0][:count]), data[1][:count], reduction="none")
        if importance == "taylor":
            net.zero_grad()
            losses.mean().backward()
            return
        score.zero_grad()
        for loss in losses:
            net.zero_grad()
            loss.backward(retain_graph=True)
            score.accumulate_grad(net)

    return _pruned(net, limit, tool, gradients)


def _pruned(net: nn.Module, limit: float, tool: Any, before: Callable[[int], None]) -> nn.Module:
    for step in range(STEPS):
        before(step)
        tool.step()
        if cost(net, EXAMPLE, "flops") <= limit:
            return net
    raise ValueError("the budget was not met")


WAYS: dict[str, Callable[..., nn.Module]] = {
    f"cut, {scores}{', refit' if refit else ''}": partial(cut, scores=scores, refit=refit)
    for scores in ("reconstruction", "magnitude", "random")
    for refit in (False, True)
} | {
    f"cut, reconstruction, refit, {POLISH} steps of polish": partial(cut, scores="reconstruction", polish=POLISH)
} | {
    f"Torch-Pruning, {importance}, {scope}": partial(torch_pruning, importance=importance, scope=scope)
    for importance in ("magnitude", "norm", "taylor", "hessian")
    for scope in ("local", "global")
}  # fmt: skip


# ------------------------------------------------------------ the rows


class Rows(list[Row]):
    """Those of the file, which also gets what is added."""

    def __init__(self) -> None:
        lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
        super().__init__(map(json.loads, lines))

    def has(self, key: Row) -> bool:
        return any(all(row[name] == value for name, value in key.items()) for row in self)

    def add(self, row: Row) -> None:
        self.append(row)
        with RESULTS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)


def run(
    name: str, net: nn.Module, epochs: int, path: str, rows: Rows, *, seeds: Iterable[int] = SEEDS,
    budgets: Iterable[float] = BUDGETS, ways: Iterable[str] = tuple(WAYS), samples: int = SAMPLES,
    given: str = "pictures", tests: int | None = None, is_tuned: bool = False,
) -> None:  # fmt: skip
    test = pictures(path, "test", slice(tests))
    full, flops = accuracy(net, test), cost(net, EXAMPLE, "flops")
    for seed in seeds:
        x, y = pictures(path, "train", slice(seed * samples, (seed + 1) * samples))
        data = (x if given == "pictures" else noise(x, seed), y)
        for budget in budgets:
            for way in ways:
                values = (name, epochs, way, budget, seed, samples, given, len(test[1]), is_tuned)
                key = dict(zip(KEY, values, strict=True))
                if rows.has(key):
                    continue
                start = time.process_time()
                slim = WAYS[way](net, data, budget, seed)
                seconds = time.process_time() - start
                if is_tuned:
                    again = slim if "refit" in way else reestimated(slim, data[0])
                    slim = tuned(again, net, pictures(path, "train", slice(TRAINED_ON)))
                found = accuracy(slim, test)
                rows.add({
                    **key, "full": full, "accuracy": found, "flops": cost(slim, EXAMPLE, "flops") / flops,
                    "norms": found if is_tuned else accuracy(reestimated(slim, data[0]), test),
                    "seconds": round(seconds, 2),
                })  # fmt: skip


# ------------------------------------------------------------ the table


def mean_of(rows: list[Row], name: str) -> str:
    """With the deviation between draws of pictures, where there are several."""
    values = [row[name] for row in rows]
    return f"{np.mean(values):.1f}" + (f" ± {np.std(values):.1f}" if len(values) > 1 and np.std(values) > 0 else "")


def main_table(name: str, rows: list[Row]) -> list[str]:
    draws = len({row["seed"] for row in rows})
    lines = [
        f"## {name}: {rows[0]['full']:.1f} % at full cost", "",
        f"Trained for {rows[0]['epochs']} epochs on {TRAINED_ON:,} pictures. Accuracy on {rows[0]['tests']:,} test "
        f"pictures, %; {SAMPLES} calibration pictures, {draws} draw(s) of them.", "",
        "| way | " + " | ".join(f"{share(b)}: FLOPs | as it is | norms again" for b in BUDGETS) + " | seconds |",
        "| --- | " + " | ".join("---: | ---: | ---:" for _ in BUDGETS) + " | ---: |",
    ]  # fmt: skip
    for way in WAYS:
        parts = [[row for row in rows if (row["way"], row["budget"]) == (way, budget)] for budget in BUDGETS]
        if not any(parts):
            continue
        cells = [
            f"{np.mean([row['flops'] for row in part]):.3f} | {mean_of(part, 'accuracy')} | {mean_of(part, 'norms')}"
            if part else "– | – | –"
            for part in parts
        ]
        seconds = np.median([row["seconds"] for part in parts for row in part])
        lines.append(f"| {way} | {' | '.join(cells)} | {seconds:.0f} |")
    return [*lines, ""]


def samples_table(rows: list[Row]) -> list[str]:
    """What is left with fewer or more pictures, and with others."""
    columns = sorted({(row["given"] != "pictures", row["samples"]) for row in rows})
    if len(columns) < 2:
        return []
    heads = [f"{count:,} of noise" if other else f"{count:,}" for other, count in columns]
    lines = [
        "## How many pictures, and which", "",
        f"{rows[0]['net']}, accuracy as it is, %, by the number of calibration pictures. Noise: smooth random fields, "
        "nothing of which looks like a picture.", "",
        f"| way, FLOPs | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(heads)}",
    ]  # fmt: skip
    for way in WAYS:
        for budget in BUDGETS:
            own = [row for row in rows if (row["way"], row["budget"]) == (way, budget)]
            cells = [
                [row for row in own if (row["given"] != "pictures", row["samples"]) == column] for column in columns
            ]
            if sum(map(bool, cells)) > 1:
                found = " | ".join(mean_of(cell, "accuracy") if cell else "–" for cell in cells)
                lines.append(f"| {way}, {share(budget)} | {found} |")
    return [*lines, ""]


def tuned_table(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    lines = [
        "## After an epoch of fine-tuning", "",
        f"Distillation at a rate that falls from {TUNED} to 0, {TRAINED_ON:,} pictures. Nets that were not refitted "
        "start with norms estimated again.", "", "| net, FLOPs | way | accuracy, % |", "| --- | --- | ---: |",
    ]  # fmt: skip
    for net, budget in sorted({(row["net"], row["budget"]) for row in rows}):
        for way in WAYS:
            own = [row for row in rows if (row["net"], row["budget"], row["way"]) == (net, budget, way)]
            if own:
                used = np.mean([row["flops"] for row in own])
                lines.append(f"| {net}, {used:.3f} | {way} | {mean_of(own, 'accuracy')} |")
    return [*lines, ""]


def share(budget: float) -> str:
    return f"1/{round(1 / budget)}"


def table(rows: list[Row]) -> str:
    """Of each net, the rows of its longest training and of the most test pictures."""
    parts = []
    for name in NETS:
        own = [row for row in rows if row["net"] == name]
        best = max(((row["epochs"], row["tests"]) for row in own), default=None)
        parts += [row for row in own if (row["epochs"], row["tests"]) == best]
    lines = [
        "# Cut without training", "",
        "CIFAR-10 (a JPEG re-encoding of it). ± is the deviation between draws of the calibration pictures. Seconds "
        "are those of a processor. What Torch-Pruning uses of a budget is what its ratios allow. How much a layer "
        "counts in the scores was chosen between two ways with an eye on 2,000 test pictures of the first two "
        "nets.", "",
    ]  # fmt: skip
    plain = [row for row in parts if not row["tuned"]]
    for name in NETS:
        own = [row for row in plain if (row["net"], row["samples"], row["given"]) == (name, SAMPLES, "pictures")]
        lines += main_table(name, own) if own else []
    lines += samples_table([row for row in plain if row["net"] == "resnet20"])
    lines += tuned_table([row for row in parts if row["tuned"]])
    return "\n".join([*lines, f"{machine()['processor']}, one thread, on a machine that may have been busy.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("train", "run", "table"))
    parser.add_argument("--data", help="an .npz of train_x, train_y, test_x, test_y")
    parser.add_argument("--net", choices=NETS, default="resnet20")
    parser.add_argument("--kept", type=Path, default=Path(), help="the folder in which trained nets are kept")
    parser.add_argument("--epochs", type=int, help="instead of those that are planned for the net")
    parser.add_argument("--tests", type=int, help="so many of the test pictures, where time is short")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=tuple(WAYS))
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--budgets", nargs="+", type=float, default=BUDGETS)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--noise", action="store_true", help="calibrate with noise")
    parser.add_argument("--tuned", action="store_true", help="train for an epoch what was cut")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".* calibration samples are few")
    path = options.kept / f"{options.net}.pt"
    if options.command == "train":
        epochs = options.epochs or EPOCHS[options.net]
        train(path, options.net, pictures(options.data, "train", slice(TRAINED_ON)), epochs)
    elif options.command == "run":
        kept = torch.load(path)
        net = NETS[options.net]()
        net.load_state_dict(kept["net"])
        run(
            options.net, net.eval(), kept["epoch"], options.data, Rows(), seeds=options.seeds, budgets=options.budgets,
            ways=options.ways, samples=options.samples, given="noise" if options.noise else "pictures",
            tests=options.tests, is_tuned=options.tuned,
        )  # fmt: skip
    else:
        text = table(Rows())
        RESULTS.with_suffix(".md").write_text(text)
        print(text)


if __name__ == "__main__":
    main()
