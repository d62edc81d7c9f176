"""What mixed connectivity is worth: the same masks with and without it.

    python benchmarks/table2.py [TARGET] [--arg NAME=VALUE] [--input 1x3x32x32] [--seeds 3] [--out results/table2]

Random masks at budgets from 1/2 to 1/16 of the volume. *Mixed*: every convolution computes the channels that its own
mask keeps. *Regular*: whoever meets at an add computes the channels of the sum, as blocks that know no mixed
connectivity must. The budget holds for the mixed network; how far the regular one is above it, is the table (the
paper's Table 2). Nothing is trained and no network is built, only costs are counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
from fxprune.analysis import Analysis
from fxprune.api import analyse
from fxprune.choose.choose import choose
from fxprune.commands.options import example_of, parse_arguments, parse_inputs
from fxprune.commands.user_code import load_model, load_module
from fxprune.cost.target import Target
from fxprune.errors import FxPruneError
from fxprune.slim.connectivity import regular_blocks

HERE = Path(__file__).parent
FACTORS = (2, 4, 8, 16)
DEFAULT = "examples/models.py:wrn"
Row = dict[str, Any]


def measure(analysis: Analysis, factor: int, seed: int) -> Row:
    """Costs of the mixed and of the regular network for one random mask on budget."""
    scores = np.random.default_rng(seed).random(analysis.variables)
    opened = choose(analysis, Target.of(1 / factor, "volume"), scores, None, fill=True, multiple_of=1, minimum={})
    present = analysis.costs.physical(torch.from_numpy(opened).double()).numpy() > 0
    mixed = analysis.costs.of_present(present)
    regular = analysis.costs.of_present(regular_blocks(analysis.channels, present))
    full = analysis.full_cost
    return {
        "factor": factor,
        "seed": seed,
        **{f"mixed_{metric}": mixed[metric] for metric in ("volume", "flops")},
        **{f"regular_{metric}": regular[metric] for metric in ("volume", "flops")},
        "budget_used": round(mixed.volume * factor / full.volume, 4),
        "volume_ratio": round(regular.volume / mixed.volume, 3),
        "flops_ratio": round(regular.flops / mixed.flops, 3),
        "regular_volume_factor": round(full.volume / regular.volume, 2),
        "regular_flops_factor": round(full.flops / regular.flops, 2),
    }


def summary(rows: list[Row]) -> list[list[str]]:
    """One line per budget: medians over the seeds."""
    lines = []
    for factor in dict.fromkeys(row["factor"] for row in rows):
        of = [row for row in rows if row["factor"] == factor]

        def median(key: str, of: list[Row] = of) -> float:
            return statistics.median(row[key] for row in of)

        lines.append([
            f"1/{factor}", f"{median('mixed_volume'):,.0f}", f"{median('regular_volume'):,.0f}",
            f"{median('volume_ratio'):.2f}", f"{median('regular_volume_factor'):.1f}x",
            f"{median('mixed_flops'):.3g}", f"{median('regular_flops'):.3g}", f"{median('flops_ratio'):.2f}",
        ])  # fmt: skip
    return lines


HEADER = (
    "budget", "mixed volume", "regular volume", "ratio", "regular prunes", "mixed FLOPs", "regular FLOPs", "ratio",
)  # fmt: skip


def markdown(result: dict[str, Any]) -> str:
    full = result["full"]
    lines = [
        "# Mixed against regular connectivity", "",
        f"Made by `{result['command']}`; do not edit.", "",
        f"{result['model']} at {', '.join(result['inputs'])}: volume {full['volume']:,}, {full['flops']:.4g} FLOPs "
        "in its convolutions.",
        f"Random masks, the budget is on the volume of the mixed network, medians over {result['seeds']} seeds.", "",
        "| " + " | ".join(HEADER) + " |", "| --- |" + " ---: |" * (len(HEADER) - 1),
        *("| " + " | ".join(line) + " |" for line in summary(result["rows"])),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("target", nargs="?", default=DEFAULT, help=f"package.module:name or file.py:name ({DEFAULT})")
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="argument of the callable")
    parser.add_argument("--input", action="append", metavar="1x3x32x32", help="shape of an input; repeatable")
    parser.add_argument("--preload", action="append", default=[], metavar="MODULE", help="imported before the target")
    parser.add_argument("--seeds", type=int, default=3, help="random masks per budget")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "table2", help="path without .json and .md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    inputs = options.input or ["1x3x32x32"]
    target = str(HERE.parent / DEFAULT) if options.target == DEFAULT else options.target
    try:
        for module in options.preload:
            load_module(module)
        model = load_model(target, parse_arguments(options.arg))
        analysis = analyse(model, example_of(model, *parse_inputs(inputs, torch.float32)))
        rows = [measure(analysis, factor, seed) for factor in FACTORS for seed in range(options.seeds)]
    except FxPruneError as error:
        sys.exit(f"error: {error}")
    given = [option for name in ("arg", "input", "preload") for value in getattr(options, name) or []
             for option in (f"--{name}", value)]  # fmt: skip
    named = [options.target] if options.target != DEFAULT else []
    result = {
        "command": " ".join(["python benchmarks/table2.py", *named, *given, f"--seeds {options.seeds}"]),
        "model": " ".join([options.target, *options.arg]),
        "inputs": inputs,
        "seeds": options.seeds,
        "full": {metric: analysis.full_cost[metric] for metric in ("volume", "flops")},
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(markdown(result))
    table = Table(*HEADER, title=f"{result['model']}, volume {result['full']['volume']:,}")
    for line in summary(rows):
        table.add_row(*line)
    Console().print(table)


if __name__ == "__main__":
    main()
