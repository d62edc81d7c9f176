"""One run of a comparison, in a process of its own: a teacher, or a teacher pruned to a budget. Both can be resumed."""

from __future__ import annotations

import copy
import json
import math
import os
import platform
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
from fxprune.compare.plan import TEACHER, Entry, Job, Plan
from fxprune.compare.results import Row
from fxprune.cost.model import METRICS
from fxprune.count import batch_size, count
from fxprune.errors import DataError, RunError, TargetError, one_line
from fxprune.files import load_tensors, replacing, write_json
from fxprune.latency.cache import processor
from fxprune.latency.stopwatch import Inputs, device_of, in_turns, usual_ratio
from fxprune.run import checkpoint
from fxprune.run.folder import Run
from fxprune.run.layout import CHECKPOINT, FACTS, REPORT
from fxprune.slim.verify import noise
from fxprune.trace import example_arguments
from fxprune.train.data import Batches, example_of
from fxprune.train.loss import Teaching
from fxprune.train.measure import accuracy, evaluate
from fxprune.train.phase import Phase, training
from fxprune.train.reproduce import preserved, seed_all
from fxprune.train.search import searches
from fxprune.train.settings import MakeOptimizer, adam

RUNS, TEACHERS, NET = "runs", "teachers", "net.pt"
PAIRS, BATCHES = 30, (1, 32)  # of measured times: how many pairs, and at which batch sizes


@dataclass(frozen=True)
class Parts:
    """The objects that the config names."""

    network: Callable[[], nn.Module]
    loaders: Callable[[dict[str, Any]], tuple[Any, ...]]  # of a section [data]: train, val and maybe test
    optimizer: Callable[[dict[str, Any]], MakeOptimizer]
    tool: Callable[[str], Callable[..., Any]]
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)  # loss and metric_fn, if they are given


def one(plan: Plan, job: Job, parts: Parts) -> Row:
    """Do the run, or what is left of it. Returns its row."""
    worker = _Worker(plan, job, parts)
    return worker.teacher() if job.entry == TEACHER else worker.pruned(plan.entries[job.entry])


def timed_again(plan: Plan, job: Job, parts: Parts) -> Row:
    """Those entries of the row of a finished run that depend on the machine, measured again."""
    return _Worker(plan, job, parts).timed_again(plan.entries[job.entry])


def row_file(folder: Path, job: Job) -> Path:
    """Where a run leaves its row for the comparison to pick up."""
    return folder / RUNS / f"{job.name}.row.json"


def teacher_file(folder: Path, seed: int) -> Path:
    """The weights of a teacher that the comparison trained."""
    return folder / TEACHERS / f"{seed}.pt"


def clear(folder: Path, job: Job) -> None:
    """Delete what is large or no longer needed once the row is kept."""
    for file in (folder / RUNS / job.name / CHECKPOINT, row_file(folder, job), log_file(folder, job)):
        file.unlink(missing_ok=True)
    for file in searches(folder / RUNS / job.name).glob(f"*/{CHECKPOINT}"):
        file.unlink()


def log_file(folder: Path, job: Job) -> Path:
    """What a run printed; the file stays if the run fails."""
    return folder / RUNS / f"{job.name}.log"


class _Worker:
    def __init__(self, plan: Plan, job: Job, parts: Parts) -> None:
        self.plan, self.job, self.parts = plan, job, parts
        self.folder = plan.folder / RUNS / job.name
        seed_all(job.seed, "made")  # random weights are the same ones when a run goes on
        self.net = parts.network()

    # ------------------------------------------------------------ teachers

    def teacher(self) -> Row:
        train, val, *_ = self._loaders(self.plan.teacher_data)
        seconds = 0.0
        if "weights" in self.plan.teacher:
            self._load_teacher()
        else:
            seconds = self._train(Batches(train, "train"), Batches(val, "val"))
            file = teacher_file(self.plan.folder, self.job.seed)
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as opened:
                torch.save(self.net.cpu().state_dict(), opened)
        scores = self._scores(self.net, self._loaders(self.plan.data))
        return {**self._row(), **scores, "seconds": round(seconds, 1)}

    def _train(self, train: Batches, val: Batches) -> float:
        """Train on labels only, from the checkpoint if there is one. Returns the seconds it took."""
        epochs, slow = self.plan.teacher["epochs"]
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / CHECKPOINT
        facts = {"settings": json.dumps(self.plan.facts(self.job), sort_keys=True)}
        saved = checkpoint.load_run(file) if file.is_file() else None
        if saved is not None and saved["facts"] != facts:
            raise RunError(f"{self.folder} was started with other settings", fix="use another folder")
        self.net.to(self.plan.device)
        place, seed = device_of(self.net), self.job.seed
        with preserved(), training(train, val, self._metric, place, seed, Console()) as trainer:
            trainer.open(self.folder, facts, saved)
            optimizer = self._optimizer(self.plan.teacher.get("optimizer"))([{"params": list(self.net.parameters())}])
            loss = Teaching(self.parts.functions.get("loss"), None, 0.0, 1.0)
            trainer.run(Phase("teacher", self.net, optimizer, loss, epochs, slow))
            return trainer.seconds

    # ------------------------------------------------------------ pruned nets

    def pruned(self, entry: Entry) -> Row:
        start = self.net if entry.start == TEACHER else copy.deepcopy(self.net)  # its weights are still random
        self._load_teacher()
        loaders, example = self._loaders_and_example(entry)
        slim, report, seconds = (self._by_prune if entry.method else self._by_tool)(entry, start, loaders, example)
        full = self.net.eval()
        inputs = example_arguments(example)
        place = device_of(slim)
        scores = self._scores(slim, loaders)
        before, after = counted(full.cpu(), inputs), counted(slim.cpu(), inputs)
        kept, wide = widths(slim, inputs), widths(full, inputs)
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
        """Relative to the unpruned net. A budget of latency is about the batch size of the example."""
        if entry.counted:
            return {"latency": latency(slim, full, inputs)}
        batch = batch_size(*inputs)
        ratios = latency(slim, full, inputs, (batch,))
        return {"latency": ratios, "used": round(ratios.get(str(batch), math.inf) / self.job.share, 6)}

    def timed_again(self, entry: Entry) -> Row:
        """The times of a net that an earlier run pruned."""
        _, example = self._loaders_and_example(entry)
        full = self.net.to(self.plan.device)
        place = device_of(full)
        try:
            slim = (
                torch.load(self.folder / NET, map_location=place, weights_only=False)
                if entry.tool else Run(self.folder).slim().to(place)
            )  # fmt: skip
        except Exception as error:  # a pickle of the tool's own classes may raise anything
            raise RunError(f"its net cannot be read from {self.folder}: {one_line(error)}") from error
        return self._times(entry, slim, full, example_arguments(example)) | {"machine": machine()}

    def _by_prune(
        self, entry: Entry, start: nn.Module, loaders: tuple[Any, ...], example: Any
    ) -> tuple[nn.Module, Row, float]:
        if (self.folder / FACTS).exists() and not (self.folder / CHECKPOINT).exists():
            shutil.rmtree(self.folder)  # a finished run that lost its row: its checkpoint was deleted
            shutil.rmtree(searches(self.folder), ignore_errors=True)
        chosen = {**entry.settings, **self.parts.functions}
        if chosen["teacher"] == "none":
            chosen["teacher"] = None
        elif start is not self.net:
            chosen["teacher"] = self.net
        chosen["optimizer"] = self._optimizer(entry.optimizer)
        if entry.options:
            chosen["method_options"] = entry.options_at(self.job.budget)
        pruned = prune(
            start, loaders[0], loaders[1], budget=self.job.share, method=entry.what, seed=self.job.seed,
            run=self.folder, resume=True, example_inputs=example, **chosen,
        )  # fmt: skip
        return pruned.slim, pruned.report, float(pruned.report["seconds"])

    def _by_tool(
        self, entry: Entry, start: nn.Module, loaders: tuple[Any, ...], example: Any
    ) -> tuple[nn.Module, Row, float]:
        tool, chosen = self.parts.tool(entry.what), entry.settings
        teacher = copy.deepcopy(self.net).eval().requires_grad_(False) if entry.distilled else None
        seed_all(self.job.seed, "tool")
        begin = time.perf_counter()
        slim = tool(
            copy.deepcopy(start), loaders[0], loaders[1], budget=self.job.share, metric=entry.metric,
            epochs=tuple(chosen["epochs"]), teacher=teacher, alpha=chosen["alpha"], temperature=chosen["temperature"],
            optimizer=self._optimizer(entry.optimizer), seed=self.job.seed, example_inputs=example,
            **entry.options_at(self.job.budget),
        )  # fmt: skip
        if not isinstance(slim, nn.Module):
            raise TargetError(
                f"{entry.what} returned an object of type {type(slim).__name__}, not a net", fix="return the slim net"
            )
        return slim, {}, time.perf_counter() - begin

    # ------------------------------------------------------------ both

    def _row(self) -> Row:
        settings = self.plan.facts(self.job)
        return {
            "key": self.job.key, "entry": self.job.entry, "seed": self.job.seed, "settings": settings,
            "machine": machine(),
        }  # fmt: skip

    def _optimizer(self, table: dict[str, Any] | None) -> MakeOptimizer:
        return self.parts.optimizer(table) if table else adam

    @property
    def _metric(self) -> Any:
        return self.parts.functions.get("metric_fn", accuracy)

    def _loaders(self, table: dict[str, Any]) -> tuple[Any, ...]:
        loaders = self.parts.loaders(table)
        if loaders[1] is None:
            raise DataError("there is no validation data: nothing can be compared", fix="return train, val")
        return loaders

    def _loaders_and_example(self, entry: Entry) -> tuple[tuple[Any, ...], Any]:
        loaders = self._loaders(self.plan.data)
        return loaders, example_of(Batches(loaders[0], "train").first(), entry.batch_size)

    def _load_teacher(self) -> None:
        weights, seed = self.plan.teacher.get("weights"), self.job.seed
        file = teacher_file(self.plan.folder, seed) if weights is None else Path(weights.replace("{seed}", str(seed)))
        try:
            self.net.load_state_dict(load_tensors(file))
        except Exception as error:  # what a file that does not fit raises is not documented
            raise RunError(
                f"the teacher {file} cannot be loaded: {one_line(error)}", fix="name files of state dicts of the model"
            ) from error

    def _scores(self, net: nn.Module, loaders: tuple[Any, ...]) -> dict[str, float]:
        """In percent. The accuracy is measured on the test data, or on the validation data if there are none."""
        accuracies = [
            round(100 * evaluate(net, Batches(loader, name), self._metric, device_of(net)), 4)
            for loader, name in zip(loaders[1:], ("val", "test"), strict=False)
        ]
        return {"accuracy": accuracies[-1], "val": accuracies[0]}


def _keep(net: nn.Module, file: Path) -> None:
    """Keep a tool's net for ``--time``. One that cannot be pickled keeps the times of its first row."""
    try:
        torch.save(net, file)
    except Exception:  # pickling raises anything, and the row matters more than the net
        file.unlink(missing_ok=True)


# ---------------------------------------------------------------- measured alike for every method and tool


def machine() -> dict[str, Any]:
    """A description of this machine, without its name."""
    return {
        "cores": os.cpu_count(),
        "processor": processor(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def counted(net: nn.Module, inputs: Inputs) -> dict[str, int]:
    """The cost, counted while the net runs: what a method or a tool reports itself is not used."""
    total = count(net.eval(), *inputs)
    return {metric: int(getattr(total, metric)) for metric in METRICS}


def widths(net: nn.Module, inputs: Inputs) -> dict[str, int]:
    """Channels of each convolution that runs.

    >>> widths(nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 4, 1)), ((torch.zeros(1, 3, 2, 2),), {}))
    {'0': 8, '2': 4}
    """
    tensors = (*net.named_parameters(), *net.named_buffers())
    names = {id(tensor): name.removesuffix(".weight") for name, tensor in tensors}
    return {names[key]: calls[0].channels for key, calls in count(net.eval(), *inputs).layers.items()}


def latency(slim: nn.Module, full: nn.Module, inputs: Inputs, more: tuple[int, ...] = ()) -> dict[str, float]:
    """Batch size -> time of the slim net over that of the full one: the median over pairs that run in turns."""
    ratios = {}
    for size in sorted({*BATCHES, *more}):
        batch = noise(*inputs, size, device_of(slim), torch.float32)
        try:
            slim_times, full_times = in_turns([slim.eval(), full.eval()], batch, PAIRS)
        except (RuntimeError, TypeError, ValueError, AssertionError):  # it only takes the batch size of its example
            continue
        ratios[str(size)] = round(usual_ratio(slim_times, full_times), 4)
    return ratios
