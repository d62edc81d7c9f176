"""What the timing benchmarks share: interleaved rounds, medians, and on what machine."""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from importlib import metadata
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from fxprune.compare import worker
from fxprune.latency.process import KEEPS_MEMORY

Task = Callable[["Watch"], Any]
Net = Callable[[torch.Tensor], Any]
Row = dict[str, Any]
QUICK, WARM = 0.2, 0.01  # seconds; whatever fits into a cache is little beside the first


class Watch:
    """Takes the time of the steps of a task."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        gc.collect()  # what others left behind is not counted

    def time(self, step: str, work: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        result = work()
        self.seconds[step] = time.perf_counter() - begin
        return result


def interleaved(tasks: dict[str, Task], runs: int) -> dict[str, dict[str, list[float]]]:
    """Task -> step -> seconds. The tasks take turns, so that whatever else the machine does falls on all of them alike;
    the first round warms up and does not count."""
    times: dict[str, dict[str, list[float]]] = {name: {} for name in tasks}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in track(range(runs + 1), description="rounds", disable=not sys.stdout.isatty()):
            for name, task in tasks.items():
                watch = Watch()
                task(watch)
                for step, taken in watch.seconds.items() if number > 0 else ():
                    times[name].setdefault(step, []).append(taken)
    return times


def times(nets: dict[str, Net], x: torch.Tensor, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Seconds per net, in turns; at least ``rounds`` of them, more while there are ``seconds`` left.

    A quick net runs for a while before each of its turns: else whoever took the turn before decides what is in the
    cache, and nets that share their weights (the limit is made of the slim net's layers) warm each other.
    """
    taken: dict[str, list[float]] = {name: [] for name in nets}
    with torch.inference_mode():
        for net in nets.values():
            for _ in range(5):
                net(x)
        once = {name: _once(net, x) for name, net in nets.items()}
        before = {name: ceil(WARM / spent) if spent < QUICK else 0 for name, spent in once.items()}
        begin, number = time.perf_counter(), 0
        while number < rounds or (time.perf_counter() - begin < seconds and number < 20 * rounds):
            number += 1
            for name, net in nets.items():
                for _ in range(before[name]):
                    net(x)
                taken[name].append(_once(net, x))
    return taken


def _once(net: Net, x: torch.Tensor) -> float:
    start = time.perf_counter()
    net(x)
    return time.perf_counter() - start


def ratio(one: list[float], other: list[float]) -> Row:
    """Of the slim net's time to another's: the median over the rounds, and its 95 % interval by order statistics."""
    sorted_ = sorted(a / b for a, b in zip(one, other, strict=True))
    count = len(sorted_)
    reach = 0.98 * sqrt(count)
    low, high = max(int(count / 2 - reach), 0), min(int(count / 2 + reach), count - 1)
    return {
        "median": round(statistics.median(sorted_), 4),
        "interval": [round(sorted_[low], 4), round(sorted_[high], 4)],
    }


def shown(over: Row | None) -> str:
    """A ratio, in a table."""
    return "" if over is None else f"{over['median']:.2f} ({over['interval'][0]:.2f} to {over['interval'][1]:.2f})"


def compile_net(net: nn.Module) -> nn.Module:
    """As it is meant for inference: weights are constants, batch norms folded. (Without it inductor of torch 2.13 fails
    on a CPU in channels-last, with the unpruned nets, too.)"""
    torch._inductor.config.freezing = True
    compiled: nn.Module = torch.compile(net, dynamic=False)  # type: ignore[assignment]
    return compiled


def median(taken: list[float]) -> float:
    return round(statistics.median(taken), 4)


def extent(taken: list[float]) -> list[float]:
    return [round(min(taken), 4), round(max(taken), 4)]


def parser_of(text: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=9, help="rounds that count, at least 7")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    return parser


def in_rounds(
    parser: argparse.ArgumentParser, rounds: int, seconds: float, threads: int, out: Path
) -> argparse.ArgumentParser:
    """With the options of a benchmark whose nets take turns; these are the defaults."""
    parser.add_argument("--resume", action="store_true", help="go on with what the .json file holds")
    parser.add_argument("--rounds", type=int, default=rounds, help="at least")
    parser.add_argument("--seconds", type=float, default=seconds, help="more rounds as long as they take less")
    parser.add_argument("--threads", type=int, default=threads)
    parser.add_argument("--out", type=Path, default=out, help="path without .json and .md")
    return parser


def circumstances(script: str, asked: str) -> dict[str, Any]:
    """How the numbers were made (by which options) and where. To be asked before the work, which is a load itself."""
    busy = round(os.getloadavg()[0] / (os.cpu_count() or 1), 2) if hasattr(os, "getloadavg") else None
    if busy is not None and busy > 0.5:
        Console().print(f"[yellow]The machine is busy (load {busy} per core): do not trust these numbers.[/yellow]")
    return {
        "command": f"python benchmarks/{script} {asked} --threads {torch.get_num_threads()}",
        "machine": machine(("torch", "torchvision", "torch-pruning")),
        "load_per_core_before": busy,
    }


def keep_memory() -> None:
    """Start this script anew, with an allocator that keeps what is freed: else a net's time depends on what the process
    did before (docs/how-to/fast.md)."""
    if not KEEPS_MEMORY.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEPS_MEMORY})


def machine(packages: tuple[str, ...] = ("torch",)) -> dict[str, Any]:
    return {
        **worker.machine(),
        "system": platform.system(),
        **{package: metadata.version(package) for package in packages},
    }
