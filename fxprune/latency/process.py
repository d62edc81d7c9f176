"""Nets that take turns in a process of their own, which keeps its memory.

How glibc hands out memory depends on what a process had before. In one, large tensors come from the system each time,
page by page, and a small net takes twice as long for it; in the next, where the same net is loaded again, they do not.
A time that can be told beforehand needs a process that keeps what it freed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import fx

from fxprune.latency.stopwatch import Inputs, device_of, in_turns
from fxprune.passes.lookups import share_lookups

KEEPS_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
_CHILD = """import json, sys
sys.path[:] = json.loads(sys.argv[1])
from fxprune.latency.process import serve
serve(sys.argv[2])
"""


def in_fresh_process(nets: Sequence[fx.GraphModule], inputs: Inputs, rounds: int) -> list[list[float]]:
    """Per net the time of each round; in this process, where there is no other way or no difference."""
    if device_of(nets[0]).type != "cpu":
        return in_turns(nets, inputs, rounds)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "nets.pt"
        try:
            torch.save((list(nets), inputs, rounds, torch.get_num_threads()), file)
            command = [sys.executable, "-c", _CHILD, json.dumps(sys.path), str(file)]
            done = subprocess.run(
                command, env={**KEEPS_MEMORY, **os.environ}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                check=True,
            )  # fmt: skip
            found: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
            return found
        except Exception:  # a net with parts that only this process knows, a system without processes, ...
            return in_turns(nets, inputs, rounds)


def serve(file: str) -> None:
    """In that process: print the times."""
    nets, inputs, rounds, threads = torch.load(file, weights_only=False)
    torch.set_num_threads(threads)
    for net in nets:
        net.graph.on_generate_code(lambda _: share_lookups)  # which a pickle does not keep
        net.recompile()
    print(json.dumps(in_turns(nets, inputs, rounds)))
