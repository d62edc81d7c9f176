"""BAR on CIFAR-10, small: is every net on budget, how accurate is it, and how closely does training follow the budget?

    python benchmarks/cifar.py --data cifar10.npz [--runs FOLDER] [--jobs 2] [--validate] [--out results/cifar]

ResNet-8 (32/64/128 channels), the first 10,000 training pictures, batches of 64. A teacher per seed learns for 16
epochs; ``fxprune.prune`` then takes 12: 4 of pruning and 8 of fine-tuning the slim net, the last at a tenth of the
learning rate. Budgets 1/2 to 1/16 of the volume, three seeds, Adam and SGD; all that belongs to gates and budget is a
default. Learning rates, weight decay, augmentation and the split of the epochs were chosen on training pictures 10,000
to 20,000 (``--validate`` tells the accuracy on them), never on test pictures.

The data is an .npz of train_x, train_y, test_x, test_y (uint8 N x 3 x 32 x 32, and labels), or the folder of
torchvision's CIFAR10. Each run is a process of one thread with a folder of its own: a benchmark that was cut off goes
on where it was when it is started again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn

from cifar_data import VARIABLE, WATCHED, Loader, Pair, part, pictures
from timing import machine
from training import Row, accuracy, in_a_process, publish, pyplot, rows_of, run_missing, save_figure, taught

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from models import resnet8

import fxprune

RESULT = Path(__file__).parent / "results" / "cifar"
BUDGETS = {"1/2": 1 / 2, "1/4": 1 / 4, "1/8": 1 / 8, "1/16": 1 / 16}
SEEDS = (0, 1, 2)
EPOCHS = (4, 7, 1)
BATCH = 64
TRIAL = {"1/2": 70.9, "1/4": 68.1, "1/8": 61.3, "1/16": 53.3}  # a first trial of the method, one seed
OPTIMIZERS = {
    "adam": lambda groups: torch.optim.Adam(groups, lr=6e-3, weight_decay=1e-4),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
}


def teacher(folder: Path, seed: int, data: dict[str, Pair]) -> nn.Module:
    """With shifts: it can overfit, which the nets pruned from it cannot."""
    torch.manual_seed(seed)
    batches = Loader(data["train"], BATCH, training=True, shift=4)
    return taught(resnet8(), batches, (12, 4), folder / f"teacher-{seed}.pt")


def one(options: argparse.Namespace) -> None:
    """One run, in a process of its own: its row is printed as JSON."""
    torch.set_num_threads(1)
    optimizer, budget, seed = options.one.split(",")
    data = pictures(options.data)
    folder = Path(options.runs)
    net = teacher(folder, int(seed), data)
    if optimizer == "teacher":
        print(json.dumps({"optimizer": "teacher", "seed": int(seed), **scores(net, data)}))
        return
    begin = time.perf_counter()
    watched = Loader(part(data["val"], slice(WATCHED)), 500)
    pruned = fxprune.prune(
        net, Loader(data["train"], BATCH, training=True), watched, budget=BUDGETS[budget], epochs=EPOCHS,
        optimizer=OPTIMIZERS[optimizer], seed=int(seed), progress=False,
        run=folder / f"{optimizer}-{budget.replace('/', '_')}-{seed}",
    )  # fmt: skip
    assert pruned.run is not None
    rows = [json.loads(line) for line in (pruned.run / "log.jsonl").read_text().splitlines()]
    steps = EPOCHS[0] * len(Loader(data["train"], BATCH))
    cost = pruned.report["cost"]
    row = {
        "optimizer": optimizer,
        "budget": budget,
        "seed": int(seed),
        **scores(pruned.slim, data),
        "hardened": pruned.report["accuracy"]["hardened"],
        "exported": pruned.report["accuracy"]["exported"],
        "volume": cost["volume"]["after"] / (BUDGETS[budget] * cost["volume"]["before"]),
        "flop_factor": round(cost["flops"]["before"] / cost["flops"]["after"], 1),
        "widths": pruned.report["widths"],
        "error": pruned.report["error"],
        "curve": [(round(r["step"] / steps, 4), r["V"], r["b"]) for r in rows if r["phase"] == "prune"],
        "minutes": round((time.perf_counter() - begin) / 60, 2),
    }
    print(json.dumps(row))


def scores(net: nn.Module, data: dict[str, Pair]) -> dict[str, float]:
    return {name: accuracy(net, Loader(data[name], 500)) for name in ("val", "test")}


def key_of(row: Row) -> str:
    return ",".join(str(row.get(name, "")) for name in ("optimizer", "budget", "seed"))


def all_runs(options: argparse.Namespace) -> list[Row]:
    """The teachers first."""
    file, given = options.runs / "rows.jsonl", ("--data", options.data, "--runs", str(options.runs))
    teachers = [f"teacher,,{seed}" for seed in SEEDS]
    others = [f"{name},{budget},{seed}" for seed in SEEDS for budget in reversed(BUDGETS) for name in options.only]
    for keys in (teachers, others):
        run_missing(file, keys, key_of, lambda key: in_a_process(__file__, *given, "--one", key), options.jobs)
    return rows_of(file)


def follows(row: Row, largest: int = 256) -> float:
    """By how much V exceeds 1.1 b, where the barrier ends, and one channel of the largest area; negative if never."""
    return max((cost - 1.1 * b - largest) / b for _, cost, b in row["curve"])


def over(row: Row) -> float:
    """The largest V / b of a run."""
    return max(float(cost / b) for _, cost, b in row["curve"])


def markdown(rows: list[Row], options: argparse.Namespace, command: str) -> str:
    which = "val" if options.validate else "test"
    taught = [row[which] for row in rows if row["optimizer"] == "teacher"]
    head = ("optimizer", "budget", f"{which} accuracy %", "each seed", "trial", "FLOP factor", "volume / budget",
            "V / b before harden", "largest V / b", "follows b", "hardened = exported")  # fmt: skip
    lines = ["# BAR on CIFAR-10: ResNet-8, 10,000 pictures, 12 epochs", "", f"`{command}`", ""]
    lines += [f"Teachers (16 epochs): {', '.join(f'{value:.1f}' for value in taught)} %.", ""]
    lines += ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for name in OPTIMIZERS:
        for budget in BUDGETS:
            some = [row for row in rows if row["optimizer"] == name and row.get("budget") == budget]
            if not some:
                continue
            values = [row[which] for row in some]
            last = [row["curve"][-1][1] / row["curve"][-1][2] for row in some]
            lines.append("| " + " | ".join([
                name, budget, f"{statistics.mean(values):.1f}", ", ".join(f"{value:.1f}" for value in values),
                str(TRIAL[budget]), ", ".join(f"{row['flop_factor']:.0f}" for row in some),
                f"{min(row['volume'] for row in some):.4f} to {max(row['volume'] for row in some):.4f}",
                f"{min(last):.2f} to {max(last):.2f}", f"{max(map(over, some)):.2f}",
                "yes" if max(map(follows, some)) <= 0 else "NO",
                "yes" if all(row["hardened"] == row["exported"] for row in some) else "NO",
            ]) + " |")  # fmt: skip
    lines += ["", "*follows b*: V <= 1.1 b + one channel of the largest area, at every tenth of an epoch. *hardened =",
              "exported*: the same accuracy on 2,000 pictures. *trial*: a first, separate one, one seed.",
              "", f"The pictures are a JPEG re-encoding of CIFAR-10 where the .npz was made of one. {machine()}",
              "", "![V against b](cifar.png)", ""]  # fmt: skip
    return "\n".join(lines)


def plot(rows: list[Row], out: Path) -> None:
    """V against the sliding b, a panel per optimizer and budget."""
    drawing = pyplot()
    if drawing is None:
        return
    figure, panels = drawing.subplots(
        len(OPTIMIZERS), len(BUDGETS), figsize=(14, 6), sharex=True, squeeze=False, layout="constrained"
    )
    for line, name in zip(panels, OPTIMIZERS, strict=True):
        for panel, budget in zip(line, BUDGETS, strict=True):
            some = [row for row in rows if row["optimizer"] == name and row.get("budget") == budget]
            for row in some:
                steps, costs, _ = zip(*row["curve"], strict=True)
                panel.plot(steps, costs, linewidth=1, label=f"V, seed {row['seed']}")
            for row in some[:1]:
                steps, _, limits = zip(*row["curve"], strict=True)
                panel.plot(steps, limits, "k--", linewidth=1, label="b")
            panel.set(title=f"{name}, {budget}", yscale="log")
    panels[0][0].legend()
    figure.supxlabel("progress of the pruning phase")
    figure.supylabel("volume")
    save_figure(figure, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", default=os.environ.get(VARIABLE), help=f"also from {VARIABLE}")
    parser.add_argument("--runs", type=Path, default=Path("runs/cifar"), help="where the runs are kept")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, a thread each")
    parser.add_argument("--only", nargs="*", choices=OPTIMIZERS, default=list(OPTIMIZERS), help="these optimizers now")
    parser.add_argument("--validate", action="store_true", help="tell the accuracy on the validation pictures")
    parser.add_argument("--out", type=Path, default=RESULT, help="without suffix: .jsonl, .md, .png, .svg are written")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.data:
        parser.error("no pictures: give --data cifar10.npz, or the folder of torchvision's CIFAR10")
    options.runs.mkdir(parents=True, exist_ok=True)
    if options.one:
        one(options)
        return
    rows = all_runs(options)
    command = f"python benchmarks/cifar.py --data cifar10.npz --jobs {options.jobs}"
    publish(rows, key_of, markdown(rows, options, command), options.out)
    plot(rows, options.out)


if __name__ == "__main__":
    main()
