"""Nets that take turns in a process of their own, which keeps its memory.

How glibc hands out memory depends on what the process did before. In one process large tensors come from the system
each time, page by page, which makes a small net take twice as long; in the next, with the same net, they do not. Times
are only reproducible in a process that keeps the memory that it freed.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import fx

from fxprune.latency.stopwatch import Inputs, device_of, in_turns
from fxprune.slim.module_lookups import share_lookups

KEEPS_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
Timer = Callable[[Sequence[fx.GraphModule], Inputs, int], list[list[float]]]
_CHILD = """import json, sys
sys.path[:] = json.loads(sys.argv[1])
from fxprune.latency.process import serve
serve(sys.stdin)
"""
_FOUND = "times: "
# A net with parts that only this process knows; no way to start a process; one that ended, or could not load the net.
_ELSEWHERE = (pickle.PicklingError, AttributeError, TypeError, RuntimeError, OSError, EOFError, ValueError)


@contextlib.contextmanager
def own_process() -> Iterator[Timer]:
    """``in_turns`` in another process, which ends with the block; or in this one, if another is impossible or makes no
    difference."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        file, children = Path(folder) / "nets.pt", []  # type: Path, list[subprocess.Popen[str]]

        def timed(nets: Sequence[fx.GraphModule], inputs: Inputs, rounds: int) -> list[list[float]]:
            if device_of(nets[0]).type != "cpu":
                return in_turns(nets, inputs, rounds)
            try:
                torch.save((list(nets), inputs, rounds, torch.get_num_threads()), file)
                if not children:
                    children.append(stack.enter_context(_started()))
                if children[0].poll() is None:
                    return _answer(children[0], file)
            except _ELSEWHERE:
                pass
            return in_turns(nets, inputs, rounds)

        yield timed


@contextlib.contextmanager
def _started() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD, json.dumps(sys.path)], env={**KEEPS_MEMORY, **os.environ}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    ) as child:  # fmt: skip
        try:
            yield child
        finally:
            child.kill()
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended before, with something left to read
                child.stdin.close()


def _answer(child: subprocess.Popen[str], file: Path) -> list[list[float]]:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(f"{file}\n")
    child.stdin.flush()
    for line in child.stdout:  # whatever else the nets print
        if line.startswith(_FOUND):
            times: list[list[float]] = json.loads(line.removeprefix(_FOUND))
            return times
    raise EOFError("the process has ended")


def serve(files: Iterable[str]) -> None:
    """In that process: print the times of the nets in each file."""
    for file in files:
        try:
            nets, inputs, rounds, threads = torch.load(file.rstrip("\n"), weights_only=False)
            torch.set_num_threads(threads)
            for net in nets:
                net.graph.on_generate_code(lambda _: share_lookups)  # which a pickle does not keep
                net.recompile()
            times = json.dumps(in_turns(nets, inputs, rounds))
        except Exception:
            times = "not to be had"
        print(f"{_FOUND}{times}", flush=True)
