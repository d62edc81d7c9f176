"""What a cut did: the report of the slim net, extended; how far the outputs agree; and a bar meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn

from fxprune.cutting.refit import Refitted
from fxprune.cutting.samples import Samples
from fxprune.errors import DataError, ModelError, named
from fxprune.modules import evaluating
from fxprune.slim.report import SlimReport
from fxprune.slim.verify import run
from fxprune.torch_private import tensors_in

_MORE = "give samples as the model takes them: model(samples)"


@dataclass(frozen=True)
class CutReport(SlimReport):
    """What `fxprune.cut` did: all of `SlimReport`, and

    | attribute | |
    | --- | --- |
    | `layers` | layer -> the share of its variance that is missed on held-back samples, `before` and `after` its refit |
    | `left` | layer -> why it was not refitted |
    | `agreement` | share of the held-back samples to which the slim net gives the same largest output as the unpruned one; None where outputs are no rows of numbers |
    | `missed` | share of the variance of the unpruned net's outputs that the slim net's miss on the held-back samples |
    | `samples`, `held_back` | how many were given, and how many of them nothing was fitted to |
    | `polished` | whether gradient steps helped, and are kept; None where none were asked for |
    | `memory` | bytes that were expected to be needed, which the bar tells before it starts |
    | `seconds` | by stage |
    """  # noqa: E501

    layers: dict[str, dict[str, float]] = field(default_factory=dict, repr=False)
    left: dict[str, str] = field(default_factory=dict, repr=False)
    agreement: float | None = None
    missed: float | None = None
    samples: int = 0
    held_back: int = 0
    polished: bool | None = None
    memory: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


def extended(
    report: SlimReport, refitted: Refitted, samples: Samples, compared: tuple[float | None, float | None],
    polished: bool | None, memory: int, seconds: dict[str, float],
) -> CutReport:  # fmt: skip
    agreement, missed = compared
    return CutReport(
        **vars(report), layers={name: vars(layer) for name, layer in refitted.layers.items()}, left=refitted.left,
        agreement=agreement, missed=missed, samples=samples.count, held_back=samples.count - samples.fitted,
        polished=polished, memory=memory, seconds=seconds,
    )  # fmt: skip


def outputs(net: nn.Module, samples: Samples, part: slice) -> list[torch.Tensor]:
    """The tensors that the net returns for some of the samples."""
    made = []
    with evaluating(net):
        for args, kwargs in samples.of(part):
            made.append([leaf for leaf in tensors_in(run(net, args, kwargs)) if leaf.is_floating_point()])
    return [torch.cat([each if each.ndim else each[None] for each in leaves]) for leaves in zip(*made, strict=True)]


def compare(model: nn.Module, slim: nn.Module, samples: Samples) -> tuple[float | None, float | None]:
    """On the samples that are held back: to how many both give the same largest output, and what the slim net misses
    of the variance of the model's outputs."""
    part = slice(samples.fitted, samples.count)
    wanted, found = outputs(model, samples, part), outputs(slim, samples, part)
    agreement = None
    if len(wanted) == 1 and wanted[0].ndim == 2 and wanted[0].shape[1] > 1:
        agreement = float((wanted[0].argmax(1) == found[0].argmax(1)).double().mean())
    missed = sum(float((a - b).double().square().sum()) for a, b in zip(wanted, found, strict=True))
    whole = sum(float((a - a.mean(0)).double().square().sum()) for a in wanted)
    return agreement, missed / whole if whole else None


def tried(model: nn.Module, samples: Samples, batch: int) -> Samples:
    """The samples in chunks that the model takes, if need be of ``batch`` samples. Refuse a model that answers all of
    them alike."""
    try:
        made = outputs(model, samples, slice(0, min(samples.count, samples.chunk)))
    except Exception as error:
        if samples.count < 2 * batch:
            raise DataError(
                f"the model rejects {samples.count} calibration samples at once: {named(error)}", fix=_MORE
            ) from error
        samples = samples.in_chunks(batch)
        try:
            made = [torch.cat(pair) for pair in zip(
                outputs(model, samples, slice(0, batch)), outputs(model, samples, slice(batch, 2 * batch)), strict=True
            )]  # fmt: skip
        except Exception:
            raise DataError(f"the model rejects the calibration samples: {named(error)}", fix=_MORE) from error
    if made and all(len(leaf) > 1 and bool((leaf == leaf[:1]).all()) for leaf in made):
        raise ModelError(
            "the outputs of the model do not depend on its inputs: it answers all calibration samples alike",
            fix="look for weights that are all zero, and whether the samples are scaled as in training",
        )
    return samples


class Stages:
    """A bar on a terminal, one step per layer, and the seconds of each stage."""

    def __init__(self, bars: Progress, started: float) -> None:
        self.bars, self.last, self.seconds = bars, started, dict[str, float]()
        self.task = bars.add_task("reading", total=None)

    def begin(self, name: str, steps: int | None = None) -> Callable[[str], None]:
        self.bars.update(self.task, description=name, total=steps, completed=0)
        return lambda layer: self.bars.advance(self.task)

    def needs(self, size: int) -> None:
        """Say so before it is needed."""
        if not self.bars.disable:
            self.bars.console.print(f"about {size / 1e9:.1f} GB of memory are needed; fewer samples need less")

    def end(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name], self.last = now - self.last, now


@contextmanager
def stages(progress: bool | Console) -> Iterator[Stages]:
    console = progress if isinstance(progress, Console) else Console(stderr=True)
    columns: Any = TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn()
    bars = Progress(*columns, console=console, transient=True, disable=not progress or not console.is_terminal)
    with bars:
        yield Stages(bars, time.perf_counter())


