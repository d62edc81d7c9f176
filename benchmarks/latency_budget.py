"""Is a budget of latency kept? Nets are pruned to one, and timed in fresh processes beside the unpruned net.

    python benchmarks/latency_budget.py [--nets resnet18 ...] [--budgets 1/2 1/4] [--batches 1 32] [--threads N]

Channels are scored by the size of their filters; nothing is trained. *predicted*: by the hardened net's cost, which
harden corrected by timing the net that it chose. *model alone*: by the cost model that training sees. *measured*: by
new processes that load both nets from their folders; each gives the median over interleaved rounds. They keep the
memory that they freed (docs/how-to/fast.md). *default*: with glibc's own settings, where the same net differs from
process to process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slim_time import SIZES, build
from timing import circumstances

sys.path.insert(0, str(Path(__file__).parents[1]))
import fxprune
from fxprune.latency.process import KEEPS_MEMORY
from fxprune.latency.stopwatch import in_turns, usual_ratio

RESULT = Path(__file__).parent / "results" / "latency_budget"
SECONDS, MOST = 2.0, 400  # for more rounds with quick nets
Row = dict[str, Any]


def pruned(name: str, budget: str, batch: int, channels_last: bool, folder: Path) -> Row:
    """Saves the slim and the unpruned net; what was asked and what is expected."""
    memory = torch.channels_last if channels_last else torch.contiguous_format
    model = build(name).to(memory_format=memory)
    x = torch.randn(batch, 3, SIZES[name], SIZES[name]).to(memory_format=memory)
    wrapped = fxprune.wrap(model, float(Fraction(budget)), metric="latency", example_inputs=x)
    layers, uncorrected = dict(model.named_modules()), wrapped.analysis.costs.latency
    wrapped.harden({key: layers[key].weight.detach().abs().mean((1, 2, 3)) for key in wrapped.gates})
    slim = fxprune.export(wrapped, verify=False)
    fxprune.save(slim.eval(), folder / "slim")
    fxprune.save(fxprune.export(fxprune.wrap(model, 1.0, example_inputs=x), verify=False).eval(), folder / "full")
    cost, full = wrapped.cost(), wrapped.full_cost()
    shares = {metric: round(cost[metric] / full[metric], 4) for metric in ("volume", "flops", "params")}
    everyone = np.ones_like(wrapped.masks())
    own, all_of_it = uncorrected.exact(wrapped.analysis.costs.logic.present(np.stack([wrapped.masks(), everyone], 1)))
    model_alone = round(float(own / all_of_it), 4)
    return {"predicted": round(cost.latency / full.latency, 4), "model": model_alone, "of": shares}


def timed(folder: Path, name: str, batch: int, channels_last: bool, rounds: int) -> float:
    """In the fresh process: the slim net's share of the time."""
    memory = torch.channels_last if channels_last else torch.contiguous_format
    nets = [fxprune.load(folder / part).eval().to(memory_format=memory) for part in ("slim", "full")]
    x = torch.randn(batch, 3, SIZES[name], SIZES[name]).to(memory_format=memory)
    ((spent, *_),) = in_turns(nets[1:], ((x,), {}), 1)
    return usual_ratio(*in_turns(nets, ((x,), {}), max(rounds, min(int(SECONDS / spent), MOST))))


def measured(name: str, budget: str, batch: int, channels_last: bool, options: argparse.Namespace) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        row = pruned(name, budget, batch, channels_last, Path(folder))
        command = [sys.executable, __file__, "--time", folder, "--nets", name, "--batches", str(batch)]
        command += ["--threads", str(options.threads), "--rounds", str(options.rounds)]
        command += ["--channels-last"] if channels_last else []
        shares = over_processes(command, options.processes, KEEPS_MEMORY)
        default = over_processes(command, max(options.processes // 2, 1), {})
    return {
        "net": name, "batch": batch, "channels_last": channels_last, "budget": budget, **row, "measured": shares,
        "default": default, "measured_over_predicted": round(shares["median"] / row["predicted"], 3),
        "measured_over_budget": round(shares["median"] / float(Fraction(budget)), 3),
    }  # fmt: skip


def over_processes(command: list[str], count: int, more: dict[str, str]) -> Row:
    own = {name: value for name, value in os.environ.items() if name not in KEEPS_MEMORY}
    shares = []
    for _ in range(count):
        done = subprocess.run(command, env={**own, **more}, capture_output=True, text=True, check=True)
        shares.append(float(done.stdout))
    return {"median": round(statistics.median(shares), 4), "range": [round(min(shares), 4), round(max(shares), 4)]}


def markdown(result: Row) -> str:
    machine = result["machine"]
    text = [
        "# A budget of latency", "", f"Made by `{result['command']}`; do not edit.", "",
        f"{machine['cores']} cores ({machine['processor']}), {machine['threads']} threads, load per core before: "
        f"{result['load_per_core_before']}, torch {machine['torch']}. Times are shares of the unpruned net's. "
        f"*measured*: median over {result['processes']} fresh processes that keep their memory, and the smallest and "
        f"largest; *default*: over {max(result['processes'] // 2, 1)} with glibc's own settings.", "",
        "| net | batch | format | budget | model alone | predicted | measured | measured / predicted | "
        "measured / budget | default | volume | FLOPs |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for row in result["rows"]:
        shown, default = (
            f"{seen['median']:.3f} ({seen['range'][0]:.3f} to {seen['range'][1]:.3f})"
            for seen in (row["measured"], row["default"])
        )
        text.append(
            f"| {row['net']} | {row['batch']} | {'channels-last' if row['channels_last'] else 'contiguous'} | "
            f"{row['budget']} | {row['model']:.3f} | {row['predicted']:.3f} | "
            f"{shown} | {row['measured_over_predicted']:.2f} | {row['measured_over_budget']:.2f} | {default} | "
            f"{row['of']['volume']:.3f} | {row['of']['flops']:.3f} |"
        )
    return "\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nets", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--budgets", nargs="+", default=["1/2", "1/4"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--rounds", type=int, default=50, help="at least")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--channels-last", action="store_true", help="that format only")
    parser.add_argument("--time", type=Path, metavar="FOLDER", help="of the nets in this folder, and nothing else")
    parser.add_argument("--out", type=Path, default=RESULT, help="path without .json and .md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.time:
        print(timed(options.time, options.nets[0], options.batches[0], options.channels_last, options.rounds))
        return
    asked = f"--nets {' '.join(options.nets)} --budgets {' '.join(options.budgets)} "
    asked += f"--batches {' '.join(map(str, options.batches))} --rounds {options.rounds} "
    asked += f"--processes {options.processes}"
    asked += " --channels-last" if options.channels_last else ""
    result: Row = {**circumstances("latency_budget.py", asked), "processes": options.processes, "rows": []}
    for name in options.nets:
        for batch in options.batches:
            for channels_last in (True,) if options.channels_last else (False, True):
                for budget in options.budgets:
                    row = measured(name, budget, batch, channels_last, options)
                    result["rows"].append(row)
                    print({key: row[key] for key in row if key != "of"}, flush=True)
                    options.out.parent.mkdir(parents=True, exist_ok=True)
                    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
                    options.out.with_suffix(".md").write_text(markdown(result))


if __name__ == "__main__":
    main()
