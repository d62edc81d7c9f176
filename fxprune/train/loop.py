"""Algorithm 1 of the paper, end to end: teacher, pruning, hardening, export, fine-tuning."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import fx, nn

from fxprune.choose.choose import check_reachable
from fxprune.cost.model import LATENCY, METRICS
from fxprune.count import batch_size as count_batch
from fxprune.errors import OptionError, RunError, first_line, named
from fxprune.files import reason, write_json
from fxprune.latency.cache import as_json, from_json
from fxprune.methods import Method, make_method
from fxprune.modules import copy_module
from fxprune.run.checkpoint import open_run, unfit
from fxprune.run.folder import STAGES, Run, check_writable
from fxprune.run.log import Log
from fxprune.run.names import CHECKPOINT, REPORT, REPORT_SCHEMA
from fxprune.slimming import present_ids
from fxprune.timing import use_latency
from fxprune.train.data import Batches, example_of
from fxprune.train.loss import Teaching
from fxprune.train.measure import accuracy, reestimate
from fxprune.train.phase import Phase, Trainer
from fxprune.train.progress import Display
from fxprune.train.reproduce import checksum, preserved, seed_all
from fxprune.train.settings import Settings
from fxprune.train.stop import Stop
from fxprune.train.teacher import CachedTeacher
from fxprune.wrapped import Wrapped

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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


@dataclass(frozen=True)
class Tools:
    """The calls above this package that a run needs, with what the user told them."""

    wrap: Callable[[nn.Module, Any], Wrapped]  # model, example inputs
    export: Callable[[Wrapped], fx.GraphModule]
    report: Callable[[Path], object]  # writes the page of a finished run's folder


def run_all(
    model: nn.Module, train: Any, val: Any, settings: Settings, tools: Tools, *, example_inputs: Any,
    batch_size: int | None, folder: str | os.PathLike[str] | None, resume: bool, device: torch.device | str | None,
    console: Console | None,
) -> Pruned:  # fmt: skip
    """All phases, or those that are left of a run that was cut off."""
    settings.check()
    batches = Batches(train, "train")
    validation = None if val is None else Batches(val, "val")
    generators = [*batches.generators, *(validation.generators if validation else [])]
    with preserved(generators), Stop() as stop, Display(console) as display:
        base = copy_module(model)
        _move(base, device or next((p.device for p in model.parameters()), torch.device("cpu")))
        first = batches.first()
        place = next((p.device for p in base.parameters()), torch.device("cpu"))
        example = example_inputs if example_inputs is not None else example_of(first.to(place), batch_size)
        wrapped = tools.wrap(base, example)
        make_method(settings.method, wrapped, settings.method_options)
        check_reachable(wrapped.analysis, wrapped.target)  # a budget that cannot be met shows now, not after training
        if folder is not None:
            check_writable(wrapped.set_masks({}))  # the same
        facts = _facts(model, wrapped, batches, settings)
        if LATENCY in facts["budget"]:
            facts["batch_size"] = count_batch(*wrapped.analysis.channels.trace.example)
        run, saved = (None, None) if folder is None else open_run(folder, wrapped, facts, resume)
        if run is not None:
            run.record(settings=facts)
        log = Log(run.folder if run else None)
        try:
            trainer = Trainer(
                batches, validation, settings.metric_fn or accuracy, place, settings.seed, log, display, stop,
                run.folder / CHECKPOINT if run else None, settings.checkpoint_minutes, facts, saved,
            )  # fmt: skip
            if saved is not None:
                assert run is not None
                finished = run.stage == STAGES[-1]
                display.note(
                    f"{run.folder} is finished: nothing is left to train" if finished
                    else f"going on with {run.folder}: phase {saved['phase']!r}"
                )  # fmt: skip
            return _Pruning(base, example, settings, tools, trainer, run).everything()
        except OSError as error:
            if run is None or not _is_of(error, run.folder):
                raise
            mend = "make room on the disk" if error.errno in _NO_ROOM else f"look at {error.filename}"
            raise RunError(
                f"{folder} cannot be written to ({reason(error)}); the checkpoint in it is intact",
                fix=f"{mend}, then start the same run again: it goes on from that checkpoint",
            ) from error
        finally:
            log.close()


def _is_of(error: OSError, folder: Path) -> bool:
    """Whether it is about the disk or the run's folder, and not about something of the user's."""
    named = error.filename if isinstance(error.filename, str) else ""
    return error.errno in _NO_ROOM or os.path.realpath(named).startswith(os.path.realpath(folder) + os.sep)


def _move(net: nn.Module, device: torch.device | str) -> None:
    try:
        net.to(device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise OptionError(
            f"device={str(device)!r}: {first_line(error)}", fix='leave device out, or write device="cpu"'
        ) from error


def _facts(model: nn.Module, wrapped: Wrapped, batches: Batches, settings: Settings) -> dict[str, Any]:
    teacher = settings.teacher
    known: dict[type, Callable[[Any], str]] = {str: str, CachedTeacher: lambda cached: str(cached.identity)}
    who = "none" if teacher is None else known.get(type(teacher), checksum)(teacher)
    if teacher == "self":
        who = f"the model itself, {checksum(model)}"
    return {
        "model": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "budget": dict(wrapped.target.limits),
        "ignore": list(wrapped.options["ignore"]),
        "leaf": [leaf if isinstance(leaf, str) else leaf.__qualname__ for leaf in wrapped.options["leaf"]],
        "batches": len(batches),
        "teacher": who,
        **settings.facts(settings.make_optimizer([{"params": [nn.Parameter(torch.zeros(1))]}])),
    }


class _Pruning:
    """The phases in their order. What a finished phase leaves is in ``trainer.kept``: a resumed run skips the phase."""

    def __init__(
        self, base: nn.Module, example: Any, settings: Settings, tools: Tools, trainer: Trainer, run: Run | None
    ) -> None:
        self.base, self.example, self.settings, self.tools = base, example, settings, tools
        self.trainer, self.run = trainer, run
        self.kept = trainer.kept
        self.kept.setdefault("accuracy", {})

    def everything(self) -> Pruned:
        teaching = self._teaching()
        if "before" not in self.kept["accuracy"]:
            self.kept["accuracy"]["before"] = self.trainer.evaluate(self.base)
            self._tell("before pruning", "before")
            self._record()
        wrapped = self.tools.wrap(self.base, self.example)
        seed_all(self.settings.seed, "method")
        method = make_method(self.settings.method, wrapped, self.settings.method_options)
        if "hardened" not in self.kept:
            self._prune(wrapped, method, teaching)
            if self.run is not None:
                self.run.write_hardened(wrapped)
        else:
            self._load(wrapped, "hardened")
            if "latency" in self.kept:
                use_latency(wrapped.analysis, from_json(self.kept["latency"]))
        slim = self._fine_tune(wrapped, teaching)
        return self._finish(wrapped, slim)

    def _teaching(self) -> Teaching:
        """Who teaches; trains the model first, if that is asked for."""
        settings, teacher = self.settings, self.settings.teacher
        teaching = Teaching(settings.loss, None, settings.alpha, settings.temperature)
        if teacher == "train":
            self._train_teacher(teaching)
        if isinstance(teacher, str):
            teacher = self.base
        if isinstance(teacher, nn.Module):
            teacher = copy_module(teacher).to(self.trainer.device).eval().requires_grad_(False)
        return Teaching(settings.loss, teacher, settings.alpha, settings.temperature)

    def _train_teacher(self, teaching: Teaching) -> None:
        if "teacher" not in self.kept:
            optimizer = self.settings.make_optimizer([{"params": list(self.base.parameters())}])
            epochs, _, slow = self.settings.epochs
            self.trainer.run(Phase("teacher", self.base, optimizer, teaching, epochs, slow))
            self.kept["teacher"] = _copied(self.base)
        self._load(self.base, "teacher")

    def _load(self, net: nn.Module, kept: str) -> None:
        try:
            net.load_state_dict(self.kept[kept])
        except (RuntimeError, TypeError, AttributeError) as error:
            raise unfit(self.trainer.file, f"the {kept} network", error) from error

    def _prune(self, wrapped: Wrapped, method: Method, teaching: Teaching) -> None:
        metric = wrapped.target.limits[0][0]

        def cost() -> tuple[float, float]:
            return float(wrapped.cost()[metric]), float(method.allowed()[metric])

        epochs = self.settings.epochs[0]
        optimizer = self.settings.make_optimizer(method.parameter_groups(epochs * len(self.trainer.train)))
        self.trainer.run(Phase("prune", wrapped, optimizer, teaching, epochs, method=method, cost=cost))
        self.kept["reached"] = float(wrapped.target.used(wrapped.cost(), wrapped.full_cost()))
        method.decide()
        self.kept["statistics"] = reestimate(wrapped, self.trainer.train, self.trainer.device, self.settings.seed)
        self.kept["accuracy"]["hardened"] = self.trainer.evaluate(wrapped)
        self.kept["hardened"] = _copied(wrapped)
        latency = wrapped.analysis.costs.latency
        if latency is not None:  # corrected by what the net was measured to take
            self.kept["latency"] = as_json(latency, {})

    def _fine_tune(self, wrapped: Wrapped, teaching: Teaching) -> fx.GraphModule:
        wrapped.eval()
        slim = self.tools.export(wrapped)
        found = self.kept["accuracy"]
        if "exported" not in found:
            found["exported"] = self.trainer.evaluate(slim)
            self._tell("pruned, before fine-tuning", "exported")
            self._record()
        metric, share = wrapped.target.limits[0]
        made: Any = slim.report
        volume, limit = float(made.after[metric]), float(share * wrapped.full_cost()[metric])
        optimizer = self.settings.make_optimizer([{"params": list(slim.parameters())}])
        _, epochs, slow = self.settings.epochs
        phase = Phase("fine-tune", slim, optimizer, teaching, epochs, slow, cost=lambda: (volume, limit))
        last = self.trainer.run(phase)
        found["after"] = found["exported"] if last is None else last
        slim.eval()
        return slim

    def _record(self) -> None:
        if self.run is not None:
            self.run.record(accuracy=self.kept["accuracy"])

    def _tell(self, when: str, which: str) -> None:
        if self.kept["accuracy"][which] is not None:
            self.trainer.display.note(f"{when}: accuracy {self.kept['accuracy'][which]:.4f}")

    def _finish(self, wrapped: Wrapped, slim: fx.GraphModule) -> Pruned:
        from fxprune import __version__

        made: Any = slim.report
        found = self.kept["accuracy"]
        report = {
            "schema": REPORT_SCHEMA,
            "fxprune": __version__,
            "model": type(self.base).__name__,
            "budget": dict(wrapped.target.limits),
            "cost": {name: {"before": made.before[name], "after": made.after[name]} for name in made.before},
            "accuracy": {name: found[name] for name in ("before", "hardened", "exported", "after")},
            "widths": made.widths,
            "removed": list(made.removed),
            "reached": self.kept["reached"],
            "regular": _regular(wrapped),
            "error": made.error,
            "statistics_batches": self.kept["statistics"],
            "settings": self.trainer.facts,
            "seconds": round(self.trainer.seconds, 3),
        }
        if self.run is not None:
            write_json(self.run.folder / REPORT, report)
            self.run.write_slim(slim)
            self._record()
            self._write_page(self.run.folder)
        folder = self.run.folder if self.run is not None else None
        return Pruned(slim, report, folder, found["before"], found["after"])

    def _write_page(self, folder: Path) -> None:
        try:
            self.tools.report(folder)
        except Exception as error:  # whatever is wrong with a page, the run is done, and its nets are worth more
            instead = f"fxprune report {folder} -o report.html"
            self.trainer.display.note(f"no page was written ({named(error)}); try {instead}")


def _regular(wrapped: Wrapped) -> dict[str, int]:
    """What the same network costs with regular residual blocks, which compute on both sides of an add what lives on
    one of them."""
    cost = wrapped.analysis.costs.of_present(present_ids(wrapped, "dense"))
    return {name: int(cost[name]) for name in METRICS}


def _copied(net: nn.Module) -> dict[str, Any]:
    """A state that further training does not change."""
    state = net.state_dict()
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in state.items()}
