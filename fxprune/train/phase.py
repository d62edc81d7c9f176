"""One phase of a run: a network, an optimizer, a loss, and a number of epochs. All of its state can be saved."""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from fxprune.errors import DataError, RunError, TrainingError
from fxprune.files import reason
from fxprune.methods import Method
from fxprune.run.checkpoint import damaged, save, unfit
from fxprune.run.layout import CHECKPOINT
from fxprune.run.log import Log
from fxprune.train.data import Batch, Batches, explained
from fxprune.train.measure import evaluate
from fxprune.train.progress import Display
from fxprune.train.stop import Stop

ROWS = 10  # of the log, per epoch
SLOW = 0.1  # times the learning rate, in the slow epochs


@dataclass
class Phase:
    """What is trained, and how."""

    name: str
    net: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[nn.Module, Batch], torch.Tensor]
    epochs: int
    slow_epochs: int = 0  # further epochs, at a lower learning rate
    method: Method | None = None  # decides what dies; only while pruning
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
    """How far a phase is, always between two steps."""

    epoch: int = 0
    batch: int = 0
    total: float = 0.0  # of the losses of this epoch
    samples: int = 0
    accuracy: float | None = None  # after the epoch


@contextmanager
def training(
    train: Batches, val: Batches | None, metric: Any, device: torch.device, seed: int, console: Console | None
) -> Iterator[Trainer]:
    """A trainer for a ``with`` block, in which Ctrl-C and SIGTERM save before they stop."""
    trainer = Trainer(train, val, metric, device, seed, Display(console), Stop())
    with trainer.stop.listens(), trainer.display:
        try:
            yield trainer
        except OSError as error:
            folder = trainer.log.folder
            if folder is None or not _is_of(error, folder):
                raise
            mend = "make room on the disk" if error.errno in _NO_ROOM else f"look at {error.filename}"
            raise RunError(
                f"{folder} cannot be written to ({reason(error)}); the checkpoint in it is intact",
                fix=f"{mend}, then start the same run again: it goes on from that checkpoint",
            ) from error
        finally:
            trainer.log.close()


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _is_of(error: OSError, folder: Path) -> bool:
    """Whether the error is about the disk or the run's folder, and not about a file of the user's code."""
    file = error.filename if isinstance(error.filename, str) else ""
    return error.errno in _NO_ROOM or os.path.realpath(file).startswith(os.path.realpath(folder) + os.sep)


class Trainer:
    """Runs phases; saves, logs and shows on the way."""

    def __init__(
        self, train: Batches, val: Batches | None, metric: Any, device: torch.device, seed: int, display: Display,
        stop: Stop,
    ) -> None:  # fmt: skip
        self.train, self.val, self.metric, self.device, self.seed = train, val, metric, device, seed
        self.display, self.stop = display, stop
        self._current: tuple[Phase, Position] | None = None
        self._last_save, self._last_step = time.monotonic(), "no checkpoint"
        self.open(None, {})

    def open(
        self, folder: Path | None, facts: dict[str, Any], saved: dict[str, Any] | None = None, minutes: float = 5
    ) -> None:
        """Write the log and, every so many ``minutes``, a checkpoint into ``folder``; go on from what was ``saved``."""
        self.file = None if folder is None else folder / CHECKPOINT
        self.facts, self.minutes, self._saved = facts, minutes, saved
        self.kept: dict[str, Any] = saved["kept"] if saved else {}  # results of earlier phases for later ones
        self._begin = time.perf_counter() - (saved["seconds"] if saved else 0)
        self.log = Log(folder)
        self.log.keep(saved["rows"] if saved else 0)

    def run(self, phase: Phase) -> float | None:
        """Train to the end of the phase, from the checkpoint if it is of this phase. Returns the last accuracy."""
        at = self._start(phase)
        self._current = phase, at
        while at.epoch < phase.all_epochs:
            self._epoch(phase, at)
            row = self._row(phase, at)
            at.epoch, at.batch, at.total, at.samples = at.epoch + 1, 0, 0.0, 0
            self.log.write(row)
            self.display.epoch(row)
            self._save(phase, at)
            self.stop_if_asked()
        self._current = None
        return at.accuracy

    def evaluate(self, net: nn.Module) -> float | None:
        return None if self.val is None else evaluate(net, self.val, self.metric, self.device, self.stop_if_asked)

    def stop_if_asked(self) -> None:
        """Write a checkpoint, then stop, if a signal has asked for that."""
        if self.stop.asked is None:
            return
        said = "stopped; nothing is kept of a run without a folder: prune(..., run=folder)"
        if self.file is not None:
            if self._current is not None:
                self._save(*self._current)
            left = f"{self.file} is written" if self.file.exists() else "there is no checkpoint yet"
            said = f"stopped; {left}: start the same run again to go on"
        self.display.note(said)
        self.stop.raise_()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._begin

    # ------------------------------------------------------------ inside a phase

    def _done(self, at: Position) -> int:
        """How many steps of the phase are done."""
        return at.epoch * len(self.train) + at.batch

    def _start(self, phase: Phase) -> Position:
        saved, self._saved = self._saved, None
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
        at = Position(**(saved["at"] if saved else {}))
        steps, done = phase.all_epochs * len(self.train), self._done(at)
        phase.advance(done / steps if steps else 1.0)
        self.display.phase(phase.name, phase.all_epochs, steps, done)
        self._last_step = f"step {done}"
        if saved is None:
            self._save(phase, at)
        return at

    def _epoch(self, phase: Phase, at: Position) -> None:
        at.accuracy = None
        phase.set_rate(at.epoch)
        phase.net.train()
        count = len(self.train)
        every = max(1, count // ROWS)
        batches = self.train.epoch(at.epoch, self.seed, phase.name, first=at.batch)
        while (batch := self._next(batches)) is not None:
            self._step(phase, at, batch.to(self.device))
            phase.advance(self._done(at) / (phase.all_epochs * count))  # moves the gates: completes the step
            self.display.step(at.epoch, self._done(at), at.total / at.samples)
            if at.batch % every == 0 and at.batch < count:
                row = self._row(phase, at)
                self.log.write(row)
                self.display.row(row)
            if time.monotonic() - self._last_save >= 60 * self.minutes:
                self._save(phase, at)
            self.stop_if_asked()
        at.accuracy = self.evaluate(phase.net)

    def _next(self, batches: Iterator[tuple[int, Batch]]) -> Batch | None:
        try:
            _, batch = next(batches, (None, None))
        except DataError:
            self.stop_if_asked()  # Ctrl-C may have ended the workers of the loader
            raise
        return batch

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
        step = self._done(at)
        back = "there is no checkpoint: give a folder, prune(..., run=folder)"
        if self.file is not None:
            back = f"{self.file} holds the state of {self._last_step}"
        return TrainingError(
            f"{what} at step {step} of phase {phase.name!r} (epoch {at.epoch + 1}, batch {at.batch + 1}); {back}",
            fix="lower the learning rate, optimizer=lambda groups: torch.optim.Adam(groups, lr=1e-4), in a new folder"
            if step else "look at the inputs, the targets and the loss: nothing was trained yet",
        )  # fmt: skip

    def _row(self, phase: Phase, at: Position) -> dict[str, Any]:
        cost, budget = phase.cost()
        return {
            "phase": phase.name,
            "epoch": at.epoch + 1,
            "step": self._done(at),
            "loss": at.total / at.samples,
            "accuracy": at.accuracy,
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
        self._last_step = f"step {self._done(at)} of phase {phase.name!r}"
