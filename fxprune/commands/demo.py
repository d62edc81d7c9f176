"""``fxprune demo``: train, prune and fine-tune a small residual net on real handwriting, and show what came of it."""

from __future__ import annotations

import argparse
import io
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from fxprune.api import prune
from fxprune.commands.export import write_files
from fxprune.commands.options import Subparsers, parse_budget
from fxprune.demo import DigitNet, loaders
from fxprune.latency.stopwatch import in_turns
from fxprune.report.page import PAGE
from fxprune.report.text import human
from fxprune.run.folder import Run
from fxprune.run.names import SLIM
from fxprune.save.onnx import installed
from fxprune.train.loop import Pruned
from fxprune.train.reproduce import seed_all

SCHEMA, FOLDER = "fxprune.demo/1", "fxprune-demo"
EPOCHS, RATE = (20, 20, 5), 3e-3  # a minute or two on two cores
BATCHES, ROUNDS = (1, 32), 40  # of the times
_EPILOG = """examples:
  fxprune demo
  fxprune demo --budget 1/16 --out sixteenth

Ctrl-C loses nothing: the same command goes on where it stopped. Needs scikit-learn."""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "demo",
        help="prune a small residual net on real handwriting, in a minute or two",
        description="Train a small residual net on scikit-learn's digits, prune it to a budget, fine-tune the slim "
        "net, and show both side by side.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("--budget", default="1/8", metavar="1/8", help="fraction of the activation volume to keep (default: 1/8)")
    default = " ".join(map(str, EPOCHS))
    add("--epochs", type=int, nargs=3, default=EPOCHS, metavar=("PRUNE", "TUNE", "SLOW"),
        help=f"of pruning, of fine-tuning, and of that at a tenth of the rate (default: {default})")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="of weights, batches and gates (default: 0)")
    add("--out", type=Path, default=Path(FOLDER), metavar="FOLDER", help=f"where all is kept (default: {FOLDER})")
    add("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    budget = parse_budget(options.budget)
    train, test = loaders()
    console = Console(stderr=options.json)
    seed_all(options.seed, "made")  # random weights are the same ones when a run goes on
    full = DigitNet()
    made = prune(
        full, train, test, budget=budget, epochs=options.epochs, teacher="train", seed=options.seed,
        optimizer=_adam, run=options.out, progress=console,
    )  # fmt: skip
    found = Run(options.out)
    said = {
        "schema": SCHEMA,
        "budget": budget,
        "seed": options.seed,
        "epochs": list(options.epochs),
        **_measured(made, full, found),
        "files": _files(found),
    }
    if options.json:
        print(json.dumps(said, indent=2))
    else:
        show(said, console)
    return 0


def _adam(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """With a higher rate than the paper's: the net is small and the run is short."""
    return torch.optim.Adam(groups, lr=RATE, weight_decay=5e-4)


def _measured(made: Pruned, full: nn.Module, found: Run) -> dict[str, Any]:
    """Unpruned and slim, in this order."""
    weights = io.BytesIO()
    torch.save(full.state_dict(), weights)
    cost = made.report["cost"]
    times = {}
    for size in BATCHES:
        taken = in_turns([full.eval(), made.slim], found.example(size), ROUNDS)
        times[str(size)] = [round(1000 * statistics.median(own), 4) for own in taken]
    return {
        "accuracy": [made.before, made.after],
        "volume": [cost["volume"]["before"], cost["volume"]["after"]],
        "flops": [cost["network_flops"]["before"], cost["network_flops"]["after"]],
        "params": [cost["network_params"]["before"], cost["network_params"]["after"]],
        "bytes": [weights.tell(), (found.folder / SLIM / "weights.pt").stat().st_size],
        "milliseconds": times,
        "removed": made.report["removed"],
        "error": made.report["error"],
    }


def _files(found: Run) -> dict[str, str | None]:
    onnx = found.folder / "slim.onnx"
    if installed("onnx", "onnxscript"):
        write_files(found, onnx=onnx)
    written = str(onnx) if onnx.exists() else None
    return {"run": str(found.folder), "source": str(found.folder / SLIM / "model.py"), "onnx": written}


def show(said: dict[str, Any], console: Console) -> None:
    """A table, where everything is, and what to do next."""
    table = Table("", title="A residual net that reads handwritten digits", title_justify="left")
    for name in ("unpruned", "slim", "ratio"):
        table.add_column(name, justify="right")
    before, after = said["accuracy"]
    table.add_row("accuracy, held-out digits", f"{before:.1%}", f"{after:.1%}", f"{100 * (after - before):+.1f} points")
    names = {"volume": "volume of activations", "flops": "FLOPs", "params": "parameters", "bytes": "bytes of weights"}
    for key, name in names.items():
        table.add_row(name, *map(human, said[key]), _ratio(*said[key]))
    for size, (full, slim) in said["milliseconds"].items():
        pictures = "1 picture" if size == "1" else f"{size} pictures"
        table.add_row(f"time for {pictures}", f"{full:.2f} ms", f"{slim:.2f} ms", _ratio(full, slim))
    console.print(table)
    run, source, onnx = (said["files"][name] for name in ("run", "source", "onnx"))
    lines = [
        f"The slim net computes what the gated one computed, up to {said['error']:.0e} of the output; "
        f"{len(said['removed'])} convolutions are gone altogether.",
        "",
        f"{source}: its source, which needs torch only; the weights are beside it",
        f"{onnx}: the same as ONNX" if onnx else "no ONNX file: pip install onnx onnxruntime onnxscript, and again",
        f"{Path(run) / PAGE}: what happened, as a page for your browser",
        f"{run}: the run, with log.csv and report.json",
        "",
        "What next:",
        f"  fxprune check {onnx or Path(run) / SLIM} --against {run}    # on budget, and the same net?",
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
