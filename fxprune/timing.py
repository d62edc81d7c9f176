"""A wrapped network's time on this machine: as a cost, from measurements, and checked on the net that was chosen."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from rich.console import Console
from torch import fx

from fxprune.budget.cost import LATENCY
from fxprune.budget.target import Target
from fxprune.errors import OptionError
from fxprune.latency import cache
from fxprune.latency.machine import cache_file, description
from fxprune.latency.measure import measure, network_key
from fxprune.latency.stopwatch import device_of, example_inputs, in_turns
from fxprune.passes.compile import compile_slim
from fxprune.passes.dense import Bools
from fxprune.tracing.copies import evaluating

if TYPE_CHECKING:
    from fxprune.wrapped import Wrapped

TRIES, NOISE = 4, 1.01  # what is this close to its budget may be on it
SECONDS, FEWEST, MOST = 2.0, 9, 40  # for a comparison of two nets, and rounds of it


def asks_for_latency(target: Target) -> bool:
    return any(name == LATENCY for name, _ in target.limits)


def measure_latency(wrapped: Wrapped) -> None:
    """Let the network's costs know its time; measured once per network and machine, and kept in the cache folder."""
    if wrapped.options["guessed"]:
        raise OptionError(
            "a budget of latency needs to know the inputs", fix="give wrap() example_inputs: their batch size counts"
        )
    analysis, model = wrapped.analysis, wrapped._original
    machine = description(device_of(model))
    file = cache_file(machine, network_key(analysis, model))
    found = cache.read(file)
    if found is None:
        with _telling() as tell:
            found = measure(analysis, model, lambda present: compiled(wrapped, present), tell)
        cache.write(file, found, machine)
    analysis.costs.latency = found
    vars(analysis).pop("full_cost", None)  # it was counted without


@contextlib.contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """On a terminal: what is being measured at the moment."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda text: None
        return
    with Console(stderr=True).status("measuring this machine") as status:
        yield lambda text: status.update(f"measuring this machine: {text}")


def compiled(wrapped: Wrapped, present: Bools) -> fx.GraphModule:
    """A network of these channels, to take the time of: what its gates let through does not matter."""
    values = {name: torch.ones_like(value) for name, value in wrapped.gate_values().items()}
    model = wrapped._original
    with evaluating(model):
        slim, _ = compile_slim(wrapped.analysis.channels, model, present, values, in_place=wrapped._in_place)
    return slim.eval()


def in_time(wrapped: Wrapped, target: Target, choose: Callable[[Target], Bools]) -> Bools:
    """The choice whose network really takes no more than its share of the time: measured, and made anew if it does."""
    analysis, limits = wrapped.analysis, dict(target.limits)
    share = asked = limits[LATENCY]
    full = compiled(wrapped, analysis.costs.logic.present(np.ones((analysis.variables, 1), dtype=bool))[:, 0])
    inputs = example_inputs(analysis.channels, full)
    rounds = int(min(max(SECONDS * 1e9 / max(analysis.full_cost.latency, 1), FEWEST), MOST))
    for _ in range(TRIES):
        opened = choose(Target(tuple({**limits, LATENCY: asked}.items())))
        slim = compiled(wrapped, analysis.costs.logic.present(opened[:, None])[:, 0])
        own, whole = in_turns([slim, full], inputs, rounds)
        took = statistics.median(a / b for a, b in zip(own, whole, strict=True))
        if took <= NOISE * share:
            break
        asked *= 0.99 * share / took
    return opened
