"""How sensitive is BAR to its settings? The analysis of the paper's supplement, on something small.

    python benchmarks/sensitivity.py [--jobs 2] [--runs FOLDER] [--out results/sensitivity]
    python benchmarks/sensitivity.py --setting cifar --data cifar10.npz --out results/sensitivity_cifar

For each of the budgets 1/2 to 1/16 of the volume ten runs, in each of which seven settings are drawn at once,
uniformly, from an interval around what they are elsewhere: learning rate, weight decay, alpha and T of the
distillation, hardness of the sigmoid along which the budget slides, gain and margin of the controller. Ten more with
nothing drawn, and the same ten seeds, tell what chance alone does. ``digits`` are those of scikit-learn, for a ResNet-8
of half the usual width; ``cifar`` is the setting of benchmarks/cifar.py, with SGD. One teacher teaches all.

Each run is a process of one thread, and a row once it is done: a benchmark that was cut off goes on where it was when
it is started again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cifar import BATCH, BUDGETS, EPOCHS
from cifar import teacher as cifar_teacher
from cifar_data import VARIABLE, WATCHED, Loader, part, pictures
from timing import machine
from training import Row, accuracy, in_a_process, publish, pyplot, rows_of, run_missing, save_figure, taught

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import handwriting
from models import resnet8

import fxprune
from fxprune.gated.pressure import Steering

RESULT = Path(__file__).parent / "results" / "sensitivity"
RUNS = 10  # per budget
KINDS = {"drawn": "settings drawn", "defaults": "seeds alone"}
Values = dict[str, float]


@dataclass(frozen=True)
class Setting:
    """Where the runs take place, and the two settings that belong to its optimizer."""

    told: str
    lr: float
    weight_decay: float
    epochs: tuple[int, int, int]
    optimizer: Callable[[Any, Values], torch.optim.Optimizer]

    def defaults(self) -> Values:
        steering = Steering()
        return {
            "lr": self.lr, "weight decay": self.weight_decay, "alpha": 0.9, "T": 4.0, "hardness": steering.hardness,
            "gain": steering.gain, "margin": steering.margin,
        }  # fmt: skip

    def interval(self, name: str) -> tuple[float, float]:
        """Half of the default to one and a half of it; alpha is a share."""
        middle = self.defaults()[name]
        return (0.8, 1.0) if name == "alpha" else (0.5 * middle, 1.5 * middle)

    def drawn(self, budget: str, number: int) -> Values:
        lots = random.Random(f"{budget} {number}")
        return {name: lots.uniform(*self.interval(name)) for name in self.defaults()}


def adam(groups: Any, values: Values) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr=values["lr"], weight_decay=values["weight decay"])


def sgd(groups: Any, values: Values) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        groups, lr=values["lr"], momentum=0.9, nesterov=True, weight_decay=values["weight decay"]
    )  # fmt: skip


SETTINGS = {
    "digits": Setting("ResNet-8 (16 to 64 channels) on scikit-learn's digits, Adam", 6e-3, 1e-4, (4, 4, 1), adam),
    "cifar": Setting("ResNet-8 on 10,000 pictures of CIFAR-10, SGD", 0.1, 5e-4, EPOCHS, sgd),
}


def material(options: argparse.Namespace) -> tuple[nn.Module, Any, Any, Any]:
    """The teacher, and loaders to train, to watch and to test."""
    if options.setting == "cifar":
        data = pictures(options.data)
        train, watched = Loader(data["train"], BATCH, training=True), part(data["val"], slice(WATCHED))
        return cifar_teacher(options.runs, 0, data), train, Loader(watched, 500), Loader(data["test"], 500)
    train, val = handwriting.loaders()
    torch.manual_seed(0)
    return taught(resnet8(width=16), train, (8, 2), options.runs / "teacher.pt"), train, val, val


def one(options: argparse.Namespace) -> None:
    """One run, in a process of its own: its row is printed as JSON."""
    torch.set_num_threads(1)
    setting, (kind, budget, seed) = SETTINGS[options.setting], options.one.split(",")
    net, train, watched, test = material(options)
    row: Row = {"kind": kind, "budget": budget, "seed": int(seed)}
    if kind == "teacher":
        print(json.dumps({**row, "accuracy": accuracy(net, test)}))
        return
    begin = time.perf_counter()
    values = setting.drawn(budget, int(seed)) if kind == "drawn" else setting.defaults()
    pruned = fxprune.prune(
        net, train, watched, budget=BUDGETS[budget], epochs=setting.epochs, seed=int(seed), progress=False,
        optimizer=lambda groups: setting.optimizer(groups, values), alpha=values["alpha"], temperature=values["T"],
        method_options={name: values[name] for name in ("hardness", "gain", "margin")},
        run=options.runs / f"{kind}-{budget.replace('/', '_')}-{seed}" if options.setting == "cifar" else None,
    )  # fmt: skip
    cost = pruned.report["cost"]["volume"]
    row |= {
        "values": {name: float(f"{value:.4g}") for name, value in values.items()},
        "accuracy": accuracy(pruned.slim, test),
        "volume": cost["after"] / (BUDGETS[budget] * cost["before"]),
        "reached": round(pruned.report["reached"], 3),
        "minutes": round((time.perf_counter() - begin) / 60, 2),
    }
    print(json.dumps(row))


def key_of(row: Row) -> str:
    return f"{row['kind']},{row['budget']},{row['seed']}"


def all_runs(options: argparse.Namespace) -> list[Row]:
    """The teacher first; no more than ``most`` of the others."""
    file, given = options.runs / "rows.jsonl", ["--setting", options.setting, "--runs", str(options.runs)]
    given += ["--data", options.data] if options.data else []
    done = {key_of(row) for row in rows_of(file)}
    others = [f"{kind},{budget},{seed}" for seed in range(RUNS) for budget in reversed(BUDGETS) for kind in KINDS]
    others = [key for key in others if key not in done][: options.most]
    for keys in (["teacher,,0"], others):
        run_missing(file, keys, key_of, lambda key: in_a_process(__file__, *given, "--one", key), options.jobs)
    return rows_of(file)


def some(rows: list[Row], kind: str, budget: str) -> list[float]:
    return [row["accuracy"] for row in rows if row["kind"] == kind and row["budget"] == budget]


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}" if len(values) > 1 else "–"


def markdown(rows: list[Row], options: argparse.Namespace) -> str:
    setting = SETTINGS[options.setting]
    command = f"python benchmarks/sensitivity.py --setting {options.setting}"
    command += " --data cifar10.npz" if options.setting == "cifar" else ""
    lines = ["# How sensitive BAR is to its settings", "", f"`{command}`", ""]
    taught = next(row["accuracy"] for row in rows if row["kind"] == "teacher")
    lines += [f"{setting.told}; {'+'.join(map(str, setting.epochs))} epochs. Teacher: {taught:.1f} %.", ""]
    columns = ["budget", *(f"{told}: accuracy %" for told in KINDS.values()), "least and largest, drawn", "runs"]
    lines += [f"| {' | '.join(columns)} |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for budget in BUDGETS:
        accuracies = {kind: some(rows, kind, budget) for kind in KINDS}
        ends = f"{min(accuracies['drawn']):.1f} to {max(accuracies['drawn']):.1f}" if accuracies["drawn"] else "–"
        counts = " + ".join(str(len(values)) for values in accuracies.values())
        lines.append(f"| {budget} | {' | '.join(map(spread, accuracies.values()))} | {ends} | {counts} |")
    lines += ["", "Mean and standard deviation. With *settings drawn* all seven are drawn at once, uniformly:", ""]
    lines += ["| setting | default | from | to |", "| --- | --- | --- | --- |"]
    for name, value in setting.defaults().items():
        lines.append(f"| {name} | {value:g} | {' | '.join(f'{end:g}' for end in setting.interval(name))} |")
    used = [row["volume"] for row in rows if row["kind"] in KINDS]
    if used:
        lines += ["", f"Volume of the slim nets over the budget: {min(used):.4f} to {max(used):.4f}."]
    picture = options.out.with_suffix(".png").name
    lines += ["", f"{machine()}", "", f"![Accuracy against the volume factor]({picture})", ""]
    return "\n".join(lines)


def plot(rows: list[Row], out: Path) -> None:
    """Mean and standard deviation over the volume factor."""
    drawing = pyplot()
    if drawing is None:
        return
    figure, axes = drawing.subplots(figsize=(6.4, 4), layout="constrained")
    for shift, (kind, told) in zip((0.97, 1.03), KINDS.items(), strict=True):
        accuracies = {1 / share: some(rows, kind, budget) for budget, share in BUDGETS.items()}
        accuracies = {factor: values for factor, values in accuracies.items() if len(values) > 1}
        means = [statistics.mean(values) for values in accuracies.values()]
        spreads = [statistics.stdev(values) for values in accuracies.values()]
        axes.errorbar([shift * factor for factor in accuracies], means, spreads, marker="o", capsize=4, label=told)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="volume factor", ylabel="accuracy, %", xticks=[1 / share for share in BUDGETS.values()])
    axes.xaxis.set_major_formatter(lambda factor, _: f"{factor:g}")
    axes.legend()
    save_figure(figure, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--setting", choices=SETTINGS, default="digits")
    parser.add_argument("--data", default=os.environ.get(VARIABLE), help=f"of CIFAR-10, also from {VARIABLE}")
    parser.add_argument("--runs", type=Path, help="where rows and runs are kept: runs/sensitivity-SETTING")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, a thread each")
    parser.add_argument("--most", type=int, help="start no more runs than these now")
    parser.add_argument("--out", type=Path, help="without suffix: .jsonl, .md, .png, .svg are written")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.setting == "cifar" and not options.data:
        parser.error("no pictures: give --data cifar10.npz, or the folder of torchvision's CIFAR10")
    options.runs = options.runs or Path(f"runs/sensitivity-{options.setting}")
    options.out = options.out or (RESULT if options.setting == "digits" else RESULT.with_name("sensitivity_cifar"))
    options.runs.mkdir(parents=True, exist_ok=True)
    if options.one:
        one(options)
        return
    rows = all_runs(options)
    publish(rows, key_of, markdown(rows, options), options.out)
    plot(rows, options.out)


if __name__ == "__main__":
    main()
