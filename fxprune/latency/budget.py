"""A budget of time: the time of a network as one of its costs, and a choice of channels within the budget."""

from __future__ import annotations

import contextlib
import copy
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf, sqrt
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import distributed, fx

from fxprune.analysis import Analysis
from fxprune.cost.latency import Latency
from fxprune.cost.model import LATENCY
from fxprune.cost.target import Target
from fxprune.errors import OptionError
from fxprune.latency import cache
from fxprune.latency.measure import measure, network_key
from fxprune.latency.process import Timer, own_process
from fxprune.latency.stopwatch import device_of, example_inputs, usual_ratio
from fxprune.slim.compile import Uncut, compile_slim
from fxprune.slim.connectivity import Bools, present_ids

MARGIN = 0.97  # two processes measure times that differ by a few percent: stay below the budget
TRIES, ENOUGH, AIM = 8, 0.94, 0.97
SECONDS, FEWEST, MOST = 4.0, 15, 200  # for a comparison of two nets, and rounds of it


def latency_of(net: Uncut) -> Latency:
    """The time of a network by the numbers of its channels; measured once per network and machine, and kept in the
    cache folder."""
    _check_alone()
    machine = cache.description(device_of(net.model))
    file = cache.cache_file(machine, network_key(net.analysis, net.model))
    latency = cache.read(file)
    if latency is None:
        with _telling() as tell:
            latency = measure(net.analysis, net.model, lambda present: compiled(net, present), tell)
        cache.write(file, latency, machine)
    return latency


def timed_by(analysis: Analysis, latency: Latency | None) -> Analysis:
    """The same analysis, with this model of the time."""
    costs = copy.copy(analysis.costs)
    costs.latency = latency
    return replace(analysis, costs=costs)


def _check_alone() -> None:
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        raise OptionError(
            "a budget of latency is measured, and each of several processes would measure something else",
            fix='prune in one process, or ask for metric="flops"',
        )


@contextlib.contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """On a terminal: what is being measured at the moment."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda text: None
        return
    with Console(stderr=True).status("measuring this machine") as status:
        yield lambda text: status.update(f"measuring this machine: {text}")


def compiled(net: Uncut, present: Bools) -> fx.GraphModule:
    """A network with these channels, to be timed: the values of its gates do not matter."""
    ones = {name: torch.ones_like(value) for name, value in net.gate_values.items()}
    return compile_slim(replace(net, opened=_everyone(net), gate_values=ones), present)[0].eval()


def _everyone(net: Uncut) -> Bools:
    return np.ones(net.analysis.variables, dtype=bool)


def in_time(net: Uncut, target: Target, choose: Callable[[Analysis, Target], Bools]) -> tuple[Bools, Analysis]:
    """The choice whose network, when measured, stays within its share of the time; and the analysis, whose model of the
    time is corrected by that measurement."""
    analysis, share = net.analysis, dict(target.limits)[LATENCY]
    if share >= 1:
        return choose(analysis, target), analysis
    _check_alone()
    with own_process() as timed, own_process() as again:
        trials = _tried(net, target, choose, timed, again)
    if not trials:
        return choose(analysis, target), analysis
    fitting = [trial for trial in trials if trial.share <= MARGIN * share]
    fitting = fitting or [trial for trial in trials if trial.share <= share]
    best = max(fitting, key=_share) if fitting else min(trials, key=_share)
    assert analysis.costs.latency is not None
    corrected = replace(analysis.costs.latency)
    present = np.stack([best.present, present_ids(analysis, _everyone(net))], 1)
    corrected.fit(present, np.array([best.share * best.full, best.full]))
    analysis = timed_by(analysis, corrected)
    return best.opened if fitting else choose(analysis, target), analysis  # by the model alone


def _tried(
    net: Uncut, target: Target, choose: Callable[[Analysis, Target], Bools], timed: Timer, again: Timer
) -> list[_Trial]:
    """The model of the time is not exact. So the limit given to it is found by bisection: between one whose net was too
    slow and one whose net was fast enough. The latter may have been luck: it is timed in another process, too."""
    analysis, limits = net.analysis, dict(target.limits)
    full = compiled(net, present_ids(analysis, _everyone(net)))
    inputs = example_inputs(analysis.channels, full)
    rounds = int(min(max(SECONDS * 1e9 / max(analysis.full_cost.latency, 1), FEWEST), MOST))
    goal = MARGIN * limits[LATENCY]
    limit, enough, too_much = AIM * goal, 0.0, inf
    trials: list[_Trial] = []
    for _ in range(TRIES):
        try:
            opened = choose(analysis, Target(tuple({**limits, LATENCY: limit}.items())))
        except OptionError:
            break  # nothing smaller can be tried
        present = present_ids(analysis, opened)
        nets = [compiled(net, present), full]
        own, whole = timed(nets, inputs, rounds)
        if ENOUGH * goal <= usual_ratio(own, whole) <= goal:
            own, whole = (one + other for one, other in zip([own, whole], again(nets, inputs, rounds), strict=True))
        used = usual_ratio(own, whole) / goal
        trials.append(_Trial(opened, present, used * goal, 1e9 * statistics.median(whole)))
        if ENOUGH <= used <= 1 or (used < 1 and (opened.all() or limit == 1)):
            break
        enough, too_much = (limit, too_much) if used <= 1 else (enough, limit)
        limit = min(limit * AIM / used, 1.0)
        if not enough < limit < too_much:
            limit = sqrt(enough * too_much)
    return trials


class _Trial(NamedTuple):
    """A choice that was measured: its share of the full net's time, and that time in nanoseconds."""

    opened: Bools
    present: Bools
    share: float
    full: float


_share = attrgetter("share")
