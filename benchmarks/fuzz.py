"""Random nets with random masks, in pieces that can be interrupted: the long version of ``make fuzz``.

    python benchmarks/fuzz.py [--nets 50000] [--piece 2000] [--lives 10] [--out results/fuzz]

A piece of ``--lives`` is 300 small nets on which everything is called in any order (tests/robustness/machine.py).

Every piece is ``pytest -m fuzz`` with a seed of its own, so that each can be repeated alone:
FXPRUNE_FUZZ_EXAMPLES=2000 FXPRUNE_FUZZ_SEED=7 python -m pytest tests/test_fuzz.py -m fuzz
A piece that is in the .jsonl file already is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Piece = dict[str, Any]
COUNTS = ("lives", "calls", "exact", "refused", "unreachable")


def parsed(text: str, seed: int, asked: int) -> Piece:
    """What the test printed, as numbers; ``exact`` is None if a net was found that is not."""
    pattern = r"fuzz: (\d+) random nets exact \((.*)\), ([\d.]+) parts .*; (\d+) drawn, .*refused \((\d+)\)"
    line = re.search(pattern, text)
    if line is None:
        return {"seed": seed, "asked": asked, "exact": None}
    densities = {share.split(" at ")[1]: int(share.split(" at ")[0]) for share in line[2].split(", ")}
    return {
        "seed": seed, "asked": asked, "exact": int(line[1]), "densities": densities, "parts": float(line[3]),
        "drawn": int(line[4]), "refused": int(line[5]),
    }  # fmt: skip


def run(seed: int, asked: int) -> Piece:
    settings = {"FXPRUNE_FUZZ_EXAMPLES": str(asked), "FXPRUNE_FUZZ_SEED": str(seed), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "tests/test_fuzz.py", "-m", "fuzz", "-p", "no:cacheprovider"]
    done = subprocess.run(command, env={**os.environ, **settings}, cwd=HERE.parent, capture_output=True, text=True)
    piece = parsed(done.stdout, seed, asked)
    if done.returncode or piece["exact"] is None:
        print(done.stdout[-8000:], file=sys.stderr)
    return piece


def run_lives(seed: int) -> Piece:
    """What tests/robustness/test_stateful.py printed, as numbers; ``calls`` is None if a promise was broken."""
    command = [sys.executable, "-m", "pytest", "tests/robustness/test_stateful.py", "-m", "fuzz"]
    settings = {"FXPRUNE_FUZZ_SEED": str(seed), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env={**os.environ, **settings}, cwd=HERE.parent, capture_output=True, text=True)
    pattern = r"lives: (\d+) .* through (\d+) calls, (\d+) times .*; (\d+) calls refused, (\d+) budgets"
    line = re.search(pattern, done.stdout)
    if done.returncode or line is None:
        print(done.stdout[-8000:], file=sys.stderr)
        return {"life": seed, "calls": None}
    return {"life": seed, **dict(zip(COUNTS, map(int, line.groups()), strict=True))}


def lived(pieces: list[Piece]) -> list[str]:
    """The table of the pieces of lives, if there are any."""
    fine = [piece for piece in pieces if piece["calls"] is not None]
    if not pieces:
        return []
    total = {name: sum(piece[name] for piece in fine) for name in COUNTS}
    return [
        "", "## Everything in any order", "",
        "Four small nets (residual, depthwise with squeeze-and-excite, concatenation, a layer called twice), wrapped,",
        "then trained, masked, hardened, copied, pickled, saved, loaded, exported and misused in random order. After",
        "every call: a hardened net equals its export (1e-9, float64), dead channels are zero, the cost is on budget,",
        "the user's model is untouched; what is refused says why and changes nothing.", "",
        "| | |", "| --- | ---: |",
        f"| wrapped nets | {total['lives']:,} |",
        f"| calls | {total['calls']:,} |",
        f"| of these on a hardened net, which was exported exactly | {total['exact']:,} |",
        f"| calls that must be refused, and were | {total['refused']:,} |",
        f"| budgets that cannot be met, told so | {total['unreachable']:,} |",
        f"| pieces with a broken promise | {len(pieces) - len(fine)} of {len(pieces)} |",
    ]  # fmt: skip


def markdown(pieces: list[Piece]) -> str:
    lives = [piece for piece in pieces if "life" in piece]
    pieces = [piece for piece in pieces if "life" not in piece]
    fine = [piece for piece in pieces if piece["exact"] is not None]
    total, drawn = sum(piece["exact"] for piece in fine), sum(piece["drawn"] for piece in fine)
    densities = {key: sum(p["densities"].get(key, 0) for p in fine) for key in ("0.0", "0.1", "0.4", "0.7", "1.0")}
    parts = sum(piece["parts"] * piece["exact"] for piece in fine) / max(total, 1)
    lines = [
        "# Random nets", "",
        "Made by `python benchmarks/fuzz.py`; do not edit.", "",
        "Random programs of parts (tests/programs), every parameter and buffer random, float64. Each net is",
        "wrapped, compared with the original, hardened to random masks, exported, and compared again at several batch",
        "and image sizes (max|difference| / max|output| at most 1e-9); its convolutions must cost what `cost()` says.",
        "A ninth of the nets each is also exported with regular blocks, pruned a second time, or run backwards.",
        "A piece that finds something is run again once that is mended; what it found stays in tests/regressions.py.",
        "",
        "| | |", "| --- | ---: |",
        f"| nets with gates, exported exactly | {total:,} |",
        f"| pieces with a mismatch or an error | {len(pieces) - len(fine)} of {len(pieces)} |",
        f"| parts per net, mean | {parts:.1f} |",
        *(f"| at density {key} of open gates beyond guards | {count:,} |" for key, count in densities.items()),
        f"| programs drawn | {drawn:,} |",
        f"| of these refused with an error that says why | {sum(piece['refused'] for piece in fine)} |",
        *lived(lives),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--nets", type=int, default=50_000)
    parser.add_argument("--piece", type=int, default=2000)
    parser.add_argument("--lives", type=int, default=10, help="pieces of 300 nets")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "fuzz", help="path without .jsonl and .md")
    options = parser.parse_args()
    file = options.out.with_suffix(".jsonl")
    pieces = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for seed in range(1, -(-options.nets // options.piece) + 1):
        if not any(piece.get("seed") == seed and piece["asked"] == options.piece for piece in pieces):
            _keep(file, pieces, run(seed, options.piece))
    for seed in range(1, options.lives + 1):
        if not any(piece.get("life") == seed for piece in pieces):
            _keep(file, pieces, run_lives(seed))
    options.out.with_suffix(".md").write_text(markdown(pieces))
    print(markdown(pieces))


def _keep(file: Path, pieces: list[Piece], piece: Piece) -> None:
    pieces.append(piece)
    print(piece, flush=True)
    with file.open("a") as opened:
        opened.write(json.dumps(piece) + "\n")


if __name__ == "__main__":
    main()
