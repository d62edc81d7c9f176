"""One run of a comparison, in a process of its own: a teacher, or a teacher pruned to a budget. Both can be resumed."""

from __future__ import annotations

import copy
import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from fxprune.api import prune
from fxprune.compare import measure
from fxprune.compare.plan import TEACHER, Entry, Job, Plan
from fxprune.compare.rows import Row
from fxprune.count import batch_size
from fxprune.errors import DataError, RunError, TargetError, one_line
from fxprune.files import load_tensors, replacing, write_json
from fxprune.latency.stopwatch import Inputs, device_of
from fxprune.run import checkpoint
from fxprune.run.folder import Run
from fxprune.run.log import Log
from fxprune.run.names import CHECKPOINT, FACTS, REPORT
from fxprune.trace import example_arguments
from fxprune.train.data import Batches, example_of
from fxprune.train.loss import Teaching
from fxprune.train.measure import accuracy, evaluate
from fxprune.train.phase import Phase, Trainer
from fxprune.train.progress import Display
from fxprune.train.reproduce import preserved, seed_all
from fxprune.train.search import searches
from fxprune.train.settings import MakeOptimizer, adam
from fxprune.train.stop import Stop

RUNS, TEACHERS, NET = "runs", "teachers", "net.pt"


@dataclass(frozen=True)
class Parts:
    """What the config names, as objects; the command finds them."""

    network: Callable[[], nn.Module]
    loaders: Callable[[dict[str, Any]], tuple[Any, ...]]  # of a section [data]: train, val and maybe test
    optimizer: Callable[[dict[str, Any]], MakeOptimizer]
    tool: Callable[[str], Callable[..., Any]]
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)  # loss and metric_fn, if they are given


def one(plan: Plan, job: Job, parts: Parts) -> Row:
    """Do the run, or what is left of it, and tell how it went."""
    worker = _Worker(plan, job, parts)
    return worker.teacher() if job.entry == TEACHER else worker.pruned(plan.entries[job.entry])


def timed_again(plan: Plan, job: Job, parts: Parts) -> Row:
    """What of a finished run's row is a matter of time, measured now."""
    return _Worker(plan, job, parts).timed_again(plan.entries[job.entry])


def row_file(folder: Path, job: Job) -> Path:
    """Where a run leaves its row for the comparison to pick up."""
    return folder / RUNS / f"{job.name}.row.json"


def teacher_file(folder: Path, seed: int) -> Path:
    """The weights of a teacher that the comparison trained."""
    return folder / TEACHERS / f"{seed}.pt"


def clear(folder: Path, job: Job) -> None:
    """What is large, or of no use once the row is kept."""
    for file in (folder / RUNS / job.name / CHECKPOINT, row_file(folder, job), log_file(folder, job)):
        file.unlink(missing_ok=True)
    for file in searches(folder / RUNS / job.name).glob(f"*/{CHECKPOINT}"):
        file.unlink()


def log_file(folder: Path, job: Job) -> Path:
    """What a run printed; kept if it fails."""
    return folder / RUNS / f"{job.name}.log"


class _Worker:
    def __init__(self, plan: Plan, job: Job, parts: Parts) -> None:
        self.plan, self.job, self.parts = plan, job, parts
        self.folder = plan.folder / RUNS / job.name
        self.begin = time.perf_counter()
        seed_all(job.seed, "made")  # random weights are the same ones when a run goes on
        self.net = parts.network()

    # ------------------------------------------------------------ teachers

    def teacher(self) -> Row:
        loaders = self._loaders(self.plan.teacher_data)
        weights = self.plan.teacher.get("weights")
        if weights is not None:
            self._load(self._file(weights))
            seconds = 0.0
        else:
            seconds = self._train(loaders)
            file = teacher_file(self.plan.folder, self.job.seed)
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as opened:
                torch.save(self.net.cpu().state_dict(), opened)
        scores = self._scores(self.net, self._loaders(self.plan.data))
        return {**self._row(), **scores, "seconds": round(seconds, 1)}

    def _train(self, loaders: tuple[Any, ...]) -> float:
        """Labels only; from the checkpoint, if there is one."""
        epochs, slow = self.plan.teacher["epochs"]
        table = self.plan.teacher.get("optimizer")
        make = self.parts.optimizer(table) if table else adam
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / CHECKPOINT
        facts = {"settings": json.dumps(self.plan.facts(self.job), sort_keys=True)}
        saved = checkpoint.load_run(file) if file.is_file() else None
        if saved is not None and saved["facts"] != facts:
            raise RunError(f"{self.folder} was started with other settings", fix="use another folder")
        log = Log(self.folder)
        self.net.to(self.plan.device)
        train, val = Batches(loaders[0], "train"), Batches(loaders[1], "val")
        with preserved(), Stop() as stop, Display(Console()) as display:
            trainer = Trainer(
                train, val, self._metric, device_of(self.net), self.job.seed, log, display, stop, file, 5, facts,
                saved,
            )  # fmt: skip
            optimizer = make([{"params": list(self.net.parameters())}])
            loss = Teaching(self.parts.functions.get("loss"), None, 0.0, 1.0)
            trainer.run(Phase("teacher", self.net, optimizer, loss, epochs, slow))
            log.close()
            return trainer.seconds

    # ------------------------------------------------------------ pruned nets

    def pruned(self, entry: Entry) -> Row:
        start = self.net if entry.start == TEACHER else copy.deepcopy(self.net)  # which has random weights, so far
        weights = self.plan.teacher.get("weights")
        self._load(self._file(weights) if weights else teacher_file(self.plan.folder, self.job.seed))
        loaders = self._loaders(self.plan.data)
        example = example_of(Batches(loaders[0], "train").first(), entry.batch_size)
        slim, report, seconds = (self._by_prune if entry.method else self._by_tool)(entry, start, loaders, example)
        full = self.net.eval()
        inputs = example_arguments(example)
        place = device_of(slim)
        scores = self._scores(slim, loaders)
        before, after = measure.cost(full.cpu(), inputs), measure.cost(slim.cpu(), inputs)
        kept, wide = (measure.widths(net, inputs) for net in (slim, full))
        row = {
            **self._row(),
            "method" if entry.method else "tool": entry.what,
            "metric": entry.metric,
            "budget": self.job.budget,
            "share": self.job.share,
            "distilled": entry.distilled,
            **({} if entry.start == TEACHER else {"start": entry.start}),
            **scores,
            "cost": after,
            "full": before,
            "used": round(after[entry.metric] / before[entry.metric] / self.job.share, 6) if entry.counted else None,
            "factor": {name: round(before[name] / after[name], 4) if after[name] else None for name in before},
            "widths": {name: kept.get(name, 0) for name in wide} | kept,
            "full_widths": wide,
            "regular": report.get("regular"),
            "reached": report.get("reached"),
            **self._times(entry, slim.to(place), full.to(place), inputs),
            "seconds": round(seconds, 1),
        }
        if entry.tool:
            self.folder.mkdir(parents=True, exist_ok=True)
            _keep(slim, self.folder / NET)
            write_json(self.folder / REPORT, row)
        return row

    def _times(self, entry: Entry, slim: nn.Module, full: nn.Module, inputs: Inputs) -> Row:
        """Beside the unpruned net; a budget of latency is about the batch of the example."""
        if entry.counted:
            return {"latency": measure.latency(slim, full, inputs)}
        batch = batch_size(*inputs)
        found = measure.latency(slim, full, inputs, (batch,))
        return {"latency": found, "used": round(found.get(str(batch), math.inf) / self.job.share, 6)}

    def timed_again(self, entry: Entry) -> Row:
        """The times of a net that is there already."""
        example = example_of(Batches(self._loaders(self.plan.data)[0], "train").first(), entry.batch_size)
        full = self.net.to(self.plan.device)
        place = device_of(full)
        try:
            slim = (
                torch.load(self.folder / NET, map_location=place, weights_only=False)
                if entry.tool else Run(self.folder).slim().to(place)
            )  # fmt: skip
        except Exception as error:  # a pickle of the tool's own classes may raise anything
            raise RunError(f"its net cannot be read from {self.folder}: {one_line(error)}") from error
        return self._times(entry, slim, full, example_arguments(example)) | {"machine": measure.machine()}

    def _by_prune(
        self, entry: Entry, start: nn.Module, loaders: tuple[Any, ...], example: Any
    ) -> tuple[nn.Module, Row, float]:
        if (self.folder / FACTS).exists() and not (self.folder / CHECKPOINT).exists():
            shutil.rmtree(self.folder)  # a finished run whose row is gone: its checkpoint is, too
            shutil.rmtree(searches(self.folder), ignore_errors=True)
        chosen = {**entry.settings, **self.parts.functions}
        if chosen["teacher"] == "none":
            chosen["teacher"] = None
        elif start is not self.net:
            chosen["teacher"] = self.net
        if entry.optimizer:
            chosen["optimizer"] = self.parts.optimizer(entry.optimizer)
        if entry.options:
            chosen["method_options"] = entry.options_at(self.job.budget)
        made = prune(
            start, loaders[0], loaders[1], budget=self.job.share, method=entry.what, seed=self.job.seed,
            run=self.folder, resume=True, example_inputs=example, **chosen,
        )  # fmt: skip
        return made.slim, made.report, float(made.report["seconds"])

    def _by_tool(
        self, entry: Entry, start: nn.Module, loaders: tuple[Any, ...], example: Any
    ) -> tuple[nn.Module, Row, float]:
        tool, chosen = self.parts.tool(entry.what), entry.settings
        teacher = copy.deepcopy(self.net).eval().requires_grad_(False) if entry.distilled else None
        seed_all(self.job.seed, "tool")
        begin = time.perf_counter()
        made = tool(
            copy.deepcopy(start), loaders[0], loaders[1], budget=self.job.share, metric=entry.metric,
            epochs=tuple(chosen["epochs"]), teacher=teacher, alpha=chosen["alpha"], temperature=chosen["temperature"],
            optimizer=self.parts.optimizer(entry.optimizer) if entry.optimizer else adam,
            seed=self.job.seed, example_inputs=example, **entry.options_at(self.job.budget),
        )  # fmt: skip
        if not isinstance(made, nn.Module):
            raise TargetError(
                f"{entry.what} returned an object of type {type(made).__name__}, not a net", fix="return the slim net"
            )
        return made, {}, time.perf_counter() - begin

    # ------------------------------------------------------------ both

    def _row(self) -> Row:
        job = self.job
        facts = {"settings": self.plan.facts(job), "machine": measure.machine()}
        return {"key": job.key, "entry": job.entry, "seed": job.seed, **facts}

    @property
    def _metric(self) -> Any:
        return self.parts.functions.get("metric_fn", accuracy)

    def _loaders(self, table: dict[str, Any]) -> tuple[Any, ...]:
        found = self.parts.loaders(table)
        if found[1] is None:
            raise DataError("there is no validation data: nothing can be compared", fix="return train, val")
        return found

    def _file(self, weights: str) -> Path:
        return Path(weights.replace("{seed}", str(self.job.seed)))

    def _load(self, file: Path) -> None:
        try:
            self.net.load_state_dict(load_tensors(file))
        except Exception as error:  # there are many ways for a file not to fit
            raise RunError(
                f"the teacher {file} cannot be loaded: {one_line(error)}", fix="name files of state dicts of the model"
            ) from error

    def _scores(self, net: nn.Module, loaders: tuple[Any, ...]) -> dict[str, float]:
        """In percent. What counts is the last: the test data, or the validation data where there is none."""
        found = [
            round(100 * evaluate(net, Batches(loader, name), self._metric, device_of(net)), 4)
            for loader, name in zip(loaders[1:], ("val", "test"), strict=False)
        ]
        return {"accuracy": found[-1], "val": found[0]}


def _keep(net: nn.Module, file: Path) -> None:
    """A tool's net, for ``--time``; one that cannot be pickled has the times that its row tells, and no others."""
    try:
        torch.save(net, file)
    except Exception:  # there are many ways not to be pickled, and the row is worth more
        file.unlink(missing_ok=True)
