"""A wrapped network's time on this machine: as a cost, from measurements, and checked on the net that was chosen."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import torch
from rich.console import Console
from torch import fx

from fxprune.budget.cost import LATENCY
from fxprune.budget.latency import Latency
from fxprune.budget.target import Target
from fxprune.errors import OptionError
from fxprune.latency import cache
from fxprune.latency.machine import cache_file, description
from fxprune.latency.measure import measure, network_key
from fxprune.latency.process import in_fresh_process
from fxprune.latency.stopwatch import device_of, example_inputs
from fxprune.passes.analysis import Analysis
from fxprune.passes.compile import compile_slim
from fxprune.passes.dense import Bools
from fxprune.tracing.copies import evaluating

if TYPE_CHECKING:
    from fxprune.wrapped import Wrapped

TRIES, ENOUGH, AIM = 6, 0.94, 0.97  # another process measures a few percent more or less: aim below the budget
SECONDS, FEWEST, MOST = 2.0, 9, 200  # for a comparison of two nets, and rounds of it


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
    use_latency(analysis, found)


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
    """The choice whose network really takes its share of the time, and no more: each one is measured, the model of
    the time is corrected by what it took, and the next choice is made by that."""
    analysis, limits = wrapped.analysis, dict(target.limits)
    latency, share = analysis.costs.latency, limits[LATENCY]
    assert latency is not None
    everyone = analysis.costs.logic.present(np.ones((analysis.variables, 1), dtype=bool))[:, 0]
    full = compiled(wrapped, everyone)
    inputs = example_inputs(analysis.channels, full)
    rounds = int(min(max(SECONDS * 1e9 / max(analysis.full_cost.latency, 1), FEWEST), MOST))
    fitting: list[tuple[float, Bools, Latency]] = []  # share of the budget that is used, choice, model that knows it
    for number in range(TRIES):
        try:
            opened = choose(Target(tuple({**limits, LATENCY: AIM ** (1 + number / 2) * share}.items())))
        except OptionError:
            break  # as small as it gets
        present = analysis.costs.logic.present(opened[:, None])[:, 0]
        own, whole = in_fresh_process([compiled(wrapped, present), full], inputs, rounds)
        used = statistics.median(a / b for a, b in zip(own, whole, strict=True)) / share
        known, usual = replace(latency), 1e9 * statistics.median(whole)
        known.fit(np.stack([present, everyone], 1), np.array([used * share * usual, usual]))
        use_latency(analysis, known)
        if used <= 1:
            fitting.append((used, opened, known))
            if used >= ENOUGH or bool(opened.all()):
                break
    if not fitting:
        return choose(target)  # by the model alone
    _, opened, known = max(fitting, key=itemgetter(0))
    use_latency(analysis, known)
    return opened


def use_latency(analysis: Analysis, latency: Latency | None) -> None:
    """Count time by this model of it."""
    analysis.costs.latency = latency
    vars(analysis).pop("full_cost", None)  # it was counted with another
