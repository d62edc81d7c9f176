"""One phase of a run: a network, an optimizer, a loss, and a number of epochs. All of its state can be saved."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fxprune.errors import DataError, TrainingError
from fxprune.methods import Method
from fxprune.run.checkpoint import damaged, save, unfit
from fxprune.run.log import Log
from fxprune.train.data import Batch, Batches, explained
from fxprune.train.measure import evaluate
from fxprune.train.progress import Display
from fxprune.train.stop import Stop

ROWS = 10  # in the log, per epoch
SLOW = 0.1  # of the learning rate, at the end


@dataclass
class Phase:
    """What is trained, and how."""

    name: str
    net: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[nn.Module, Batch], torch.Tensor]
    epochs: int
    slow_epochs: int = 0  # after these, at a lower learning rate
    method: Method | None = None  # who decides what dies, while pruning
    cost: Callable[[], tuple[float, float] | tuple[None, None]] = lambda: (None, None)  # V and b

    @property
    def all_epochs(self) -> int:
        return self.epochs + self.slow_epochs

    def advance(self, progress: float) -> None:
        if self.method is not None:
            self.method.advance(progress)

    def set_rate(self, epoch: int) -> None:
        for group in self.optimizer.param_groups:
            first = group.setdefault("initial_lr", group["lr"])
            group["lr"] = first * (SLOW if epoch >= self.epochs else 1)


@dataclass
class Position:
    """How far a phase is: always between two steps."""

    epoch: int = 0
    batch: int = 0
    total: float = 0.0  # of the losses of this epoch
    samples: int = 0
    accuracy: float | None = None  # after the last epoch


@dataclass
class Trainer:
    """Runs phases; saves, logs and shows on the way."""

    train: Batches
    val: Batches | None
    metric: Any
    device: torch.device
    seed: int
    log: Log
    display: Display
    stop: Stop
    file: Path | None  # the checkpoint
    minutes: float
    facts: dict[str, Any]
    saved: dict[str, Any] | None = None  # where to go on
    kept: dict[str, Any] = field(default_factory=dict)  # what later phases need of earlier ones

    def __post_init__(self) -> None:
        self._current: tuple[Phase, Position] | None = None
        self._last_save = time.monotonic()
        self._last_step = "no checkpoint"
        self._begin = time.perf_counter()
        if self.saved is not None:
            self._begin -= self.saved["seconds"]
            self.kept = self.saved["kept"]
        self.log.keep(self.saved["rows"] if self.saved is not None else 0)

    def run(self, phase: Phase) -> float | None:
        """Train to the phase's end, from where the checkpoint left it; returns the last accuracy."""
        at = self._start(phase)
        self._current = phase, at
        while at.epoch < phase.all_epochs:
            self._epoch(phase, at)
            row = self._row(phase, at)
            at.epoch, at.batch, at.total, at.samples = at.epoch + 1, 0, 0.0, 0
            self.log.write(row)
            self.display.epoch(row)
            self._save(phase, at)
            self.breathe()
        self._current = None
        return at.accuracy

    def evaluate(self, net: nn.Module) -> float | None:
        return None if self.val is None else evaluate(net, self.val, self.metric, self.device, self.breathe)

    def breathe(self) -> None:
        """Stop here, if that was asked for."""
        if self.stop.asked is None:
            return
        if self.file is None:
            self.display.note("stopped; nothing is kept of a run without a folder: prune(..., run=folder)")
        else:
            if self._current is not None:
                self._save(*self._current)
            left = f"{self.file} is written" if self.file.exists() else "there is no checkpoint yet"
            self.display.note(f"stopped; {left}: start the same run again to go on")
        self.stop.raise_()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._begin

    # ------------------------------------------------------------ inside a phase

    def _start(self, phase: Phase) -> Position:
        saved, self.saved = self.saved, None
        if saved is not None:
            if saved["phase"] != phase.name:
                raise damaged(self.file, f"it is of phase {saved['phase']!r}, but what it keeps is of {phase.name!r}")
            try:
                phase.net.load_state_dict(saved["net"])
                phase.optimizer.load_state_dict(saved["optimizer"])
                if phase.method is not None:
                    phase.method.load_state_dict(saved["method"])
            except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise unfit(self.file, "the network or the optimizer", error) from error
        at = Position(**saved["at"]) if saved is not None else Position()
        steps, done = phase.all_epochs * len(self.train), at.epoch * len(self.train) + at.batch
        phase.advance(done / steps if steps else 1.0)
        self.display.phase(phase.name, phase.all_epochs, steps, done)
        self._last_step = f"step {done}"
        if saved is None:
            self._save(phase, at)
        return at

    def _epoch(self, phase: Phase, at: Position) -> None:
        phase.set_rate(at.epoch)
        phase.net.train()
        count = len(self.train)
        every = max(1, count // ROWS)
        batches = self.train.epoch(at.epoch, self.seed, phase.name, first=at.batch)
        while (batch := self._next(batches)) is not None:
            self._step(phase, at, batch.to(self.device))
            done = at.epoch * count + at.batch
            phase.advance(done / (phase.all_epochs * count))  # moves the gates: the state is whole after it
            self.display.step(at.epoch, done, at.total / at.samples)
            if at.batch % every == 0 and at.batch < count:
                row = self._row(phase, at, measured=False)
                self.log.write(row)
                self.display.row(row)
            if time.monotonic() - self._last_save >= 60 * self.minutes:
                self._save(phase, at)
            self.breathe()
        at.accuracy = self.evaluate(phase.net)

    def _next(self, batches: Iterator[tuple[int, Batch]]) -> Batch | None:
        try:
            found = next(batches, None)
        except DataError:
            self.breathe()  # a Ctrl-C may end the loader's workers, too
            raise
        return None if found is None else found[1]

    def _step(self, phase: Phase, at: Position, batch: Batch) -> None:
        with explained(f"batch {at.batch} of train", "the model, the teacher or the loss"):
            loss = phase.loss(phase.net, batch)
        penalty = None if phase.method is None else phase.method.penalty()
        whole = loss if penalty is None else loss + penalty
        if not math.isfinite(float(whole.detach())):
            raise self._no_number(phase, at, f"the loss is {float(whole.detach())}")
        phase.optimizer.zero_grad()
        whole.backward()
        phase.optimizer.step()
        at.batch += 1
        at.total += float(loss.detach()) * batch.size
        at.samples += batch.size

    def _no_number(self, phase: Phase, at: Position, what: str) -> TrainingError:
        step = at.epoch * len(self.train) + at.batch
        back = "there is no checkpoint: give a folder, prune(..., run=folder)"
        if self.file is not None:
            back = f"{self.file} holds the state of {self._last_step}"
        fix = "lower the learning rate, optimizer=lambda groups: torch.optim.Adam(groups, lr=1e-4), in a new folder"
        return TrainingError(
            f"{what} at step {step} of phase {phase.name!r} (epoch {at.epoch + 1}, batch {at.batch + 1}); {back}",
            fix=fix if step else "look at the inputs, the targets and the loss: nothing was trained yet",
        )

    def _row(self, phase: Phase, at: Position, measured: bool = True) -> dict[str, Any]:
        cost, budget = phase.cost()
        return {
            "phase": phase.name,
            "epoch": at.epoch + 1,
            "step": at.epoch * len(self.train) + at.batch,
            "loss": at.total / at.samples,
            "accuracy": at.accuracy if measured else None,
            "V": cost,
            "b": budget,
            "lr": float(phase.optimizer.param_groups[0]["lr"]),
            "seconds": round(self.seconds, 3),
        }

    def _save(self, phase: Phase, at: Position) -> None:
        self._last_save = time.monotonic()
        if self.file is None:
            return
        for name, parameter in phase.net.named_parameters():
            if not bool(torch.isfinite(parameter.detach()).all()):
                raise self._no_number(phase, at, f"{name} is not finite any more")
        self.log.sync()
        save(self.file, {
            "facts": self.facts, "phase": phase.name, "at": asdict(at), "net": phase.net.state_dict(),
            "optimizer": phase.optimizer.state_dict(), "kept": self.kept,
            "method": None if phase.method is None else phase.method.state_dict(),
            "rows": self.log.rows, "seconds": self.seconds,
        })  # fmt: skip
        self._last_step = f"step {at.epoch * len(self.train) + at.batch} of phase {phase.name!r}"
