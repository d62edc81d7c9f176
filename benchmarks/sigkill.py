"""A run that is killed again and again ends with the same weights, bit for bit, as one that never was.

    python benchmarks/sigkill.py [--kills 20] [--workers 2] [--out results/sigkill]

A small residual net learns handwriting (shuffled, randomly shifted by two loader workers), is pruned and fine-tuned.
One process does it without interruption. Then another one starts, is killed (SIGKILL) at a random moment, is started
again, and so on; the last one may finish. The moments are drawn evenly over the steps of the run, so that all phases
are hit on a slow machine, too; every fifth one is drawn from the two seconds after a start instead. A checkpoint is
written after every step, and every other kill waits until one is being written.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
RESULT = Path(__file__).parent / "results" / "sigkill"
EPOCHS = (4, 4, 2)


def one_run(folder: str, workers: int) -> None:
    """What a process does."""
    from handwriting import loaders
    from models import resnet8

    import fxprune

    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("started", flush=True)
    train, val = loaders(64, workers)
    fxprune.prune(
        resnet8(8), train, val, budget=1 / 4, epochs=EPOCHS, teacher="train", run=folder, checkpoint_minutes=0,
        progress=False,
    )  # fmt: skip


def start(folder: Path, workers: int) -> subprocess.Popen[str]:
    """A process that has said that it is about to begin."""
    command = [sys.executable, __file__, "--one", str(folder), "--workers", str(workers)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    return process


def where(folder: Path) -> dict[str, Any]:
    """What a kill left: the state of the checkpoint, its age, and whether the kill hit the writing of the next one."""
    file = folder / "checkpoint.pt"
    torn = (folder / ".checkpoint.pt.tmp").exists()
    if not file.exists():
        return {"phase": None, "epoch": 0, "batch": 0, "age": None, "while_writing": torn}
    state = torch.load(file, weights_only=True)
    at = {"phase": state["phase"], "epoch": state["at"]["epoch"] + 1, "batch": state["at"]["batch"]}
    return {**at, "age": round(time.time() - file.stat().st_mtime, 3), "while_writing": torn}


def differences(one: Any, other: Any, name: str = "") -> list[str]:
    """Where two states differ in any bit; times do not count."""
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, other) and one.dtype == other.dtype else [name]
    if isinstance(one, dict):
        if list(one) != list(other):
            return [f"{name}: keys"]
        return [far for key in one if key != "seconds" for far in differences(one[key], other[key], f"{name}/{key}")]
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return [f"{name}: lengths"]
        pairs = enumerate(zip(one, other, strict=True))
        return [far for number, (a, b) in pairs for far in differences(a, b, f"{name}/{number}")]
    return [] if one == other else [name]


def everything(folder: Path) -> dict[str, Any]:
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    nets = {part: torch.load(folder / part / "weights.pt", weights_only=True) for part in ("slim", "hardened")}
    report = json.loads((folder / "report.json").read_text())
    return {**nets, "checkpoint": torch.load(folder / "checkpoint.pt", weights_only=True), "log": log, "report": report}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one_run(options.one, options.workers)
        return 0
    root = Path(tempfile.mkdtemp())
    begin = time.perf_counter()
    assert start(root / "whole", options.workers).wait() == 0
    seconds = time.perf_counter() - begin
    kills = kill_again_and_again(root / "killed", options, rows_of(root / "whole"))
    assert start(root / "killed", options.workers).wait() == 0
    whole, killed = everything(root / "whole"), everything(root / "killed")
    assert all(kill["killed"] for kill in kills), "the run was over before the last kill"
    result = {
        "kills": kills,
        "equal": not differences(whole, killed),
        "differences": differences(whole, killed),
        "tensors_compared": sum(len(whole[part]) for part in ("slim", "hardened")),
        "accuracy": whole["report"]["accuracy"],
        "steps": {row["phase"]: row["step"] for row in whole["log"]},  # the last of each phase
        "seconds_without_a_kill": round(seconds, 1),
        "workers": options.workers,
        "torch": torch.__version__,
    }
    shutil.rmtree(root)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
    options.out.with_suffix(".md").write_text(page(result))
    print(page(result))
    return 0 if result["equal"] else 1


def kill_again_and_again(folder: Path, options: argparse.Namespace, rows: int) -> list[dict[str, Any]]:
    """``rows``: in the log of the whole run."""
    draw = random.Random(options.seed)
    moments = sorted(draw.uniform(0, rows - 5) for _ in range(options.kills))
    kills = []
    for number, moment in enumerate(moments):
        (folder / ".checkpoint.pt.tmp").unlink(missing_ok=True)  # of the last kill
        process = start(folder, options.workers)
        begin = time.monotonic()
        while number % 5 != 4 and rows_of(folder) < moment and process.poll() is None:
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 2 if number % 5 == 4 else 0.1))
        if number % 2:
            await_writing(folder)
        process.send_signal(signal.SIGKILL)
        ran = round(time.monotonic() - begin, 2)
        code = process.wait()
        kills.append({"after": ran, "killed": code == -signal.SIGKILL, **where(folder)})
        print(number + 1, kills[-1], flush=True)
    return kills


def rows_of(folder: Path) -> int:
    file = folder / "log.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def await_writing(folder: Path) -> None:
    """Until a checkpoint is being written; at most a second."""
    patience = time.monotonic() + 1
    while time.monotonic() < patience and not (folder / ".checkpoint.pt.tmp").exists():
        pass


def page(result: dict[str, Any]) -> str:
    hit = sum(kill["while_writing"] for kill in result["kills"])
    count = sum(kill["killed"] for kill in result["kills"])
    said = "equal, bit for bit" if result["equal"] else f"DIFFERENT: {result['differences'][:5]}"
    lines = [
        "# Killed again and again",
        "",
        f"`python benchmarks/sigkill.py`: {count} SIGKILLs at random moments of one run, each resumed; {hit} of them",
        f"hit the writing of a checkpoint. Weights of the hardened and of the slim net ({result['tensors_compared']}",
        "tensors), optimizer state, log and report of that run and of one that was never interrupted:",
        f"**{said}**.",
        "",
        f"{result['workers']} loader workers, shuffling, random augmentation; steps: "
        + ", ".join(f"{phase} {steps}" for phase, steps in result["steps"].items())
        + f"; torch {result['torch']}.",
        "",
        "| kill | seconds after the start | checkpoint left: phase | epoch | batch | seconds old | while writing |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for number, kill in enumerate(result["kills"], 1):
        cells = [number, kill["after"], kill["phase"], kill["epoch"], kill["batch"], kill["age"], kill["while_writing"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
