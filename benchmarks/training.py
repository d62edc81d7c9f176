"""What the benchmarks share that train nets: a teacher, its accuracy, and runs as processes whose rows are kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from torch import nn

Row = dict[str, Any]
Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


@torch.no_grad()
def accuracy(net: nn.Module, batches: Batches) -> float:
    """In percent."""
    net.eval()
    right = [(net(x).argmax(1) == y).float() for x, y in batches]
    return round(100 * float(torch.cat(right).mean()), 2)


def taught(net: nn.Module, batches: Batches, epochs: tuple[int, int], file: Path) -> nn.Module:
    """Trained with Adam at a rate of 1e-3, then at a tenth of it, and kept in ``file``; or what that file holds."""
    if file.exists():
        net.load_state_dict(torch.load(file))
        return net.eval()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=5e-4)
    for epoch in range(sum(epochs)):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 if epoch < epochs[0] else 1e-4
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(net.train()(x), y).backward()
            optimizer.step()
    torch.save(net.state_dict(), file.with_suffix(".part"))
    os.replace(file.with_suffix(".part"), file)
    return net.eval()


def in_a_process(script: str, *arguments: str) -> Any:
    """What a script, run with one thread, prints as JSON in its last line."""
    done = subprocess.run(
        [sys.executable, script, *arguments], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def rows_of(file: Path) -> list[Row]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def run_missing(
    file: Path, keys: list[str], key_of: Callable[[Row], str], run: Callable[[str], Row], jobs: int
) -> None:
    """The runs whose rows ``file`` does not hold yet, ``jobs`` at a time; each row is written when its run is done, so
    that a benchmark that was cut off goes on where it was."""
    done = {key_of(row) for row in rows_of(file)}
    missing = [key for key in keys if key not in done]
    with ThreadPoolExecutor(jobs) as pool:
        for row in track(pool.map(run, missing), "runs", total=len(missing)):
            with file.open("a") as out:
                out.write(json.dumps(row) + "\n")


def publish(rows: list[Row], key_of: Callable[[Row], Any], text: str, out: Path) -> None:
    """The rows in order as .jsonl, the text as .md, and on the screen."""
    out.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in sorted(rows, key=key_of)))
    out.with_suffix(".md").write_text(text)
    Console().print(text, markup=False, highlight=False)


def pyplot() -> Any:
    """matplotlib's, without a screen; None where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        Console().print("no plot: pip install matplotlib")
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot as drawing

    return drawing


def save_figure(figure: Any, out: Path) -> None:
    for suffix in (".png", ".svg"):
        figure.savefig(out.with_suffix(suffix), dpi=110, metadata={"Date": None} if suffix == ".svg" else None)
