"""Prune a small residual net on real handwriting (scikit-learn's digits) to a quarter of its activation volume.

    python examples/digits.py

Trains the net, keeps the filters with the largest weights that fit the budget, compiles the slim net, fine-tunes it,
and prints what became of it. Takes about a minute on two cores.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from models import resnet8
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from torch import nn

import fxprune

Data = tuple[torch.Tensor, torch.Tensor]


def digits() -> tuple[Data, Data]:
    """1,797 pictures of 8x8, doubled in size, as three equal colour channels; every fifth one is for testing."""
    found = load_digits()
    x = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1
    x = F.interpolate(x, scale_factor=2, mode="bilinear").expand(-1, 3, -1, -1).contiguous()
    y = torch.tensor(found.target)
    test = torch.arange(len(y)) % 5 == 0
    return (x[~test], y[~test]), (x[test], y[test])


def train(net: nn.Module, data: Data, epochs: int, lr: float, what: str) -> None:
    x, y = data
    optimizer = torch.optim.Adam(net.parameters(), lr, weight_decay=5e-4)
    net.train()
    for _ in track(range(epochs), what):
        for index in torch.randperm(len(y)).split(64):
            loss = F.cross_entropy(net(x[index]), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def accuracy(net: nn.Module, data: Data) -> float:
    net.eval()
    with torch.no_grad():
        return float((net(data[0]).argmax(1) == data[1]).double().mean())


def milliseconds(net: nn.Module, x: torch.Tensor) -> float:
    """The median of 30 forward passes."""
    times = []
    with torch.inference_mode():
        for _ in range(30):
            begin = time.perf_counter()
            net(x)
            times.append(time.perf_counter() - begin)
    return 1000 * sorted(times)[len(times) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=1 / 4, help="fraction of the activation volume to keep")
    parser.add_argument("--epochs", type=int, nargs=2, default=(8, 8), help="before and after pruning")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--save", default=None, help="folder for the slim net as readable source and weights")
    options = parser.parse_args()
    torch.manual_seed(0)
    training, testing = digits()
    net = resnet8(options.width)
    train(net, training, options.epochs[0], 1e-3, "Training the full net")

    wrapped = fxprune.wrap(net, budget=options.budget, example_inputs=testing[0][:2])
    weights = {name: net.get_submodule(name).weight.detach() for name in wrapped.gates}
    wrapped.harden(scores={name: w.abs().sum((1, 2, 3)) / w.abs().sum() * len(w) for name, w in weights.items()})
    slim = fxprune.export(wrapped)
    train(slim, training, options.epochs[1], 1e-3, "Fine-tuning the slim net")

    table = Table("", "full", "slim", "ratio")
    before, after = slim.report.before, slim.report.after
    rows = {metric: (before[metric], after[metric]) for metric in ("volume", "flops", "params")}
    for name, (full, small) in rows.items():
        table.add_row(name, f"{full:,}", f"{small:,}", f"1/{full / small:.1f}")
    full_ms, slim_ms = (milliseconds(each.eval(), testing[0][:32]) for each in (net, slim))
    table.add_row("ms for 32 pictures", f"{full_ms:.1f}", f"{slim_ms:.1f}", f"1/{full_ms / slim_ms:.1f}")
    table.add_row("test accuracy", f"{accuracy(net, testing):.1%}", f"{accuracy(slim, testing):.1%}", "")
    console = Console()
    console.print(table)
    console.print(f"Largest difference between the masked and the slim net: {slim.report.error:.0e} of the output.")
    if options.save:
        console.print(f"Written to {fxprune.save(slim, options.save)}: model.py and weights.pt, which need torch only.")


if __name__ == "__main__":
    main()
