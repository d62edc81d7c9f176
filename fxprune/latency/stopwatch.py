"""Taking the time of calls, of whole nets in turns, and of a net op by op."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import fx

from fxprune.channels import Channels
from fxprune.count import batch_size
from fxprune.slim.verify import noise

Measured = TypeVar("Measured")
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def now(device: torch.device) -> float:
    """The time in seconds, after the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def device_of(net: torch.nn.Module) -> torch.device:
    return next((tensor.device for tensor in (*net.parameters(), *net.buffers())), torch.device("cpu"))


def example_inputs(channels: Channels, net: torch.nn.Module) -> Inputs:
    """Random numbers in the shapes of the example, on the net's device and in its precision."""
    like = next((p for p in net.parameters() if p.is_floating_point()), torch.zeros(()))
    example = channels.trace.example
    return noise(*example, batch_size(*example), like.device, like.dtype)


def typical(call: Callable[[], Any], device: torch.device, *, least: int = 5, seconds: float = 0.02) -> float:
    """The median time of a call: of a few calls at least, and of more as long as they take less than ``seconds``."""
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
    """Per net the time of each round. Nets take turns, so that other load on the machine slows all of them alike."""
    device = device_of(nets[0])

    def seconds(net: torch.nn.Module) -> float:
        begin = now(device)
        net(*inputs[0], **inputs[1])
        return now(device) - begin

    return _in_rounds(seconds, nets, rounds)


def _in_rounds(measured: Callable[[Any], Measured], nets: Sequence[Any], rounds: int) -> list[list[Measured]]:
    """Per net what each round gave; the first two rounds warm up and do not count."""
    given = [[measured(net) for net in nets] for _ in range(rounds + 2)]
    return [list(own) for own in zip(*given[2:], strict=True)]


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
    names = [str(node.target) for node in nets[0].graph.nodes if node.op == "placeholder"]
    given = (*inputs[0], *(inputs[1][name] for name in names[len(inputs[0]) :] if name in inputs[1]))

    def spent(net: fx.GraphModule) -> dict[str, float]:
        watch = Stopwatch(net)
        watch.run(*given)
        return watch.spent

    return [
        defaultdict(float, {name: statistics.median(each[name] for each in own) for name in own[0]})
        for own in _in_rounds(spent, nets, rounds)
    ]
