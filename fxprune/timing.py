"""A wrapped network's time on this machine: as a cost, from measurements, and checked on the net that was chosen."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf, sqrt
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

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
from fxprune.latency.stopwatch import cache_file, description, device_of, example_inputs, usual_ratio
from fxprune.modules import evaluating
from fxprune.slim.compile import compile_slim
from fxprune.slim.connectivity import Bools

if TYPE_CHECKING:
    from fxprune.wrapped import Wrapped

MARGIN = 0.97  # another process measures a few percent more or less: stay below the budget
TRIES, ENOUGH, AIM = 8, 0.94, 0.97
SECONDS, FEWEST, MOST = 4.0, 15, 200  # for a comparison of two nets, and rounds of it


def asks_for_latency(target: Target) -> bool:
    return any(name == LATENCY for name, _ in target.limits)


def measure_latency(wrapped: Wrapped) -> None:
    """Let the network's costs know its time; measured once per network and machine, and kept in the cache folder."""
    _check_alone()
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


def compiled(wrapped: Wrapped, present: Bools) -> fx.GraphModule:
    """A network of these channels, to take the time of: what its gates let through does not matter."""
    values = {name: torch.ones_like(value) for name, value in wrapped.gate_values().items()}
    model = wrapped._original
    with evaluating(model):
        slim, _ = compile_slim(wrapped.analysis.channels, model, present, values, in_place=wrapped._in_place)
    return slim.eval()


def in_time(wrapped: Wrapped, target: Target, choose: Callable[[Target], Bools]) -> Bools:
    """The choice whose network really takes its share of the time, and no more."""
    share = dict(target.limits)[LATENCY]
    if share >= 1:
        return choose(target)
    _check_alone()
    with own_process() as timed, own_process() as again:
        seen = _tried(wrapped, target, choose, timed, again)
    if not seen:
        return choose(target)
    analysis, everyone = wrapped.analysis, _everyone(wrapped)
    fitting = [net for net in seen if net.share <= MARGIN * share] or [net for net in seen if net.share <= share]
    best = max(fitting, key=_share) if fitting else min(seen, key=_share)
    assert analysis.costs.latency is not None
    known = replace(analysis.costs.latency)  # corrected by what the chosen net took
    known.fit(np.stack([best.present, everyone], 1), np.array([best.share * best.full, best.full]))
    use_latency(analysis, known)
    return best.opened if fitting else choose(target)  # by the model alone


def _tried(
    wrapped: Wrapped, target: Target, choose: Callable[[Target], Bools], timed: Timer, again: Timer
) -> list[_Seen]:  # fmt: skip
    """The model of the time is not exact: what it may be is searched for, between a limit whose net was measured to be
    too slow and one whose net was fast enough. That one may have been lucky: it is timed in another process, too."""
    analysis, limits, full = wrapped.analysis, dict(target.limits), compiled(wrapped, _everyone(wrapped))
    inputs = example_inputs(analysis.channels, full)
    rounds = int(min(max(SECONDS * 1e9 / max(analysis.full_cost.latency, 1), FEWEST), MOST))
    goal = MARGIN * limits[LATENCY]
    limit, enough, too_much, seen = AIM * goal, 0.0, inf, []  # type: float, float, float, list[_Seen]
    for _ in range(TRIES):
        try:
            opened = choose(Target(tuple({**limits, LATENCY: limit}.items())))
        except OptionError:
            break  # as small as it gets
        present = analysis.costs.logic.present(opened[:, None])[:, 0]
        nets = [compiled(wrapped, present), full]
        own, whole = timed(nets, inputs, rounds)
        if ENOUGH * goal <= usual_ratio(own, whole) <= goal:
            own, whole = (one + other for one, other in zip([own, whole], again(nets, inputs, rounds), strict=True))
        used = usual_ratio(own, whole) / goal
        seen.append(_Seen(opened, present, used * goal, 1e9 * statistics.median(whole)))
        if ENOUGH <= used <= 1 or (used < 1 and (opened.all() or limit == 1)):
            break
        enough, too_much = (limit, too_much) if used <= 1 else (enough, limit)
        limit = min(limit * AIM / used, 1.0)
        if not enough < limit < too_much:
            limit = sqrt(enough * too_much)
    return seen


def _everyone(wrapped: Wrapped) -> Bools:
    analysis = wrapped.analysis
    present: Bools = analysis.costs.logic.present(np.ones((analysis.variables, 1), dtype=bool))[:, 0]
    return present


class _Seen(NamedTuple):
    """A choice that was measured: its share of the full net's time, and that time in nanoseconds."""

    opened: Bools
    present: Bools
    share: float
    full: float


_share = attrgetter("share")


def use_latency(analysis: Analysis, latency: Latency | None) -> None:
    """Count time by this model of it."""
    analysis.costs.latency = latency
    vars(analysis).pop("full_cost", None)  # it was counted with another
