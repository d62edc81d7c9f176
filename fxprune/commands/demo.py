"""``fxprune demo``: a small residual net that reads real handwriting, cut without training, and pruned in training."""

from __future__ import annotations

import argparse
import io
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import nn

from fxprune.api import cut, prune, save
from fxprune.commands.export import write_files
from fxprune.commands.options import parse_budget
from fxprune.cost.model import METRICS
from fxprune.demo import DigitNet, loaders
from fxprune.latency.stopwatch import in_turns
from fxprune.report.page import PAGE
from fxprune.report.text import human
from fxprune.run.checkpoint import load_run
from fxprune.run.folder import Run
from fxprune.run.layout import CHECKPOINT, SLIM
from fxprune.save.onnx import installed
from fxprune.train.data import Batches
from fxprune.train.loop import Pruned
from fxprune.train.measure import accuracy, evaluate
from fxprune.train.reproduce import seed_all

SCHEMA, FOLDER = "fxprune.demo/1", "fxprune-demo"
EPOCHS, RATE = (20, 20, 5), 3e-3  # a minute or two on two cores
BATCHES, ROUNDS = (1, 32), 40  # of the times
CUT, SAMPLES = "cut", 512  # the folder of the net that was only cut, and the pictures it was fitted to
HELP = "cut and prune a small residual net on real handwriting, in a minute or two"
DESCRIPTION = (
    "Train a small residual net on scikit-learn's digits; cut it to a budget in seconds, without labels and without "
    "training; prune it to the same budget in training, fine-tune that, and show all three side by side."
)
EPILOG = """examples:
  fxprune demo
  fxprune demo --budget 1/16 --out sixteenth

Ctrl-C loses nothing: the same command goes on where it stopped. Needs scikit-learn."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--budget", default="1/8", metavar="1/8", help="fraction of the activation volume to keep (default: 1/8)")
    default = " ".join(map(str, EPOCHS))
    add("--epochs", type=int, nargs=3, default=EPOCHS, metavar=("PRUNE", "TUNE", "SLOW"),
        help=f"of pruning, of fine-tuning, and of that at a tenth of the rate (default: {default})")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="of weights, batches and gates (default: 0)")
    add("--out", type=Path, default=Path(FOLDER), metavar="FOLDER", help=f"where all is kept (default: {FOLDER})")
    add("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    budget = parse_budget(options.budget)
    train, test = loaders()
    console = Console(stderr=options.json)
    seed_all(options.seed, "made")  # random weights are the same ones when a run goes on
    full = DigitNet()
    pruned = prune(
        full, train, test, budget=budget, epochs=options.epochs, teacher="train", seed=options.seed,
        optimizer=_adam, run=options.out, progress=console,
    )  # fmt: skip
    kept = Run(options.out)
    full.load_state_dict(load_run(kept.folder / CHECKPOINT)["kept"]["teacher"])  # as it was trained, before pruning
    seed_all(options.seed, "cut")
    pictures = torch.cat([x for x, _ in train])[:SAMPLES]
    started = time.perf_counter()
    small = cut(full, pictures, budget, seed=options.seed, progress=Console(stderr=True))
    seconds = time.perf_counter() - started
    save(small, kept.folder / CUT)
    said = {
        "schema": SCHEMA,
        "budget": budget,
        "seed": options.seed,
        "epochs": list(options.epochs),
        **_measured(pruned, full, kept),
        "cut": {**_of_cut(small, full, test, kept), "seconds": round(seconds, 3), "samples": len(pictures)},
        "files": _files(kept),
    }
    if options.json:
        print(json.dumps(said, indent=2))
    else:
        show(said, console)
    return 0


def _adam(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """With a higher rate than the paper's: the net is small and the run is short."""
    return torch.optim.Adam(groups, lr=RATE, weight_decay=5e-4)


def _measured(pruned: Pruned, full: nn.Module, run: Run) -> dict[str, Any]:
    """Unpruned and slim, in this order."""
    weights = io.BytesIO()
    torch.save(full.state_dict(), weights)
    cost = pruned.report["cost"]
    times = {size: in_turns([full.eval(), pruned.slim], run.example(size), ROUNDS) for size in BATCHES}
    return {
        "accuracy": [pruned.before, pruned.after],
        **{metric: [cost[metric]["before"], cost[metric]["after"]] for metric in METRICS},
        "bytes": [weights.tell(), (run.folder / SLIM / "weights.pt").stat().st_size],
        "milliseconds": {str(size): [round(1000 * median(own), 4) for own in taken] for size, taken in times.items()},
        "removed": pruned.report["removed"],
        "error": pruned.report["error"],
    }


def _of_cut(small: Any, full: nn.Module, test: Any, run: Run) -> dict[str, Any]:
    """The same of the net that was only cut."""
    times = {size: in_turns([full.eval(), small], run.example(size), ROUNDS)[1] for size in BATCHES}
    return {
        "accuracy": evaluate(small, Batches(test, "val"), accuracy, torch.device("cpu")),
        **{metric: small.report.after[metric] for metric in METRICS},
        "bytes": (run.folder / CUT / "weights.pt").stat().st_size,
        "milliseconds": {str(size): round(1000 * median(taken), 4) for size, taken in times.items()},
        "agreement": small.report.agreement,
        "missed": small.report.missed,
    }


def _files(run: Run) -> dict[str, str | None]:
    onnx = run.folder / "slim.onnx"
    if installed("onnx", "onnxscript"):
        write_files(run, onnx=onnx)
    written = str(onnx) if onnx.exists() else None
    return {"run": str(run.folder), "source": str(run.folder / SLIM / "model.py"), "onnx": written}


def show(said: dict[str, Any], console: Console) -> None:
    """A table, where everything is, and what to do next."""
    table = Table("", title="A residual net that reads handwritten digits", title_justify="left", box=SIMPLE_HEAD)
    for name in ("unpruned", "cut", "ratio", "trained", "ratio"):
        table.add_column(name, justify="right")
    only = said["cut"]
    before, after = said["accuracy"]
    shown = [cell for each in (only["accuracy"], after) for cell in (f"{each:.1%}", f"{100 * (each - before):+.1f} pt")]
    table.add_row("accuracy, unseen digits", f"{before:.1%}", *shown)
    names = {"volume": "volume of activations", "flops": "FLOPs", "params": "parameters", "bytes": "bytes of weights"}
    for key, name in names.items():
        full, slim = said[key]
        table.add_row(
            name, human(full), human(only[key]), _ratio(full, only[key]), human(slim), _ratio(full, slim)
        )  # fmt: skip
    for size, (full, slim) in said["milliseconds"].items():
        pictures, own = "1 picture" if size == "1" else f"{size} pictures", only["milliseconds"][size]
        times = f"{own:.2f} ms", _ratio(full, own), f"{slim:.2f} ms", _ratio(full, slim)
        table.add_row(f"time for {pictures}", f"{full:.2f} ms", *times)
    console.print(table)
    run, source, onnx = (said["files"][name] for name in ("run", "source", "onnx"))
    lines = [
        f"cut: in {only['seconds']:.1f} s from {only['samples']} pictures without labels, without training; it gives "
        f"{only['agreement']:.1%} of those held back the same answer.",
        f"trained: pruned and fine-tuned for {sum(said['epochs'])} epochs with labels, to the same budget.",
        f"The slim net computes what the gated one computed, up to {said['error']:.0e} of the output; "
        f"{len(said['removed'])} layers are gone altogether.",
        "",
        f"{Path(run) / CUT}: the net that was cut, as source and weights",
        f"{source}: the trained one: source, which needs torch only, and weights beside it",
        f"{onnx}: the same as ONNX" if onnx else "no ONNX file: pip install onnx onnxruntime onnxscript, and again",
        f"{Path(run) / PAGE}: what happened, as a page for your browser",
        f"{run}: the run, with log.csv and report.json",
        "",
        "What next:",
        f"  fxprune check {onnx or Path(run) / SLIM} --against {run}    # on budget, and the same net?",
        "  fxprune cut your_model.py:Net --weights net.pth --pictures photos --budget 1/2 --out slim    # yours",
        "  fxprune inspect your_model.py:Net --input 1x3x224x224    # what could go from a net of yours",
        "  fxprune prune your_run.toml    # prune it (docs/how-to/prune.md), or in Python: fxprune.prune(...)",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _ratio(before: float, after: float) -> str:
    """
    >>> _ratio(800, 100), _ratio(100, 125)
    ('1/8.0', '1.2')
    """
    return f"1/{before / after:.1f}" if after <= before else f"{after / before:.1f}"
