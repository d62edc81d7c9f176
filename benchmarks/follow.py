"""Does training follow the sliding budget, with nothing tuned? A small and a large net, two optimizers, two losses; and
the small one without the parts of ``bar`` that are there for it.

    python benchmarks/follow.py [--jobs 2] [--out results/follow]

scikit-learn's digits, scaled up: a ResNet-8 at 32x32 (volume 43,008) and a shallow residual net at 88x88 (volume
3.1 million). Each is trained, then pruned to 1/8 by a plain loop with ``progress`` and ``budget_loss``, with Adam and
with SGD, with distillation and without, and exported without fine-tuning. Everything about gates and budget is a
default. Net and optimizer are a process of one thread.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import update_bn

from timing import machine
from training import in_a_process

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from models import BasicBlock, resnet8

import fxprune
from fxprune.gated.pressure import Steering

RESULT = Path(__file__).parent / "results" / "follow"
BUDGET, TESTED = 1 / 8, 300
OPTIMIZERS = {
    "adam": lambda groups: torch.optim.Adam(groups, lr=1e-3, weight_decay=5e-4),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.02, momentum=0.9, weight_decay=5e-4),
}
WITHOUT = {  # of the small net: what bar has for following
    "": Steering(), "look-ahead": Steering(ahead=0), "sliding interval": Steering(interval="fixed"),
    "controller": Steering(gain=0),
}  # fmt: skip
HEADER = ("net", "without", "optimizer", "loss", "V <= 1.1 b + a channel", "largest V / b", "V / B at the end",
          "accuracy before %", "pruned %")  # fmt: skip


class Shallow(nn.Module):
    """Three wide layers at the input's resolution, two of them 1x1 in a residual, and a small ResNet behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 128, 3, padding=1, bias=False), nn.BatchNorm2d(128), nn.ReLU())
        self.wide = nn.Sequential(
            nn.Conv2d(128, 128, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU(),
            nn.Conv2d(128, 128, 1, bias=False), nn.BatchNorm2d(128),
        )  # fmt: skip
        self.down = nn.Sequential(nn.Conv2d(128, 64, 4, stride=4, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.blocks = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 128, 2))
        self.fc = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = self.blocks(self.down(F.relu(x + self.wide(x))))
        logits: torch.Tensor = self.fc(x.mean((2, 3)))
        return logits


@dataclass(frozen=True)
class Case:
    make: Any
    size: int
    batch: int
    epochs: tuple[int, int]  # before pruning, pruning
    pictures: int


SMALL = "40k"
CASES = {"3M": Case(Shallow, 88, 16, (3, 6), 800), SMALL: Case(resnet8, 32, 32, (3, 8), 1400)}


def data(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    small = torch.tensor(digits.images, dtype=torch.float32).div(16).unsqueeze(1)[order]
    large = F.interpolate(small[: case.pictures + TESTED], size=(case.size, case.size), mode="bilinear")
    return large.expand(-1, 3, -1, -1), torch.from_numpy(digits.target)[order][: case.pictures + TESTED]


@torch.no_grad()
def accuracy(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    net.eval()
    answers = torch.cat([net(part).argmax(1) for part in x[-TESTED:].split(50)])
    return round(100 * float((answers == y[-TESTED:]).float().mean()), 1)


def one(name: str, without: str, optimizer: str) -> list[dict[str, Any]]:
    """A net, trained and then pruned with and without distillation."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    case = CASES[name]
    x, y = data(case)
    steps = case.pictures // case.batch

    def batches(epochs: int) -> Any:
        for _ in range(epochs):
            yield from torch.randperm(case.pictures)[: steps * case.batch].split(case.batch)

    model = case.make().train()
    first = torch.optim.Adam(model.parameters(), lr=1e-3)
    for part in batches(case.epochs[0]):
        first.zero_grad()
        F.cross_entropy(model(x[part]), y[part]).backward()
        first.step()
    before = accuracy(model, x, y)
    steering = WITHOUT[without]
    rows = [pruned(model, case, x, y, optimizer, steering, batches, distilled) for distilled in (True, False)]
    return [{"net": name, "without": without, "optimizer": optimizer, "before": before, **row} for row in rows]


def pruned(
    model: nn.Module, case: Case, x: torch.Tensor, y: torch.Tensor, optimizer: str, steering: Steering, batches: Any,
    distilled: bool,
) -> dict[str, Any]:
    net = fxprune.wrap(model, BUDGET, example_inputs=x[:2]).train()
    net.pressure.steer(steering)
    second = OPTIMIZERS[optimizer](net.parameter_groups())
    total, curve = case.epochs[1] * (case.pictures // case.batch), []
    for number, part in enumerate(batches(case.epochs[1])):
        net.progress = number / total
        if number % max(total // 20, 1) == 0:
            curve.append((number / total, net.cost().volume, net.sliding_budget()["volume"]))
        output = net(x[part])
        if distilled:
            with torch.no_grad():
                taught = model(x[part])
            loss = fxprune.distillation_loss(output, taught, y[part])
        else:
            loss = F.cross_entropy(output, y[part])
        second.zero_grad()
        (loss + net.budget_loss()).backward()
        second.step()
    net.progress = 1.0
    curve.append((1.0, net.cost().volume, net.sliding_budget()["volume"]))
    largest = max(call.area for layer in net.analysis.layers for call in layer.calls)
    net.harden()
    update_bn((x[part] for part in batches(1)), net)  # statistics that belong to the gates as they are now
    slim = fxprune.export(net.eval())
    return {
        "loss": "distillation" if distilled else "labels", "volume": net.full_cost().volume, "largest": largest,
        "curve": curve, "after": accuracy(slim, x, y),
    }  # fmt: skip


def cells(row: dict[str, Any]) -> list[str]:
    kept = all(cost <= 1.1 * b + row["largest"] for _, cost, b in row["curve"])
    over = max(cost / b for _, cost, b in row["curve"])
    _, cost, b = row["curve"][-1]
    return [f"{row['net']} ({row['volume']:,})", row["without"] or "–", row["optimizer"], row["loss"],
            "yes" if kept else "NO", f"{over:.3f}", f"{cost / b:.3f}",
            f"{row['before']:.1f}", f"{row['after']:.1f}"]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2, help="processes at once, a thread each")
    parser.add_argument("--nets", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--out", type=Path, default=RESULT, help="without suffix: .json and .md are written")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(*options.one.split(","))))
        return

    cases = [(name, without) for name in options.nets for without in WITHOUT if name == SMALL or not without]
    keys = [f"{name},{without},{optimizer}" for (name, without), optimizer in itertools.product(cases, OPTIMIZERS)]
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = pool.map(lambda key: in_a_process(__file__, "--one", key), keys)
        rows = [row for several in track(runs, "runs", total=len(keys)) for row in several]
    asked = "" if options.nets == list(CASES) else " --nets " + " ".join(options.nets)
    table = Table(*HEADER)
    for row in rows:
        table.add_row(*cells(row))
    Console().print(table)
    lines = ["# How training follows the sliding budget", "", f"`python benchmarks/follow.py{asked}`", ""]
    lines += ["| " + " | ".join(HEADER) + " |", "|" + " --- |" * len(HEADER)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    lines += ["", "Nothing is tuned. V is read at every 5 % of the steps, before `harden`. *pruned*: hardened,",
              f"exported at 1/8, norms re-estimated, not fine-tuned; chance is 10 %. {machine()}", ""]  # fmt: skip
    options.out.with_suffix(".json").write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    options.out.with_suffix(".md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
