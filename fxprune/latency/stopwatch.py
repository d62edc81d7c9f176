"""Taking the time of calls, of whole nets in turns, and of a net op by op; and where times were measured and are
kept."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from fxprune.channels.facts import Channels
from fxprune.count import batch_size
from fxprune.errors import OptionError
from fxprune.slim.verify import noise

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def now(device: torch.device) -> float:
    """Seconds, once the device has done what it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def device_of(net: torch.nn.Module) -> torch.device:
    return next((tensor.device for tensor in (*net.parameters(), *net.buffers())), torch.device("cpu"))


def example_inputs(channels: Channels, net: torch.nn.Module) -> Inputs:
    """Random numbers of the example's shapes, where and in the precision that the net has."""
    like = next((p for p in net.parameters() if p.is_floating_point()), torch.zeros(()))
    example = channels.trace.example
    return noise(*example, batch_size(*example), like.device, like.dtype)


def typical(call: Callable[[], Any], device: torch.device, *, least: int = 5, seconds: float = 0.02) -> float:
    """The median time of a call, of at least so many and of more if they take less than ``seconds``."""
    for _ in range(2):  # the first call is never like the others
        call()
    taken: list[float] = []
    while len(taken) < least or (sum(taken) < seconds and len(taken) < 200):
        begin = now(device)
        call()
        taken.append(now(device) - begin)
    return statistics.median(taken)


@torch.inference_mode()
def in_turns(nets: Sequence[torch.nn.Module], inputs: Inputs, rounds: int) -> list[list[float]]:
    """Per net the time of each round: whatever else the machine does falls on all of them alike."""
    device, taken = device_of(nets[0]), [[] for _ in nets]  # type: tuple[torch.device, list[list[float]]]
    for number in range(rounds + 2):
        for net, own in zip(nets, taken, strict=True):
            begin = now(device)
            net(*inputs[0], **inputs[1])
            if number >= 2:
                own.append(now(device) - begin)
    return taken


def usual_ratio(own: Sequence[float], other: Sequence[float]) -> float:
    """Of the times of two nets that took turns: the median over the rounds."""
    return statistics.median(one / two for one, two in zip(own, other, strict=True))


class Stopwatch(fx.Interpreter):
    """Runs a slim net op by op and notes how long each takes, by the op of the original that it stands for."""

    def __init__(self, net: fx.GraphModule) -> None:
        super().__init__(net)
        self.device = device_of(net)
        self.spent: dict[str, float] = defaultdict(float)

    def run_node(self, n: fx.Node) -> Any:
        begin = now(self.device)
        result = super().run_node(n)
        self.spent[n.meta.get("origin", n.name)] += now(self.device) - begin
        return result


@torch.no_grad()
def by_op(nets: Sequence[fx.GraphModule], inputs: Inputs, rounds: int) -> list[dict[str, float]]:
    """Per net and op of the original the median time; the nets take turns."""
    found: list[list[dict[str, float]]] = [[] for _ in nets]
    names = [str(node.target) for node in nets[0].graph.nodes if node.op == "placeholder"]
    given = (*inputs[0], *(inputs[1][name] for name in names[len(inputs[0]) :] if name in inputs[1]))
    for number in range(rounds + 2):
        for net, own in zip(nets, found, strict=True):
            watch = Stopwatch(net)
            watch.run(*given)
            if number >= 2:
                own.append(watch.spent)
    return [
        defaultdict(float, {name: statistics.median(each[name] for each in own) for name in own[0]}) for own in found
    ]


CACHE = "FXPRUNE_CACHE"


def description(device: torch.device) -> dict[str, Any]:
    """All that a time depends on beside the network; no names of hosts or users."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def processor() -> str:
    """What the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def cache_folder() -> Path:
    """``$FXPRUNE_CACHE``, else the user's cache folder."""
    given = os.environ.get(CACHE)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "fxprune"
    except RuntimeError as error:
        raise OptionError("there is no home folder to keep measured times in", fix=f"set {CACHE} to one") from error


def cache_file(machine: dict[str, Any], network: str) -> Path:
    """The file that holds the times of a network on a machine."""
    text = json.dumps(machine, sort_keys=True) + network
    return cache_folder() / f"latency-{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"
