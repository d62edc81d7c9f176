"""What memory from the system costs a slim net: new processes, with glibc's defaults and with its thresholds raised.

    python benchmarks/malloc_time.py [--runs 5] [--threads 2]

WRN-16-4, a batch of 32 pictures of 32x32, channels-last, cut to a quarter of the volume by the size of filters. The
processes take turns; each gives the median time of 25 calls, and the page faults per call.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from slim_time import build
from timing import circumstances, parser_of

sys.path.insert(0, str(Path(__file__).parents[1]))
import fxprune
from fxprune.latency.process import KEEPS_MEMORY
from fxprune.latency.stopwatch import in_turns

RESULT = Path(__file__).parent / "results" / "malloc_time"
CALLS = 25


def save(folder: Path) -> None:
    model = build("wrn16_4").to(memory_format=torch.channels_last)
    x = torch.randn(32, 3, 32, 32)
    wrapped = fxprune.wrap(model, 1 / 4, example_inputs=x)
    layers = dict(model.named_modules())
    wrapped.harden({name: layers[name].weight.detach().abs().mean((1, 2, 3)) for name in wrapped.gates})
    fxprune.save(fxprune.export(wrapped).eval(), folder / "slim")
    fxprune.save(fxprune.export(fxprune.wrap(model, 1.0, example_inputs=x)).eval(), folder / "full")


def timed(folder: str) -> dict[str, float]:
    """In a process of its own."""
    net = fxprune.load(folder).eval().to(memory_format=torch.channels_last)
    x = torch.randn(32, 3, 32, 32).to(memory_format=torch.channels_last)
    in_turns([net], ((x,), {}), 3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    (taken,) = in_turns([net], ((x,), {}), CALLS)
    faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / (CALLS + 2)  # two calls warm up
    return {"milliseconds": 1e3 * statistics.median(taken), "faults": faults}


def measured(folder: Path, runs: int, threads: int) -> dict[str, Any]:
    rows_of: dict[str, list[dict[str, float]]] = {}
    for _ in range(runs):
        for net in ("slim", "full"):
            for name, more in (("default", {}), ("raised", KEEPS_MEMORY)):
                command = [sys.executable, __file__, "--time", str(folder / net), "--threads", str(threads)]
                done = subprocess.run(
                    command, env={**os.environ, **more}, capture_output=True, text=True, check=True
                )
                rows_of.setdefault(f"{net}, {name}", []).append(json.loads(done.stdout))
    return {
        key: {part: [round(min(seen := [row[part] for row in rows]), 1), round(statistics.median(seen), 1),
                     round(max(seen), 1)] for part in ("milliseconds", "faults")}
        for key, rows in rows_of.items()
    }  # fmt: skip


def markdown(result: dict[str, Any]) -> str:
    machine = result["machine"]
    text = [
        "# Memory from the system", "", f"Made by `{result['command']}`; do not edit.", "",
        f"{machine['cores']} cores ({machine['processor']}), {machine['threads']} threads, load per core before: "
        f"{result['load_per_core_before']}, torch {machine['torch']}. WRN-16-4, a batch of 32, channels-last; slim: a "
        "quarter of the volume. Median over new processes, and the smallest and largest; *raised*: "
        f"`{' '.join(f'{name}={value}' for name, value in KEEPS_MEMORY.items())}`.", "",
        "| net, thresholds of malloc | ms | page faults per call |", "| --- | ---: | ---: |",
    ]  # fmt: skip
    for key, row in result["rows"].items():
        cells = [f"{middle:g} ({low:g} to {high:g})" for low, middle, high in (row["milliseconds"], row["faults"])]
        text.append(f"| {key} | {cells[0]} | {cells[1]} |")
    return "\n".join(text) + "\n"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=Path, default=RESULT, help="path without .json and .md")
    parser.add_argument("--time", metavar="FOLDER", help="of the net in this folder, and nothing else")
    parser.set_defaults(threads=torch.get_num_threads(), runs=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.time:
        print(json.dumps(timed(options.time)))
        return
    result: dict[str, Any] = circumstances("malloc_time.py", f"--runs {options.runs}")
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder))
        result["rows"] = measured(Path(folder), options.runs, options.threads)
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(markdown(result))
    print(markdown(result))


if __name__ == "__main__":
    main()
