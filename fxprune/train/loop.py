"""Algorithm 1 of the paper: teacher, pruning, hardening, fine-tuning, report. ``fxprune.prune`` is the list of these
passes, and wraps and exports in between."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import fx, nn

from fxprune import __version__
from fxprune.choose.choose import check_reachable
from fxprune.cost.model import METRICS
from fxprune.errors import OptionError, first_line
from fxprune.files import write_json
from fxprune.gated.wrapped import Wrapped, use_latency
from fxprune.latency.cache import as_json, from_json
from fxprune.latency.stopwatch import device_of
from fxprune.methods import make_method
from fxprune.modules import copy_module
from fxprune.run.checkpoint import open_run, unfit
from fxprune.run.folder import STAGES, Run, check_writable
from fxprune.run.layout import REPORT, REPORT_SCHEMA
from fxprune.slim.connectivity import present_ids, regular_blocks
from fxprune.train.data import Batch, Batches
from fxprune.train.loss import Teaching
from fxprune.train.measure import accuracy, reestimate
from fxprune.train.phase import Phase, Trainer, training
from fxprune.train.reproduce import preserved, seed_all
from fxprune.train.settings import Settings


@dataclass(frozen=True)
class Pruned:
    """What ``fxprune.prune`` returns."""

    slim: fx.GraphModule  # fine-tuned, in eval mode
    report: dict[str, Any]  # what report.json holds
    run: Path | None
    before: float | None  # accuracy of the model as pruning found it
    after: float | None  # of the slim net

    def __repr__(self) -> str:
        costs = {name: self.report["cost"][name] for name in self.report["budget"]}
        sizes = ", ".join(f"{name} {cost['after']:,} of {cost['before']:,}" for name, cost in costs.items())
        return f"Pruned({sizes}; accuracy {self.before} -> {self.after}; run={str(self.run)!r})"


@contextmanager
def begun(
    model: nn.Module, train: Any, val: Any, settings: Settings, device: torch.device | str | None,
    console: Console | None,
) -> Iterator[Pruning]:  # fmt: skip
    """Passes for a copy of the model. Afterwards random numbers and signal handlers are the caller's again."""
    batches, validation = Batches(train, "train"), None if val is None else Batches(val, "val")
    base = copy_module(model)
    try:
        base.to(device or device_of(model))
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise OptionError(
            f"device={str(device)!r}: {first_line(error)}", fix='leave device out, or write device="cpu"'
        ) from error
    metric, place = settings.metric_fn or accuracy, device_of(base)
    with (
        preserved([*batches.generators, *(validation.generators if validation else [])]),
        training(batches, validation, metric, place, settings.seed, console) as trainer,
    ):
        yield Pruning(base, batches.first().to(place), settings, trainer)


@dataclass
class Pruning:
    """The passes, in their order. What they leave is in ``trainer.kept``: a resumed run skips what is done."""

    base: nn.Module
    first: Batch  # to cut an example from
    settings: Settings
    trainer: Trainer
    run: Run | None = None

    def open(self, wrapped: Wrapped, folder: str | os.PathLike[str] | None, resume: bool) -> None:
        """Start the run, or go on with it. A run that could not be finished is refused now, not after training."""
        settings, trainer = self.settings, self.trainer
        make_method(settings.method, wrapped, settings.method_options)
        check_reachable(wrapped.analysis, wrapped.target)
        facts, saved = settings.facts(self.base, wrapped, len(trainer.train)), None
        if folder is not None:
            check_writable(wrapped.set_masks({}))
            self.run, saved = open_run(folder, wrapped, facts, resume)
            self.run.record(settings=facts)
        trainer.open(self.run.folder if self.run else None, facts, saved, settings.checkpoint_minutes)
        self.kept = trainer.kept
        self.accuracy: dict[str, float | None] = self.kept.setdefault("accuracy", {})
        if self.run is not None and saved is not None:
            trainer.display.note(
                f"{self.run.folder} is finished: nothing is left to train" if self.run.stage == STAGES[-1]
                else f"going on with {self.run.folder}: phase {saved['phase']!r}"
            )  # fmt: skip

    def teach(self) -> None:
        """Choose the teacher; train the model first, if that is asked for. Measure the model before pruning."""
        settings, teacher = self.settings, self.settings.teacher
        if teacher == "train":
            if "teacher" not in self.kept:
                epochs, _, slow = settings.epochs
                labels = Teaching(settings.loss, None, settings.alpha, settings.temperature)
                optimizer = settings.make_optimizer([{"params": list(self.base.parameters())}])
                self.trainer.run(Phase("teacher", self.base, optimizer, labels, epochs, slow))
                self.kept["teacher"] = _copied(self.base)
            self._load(self.base, "teacher")
        if isinstance(teacher, str):
            teacher = self.base
        if isinstance(teacher, nn.Module):
            teacher = copy_module(teacher).to(self.trainer.device).eval().requires_grad_(False)
        self.teaching = Teaching(settings.loss, teacher, settings.alpha, settings.temperature)
        self._measure("before", self.base, "before pruning")

    def prune(self, wrapped: Wrapped) -> None:
        """Train with gates, then fix the masks."""
        settings, trainer = self.settings, self.trainer
        seed_all(settings.seed, "method")
        method = make_method(settings.method, wrapped, settings.method_options)
        if "hardened" in self.kept:
            self._load(wrapped, "hardened")
            if "latency" in self.kept:
                use_latency(wrapped, from_json(self.kept["latency"]))
            return
        metric, _ = wrapped.target.limits[0]

        def cost() -> tuple[float, float]:
            return float(wrapped.cost()[metric]), float(method.allowed()[metric])

        if method.looks_at:
            method.look(trainer.train.some(method.looks_at, trainer.device, settings.seed, "look"))
        epochs = settings.epochs[0]
        optimizer = settings.make_optimizer(method.parameter_groups(epochs * len(trainer.train)))
        trainer.run(Phase("prune", wrapped, optimizer, self.teaching, epochs, method=method, cost=cost))
        self.kept["reached"] = float(wrapped.target.used(wrapped.cost(), wrapped.full_cost()))
        method.decide()
        self.kept["statistics"] = reestimate(wrapped, trainer.train, trainer.device, settings.seed)
        self.accuracy["hardened"] = trainer.evaluate(wrapped)
        self.kept["hardened"] = _copied(wrapped)
        latency = wrapped.analysis.costs.latency
        if latency is not None:  # training corrected it by measured times
            self.kept["latency"] = as_json(latency, {})
        if self.run is not None:
            self.run.write_hardened(wrapped)

    def fine_tune(self, wrapped: Wrapped, slim: fx.GraphModule) -> None:
        self._measure("exported", slim, "pruned, before fine-tuning")
        report: Any = slim.report
        metric, share = wrapped.target.limits[0]
        cost = float(report.after[metric]), float(share * wrapped.full_cost()[metric])
        optimizer = self.settings.make_optimizer([{"params": list(slim.parameters())}])
        _, epochs, slow = self.settings.epochs
        last = self.trainer.run(Phase("fine-tune", slim, optimizer, self.teaching, epochs, slow, cost=lambda: cost))
        self.accuracy["after"] = self.accuracy["exported"] if last is None else last
        slim.eval()

    def finish(self, wrapped: Wrapped, slim: fx.GraphModule) -> Pruned:
        """Write the report and the slim net."""
        exported: Any = slim.report
        # The cost with regular residual blocks: both sides of an add compute the channels that live on one of them.
        analysis = wrapped.analysis
        present = regular_blocks(analysis.channels, present_ids(analysis, wrapped.masks()))
        regular = analysis.costs.of_present(present)
        report = {
            "schema": REPORT_SCHEMA,
            "fxprune": __version__,
            "model": type(self.base).__name__,
            "budget": dict(wrapped.target.limits),
            "cost": {name: {"before": cost, "after": exported.after[name]} for name, cost in exported.before.items()},
            "accuracy": {name: self.accuracy[name] for name in ("before", "hardened", "exported", "after")},
            "widths": exported.widths,
            "removed": list(exported.removed),
            "reached": self.kept["reached"],
            "regular": {name: int(regular[name]) for name in METRICS},
            "error": exported.error,
            "statistics_batches": self.kept["statistics"],
            "settings": self.trainer.facts,
            "seconds": round(self.trainer.seconds, 3),
        }
        if self.run is not None:
            write_json(self.run.folder / REPORT, report)
            self.run.write_slim(slim)
            self.run.record(accuracy=self.accuracy)
        folder = self.run.folder if self.run is not None else None
        return Pruned(slim, report, folder, self.accuracy["before"], self.accuracy["after"])

    def _load(self, net: nn.Module, kept: str) -> None:
        try:
            net.load_state_dict(self.kept[kept])
        except (RuntimeError, TypeError, AttributeError) as error:
            raise unfit(self.trainer.file, f"the {kept} network", error) from error

    def _measure(self, which: str, net: nn.Module, when: str) -> None:
        """Measure the accuracy, unless an earlier part of this run has done so."""
        if which in self.accuracy:
            return
        self.accuracy[which] = value = self.trainer.evaluate(net)
        if value is not None:
            self.trainer.display.note(f"{when}: accuracy {value:.4f}")
        if self.run is not None:
            self.run.record(accuracy=self.accuracy)


def _copied(net: nn.Module) -> dict[str, Any]:
    """A copy of the state, which further training does not change."""
    state = net.state_dict()
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in state.items()}
