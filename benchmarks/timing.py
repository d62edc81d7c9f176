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
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parents[1]))
from fxprune.compare import worker
from fxprune.latency.process import KEEPS_MEMORY

Task = Callable[["Watch"], Any]


class Watch:
    """Takes the time of the steps of a task."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        gc.collect()  # what others left behind is not counted

    def time(self, step: str, work: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        made = work()
        self.seconds[step] = time.perf_counter() - begin
        return made


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


def median(taken: list[float]) -> float:
    return round(statistics.median(taken), 4)


def extent(taken: list[float]) -> list[float]:
    return [round(min(taken), 4), round(max(taken), 4)]


def parser_of(text: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=9, help="rounds that count, at least 7")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
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
