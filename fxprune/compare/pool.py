"""Runs as processes, several at once; teachers before the runs that need them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import fxprune
from fxprune.compare.plan import TEACHER, Job
from fxprune.compare.results import Row
from fxprune.compare.worker import log_file, row_file
from fxprune.errors import RunError
from fxprune.files import told
from fxprune.train.stop import handling

_PATIENCE = 60  # seconds that a run has for its last checkpoint after Ctrl-C


@dataclass
class Outcome:
    """A run that ended: its row, or what went wrong."""

    job: Job
    row: Row | None
    error: str | None
    seconds: float


@dataclass
class Pool:
    """``command`` makes the command line of a run; ``look`` is called a few times per second."""

    folder: Path
    command: Callable[[Job], list[str]]
    jobs: int
    look: Callable[[], None] = lambda: None
    until: float = float("inf")  # time.monotonic() after which nothing is started
    running: dict[Job, tuple[subprocess.Popen[bytes], float]] = field(default_factory=dict)

    def run(self, left: list[Job], taught: set[int]) -> Generator[Outcome, None, None]:
        """Outcomes in the order in which runs end; ``taught`` are the seeds that have a teacher."""
        waiting = list(left)
        with handling({signal.SIGTERM: _end}):  # raises, so that the runs are stopped, too
            try:
                while True:
                    self._start(waiting, taught)
                    if not self.running:
                        return
                    for outcome in self._ended():
                        if outcome.job.entry == TEACHER and outcome.row is not None:
                            taught.add(outcome.job.seed)
                        yield outcome
                    self.look()
                    time.sleep(0.05)
            except BaseException as error:
                self._stop(signal.SIGTERM if isinstance(error, SystemExit) else signal.SIGINT)
                raise

    def _start(self, waiting: list[Job], taught: set[int]) -> None:
        while len(self.running) < self.jobs and time.monotonic() < self.until:
            ready = next((job for job in waiting if job.entry == TEACHER or job.seed in taught), None)
            if ready is None:
                return
            waiting.remove(ready)
            self.running[ready] = self._process(ready), time.monotonic()

    def _process(self, job: Job) -> subprocess.Popen[bytes]:
        log = log_file(self.folder, job)
        log.parent.mkdir(parents=True, exist_ok=True)
        row_file(self.folder, job).unlink(missing_ok=True)
        paths = [str(Path(fxprune.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        if self.jobs > 1:  # threads of several runs would only wait for each other
            environment |= {"OMP_NUM_THREADS": "1"}
        with log.open("wb") as out:
            # In a session of its own it gets Ctrl-C only once, from us. A second one would stop it before it has saved.
            return subprocess.Popen(
                self.command(job), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment,
                start_new_session=True,
            )  # fmt: skip

    def _ended(self) -> list[Outcome]:
        outcomes = []
        for job, (process, begin) in list(self.running.items()):
            code = process.poll()
            if code is None:
                continue
            del self.running[job]
            row: Row | None = None
            with contextlib.suppress(OSError, ValueError):
                row = json.loads(row_file(self.folder, job).read_text(encoding="utf-8")) if code == 0 else None
            error = None if row is not None else _last_words(log_file(self.folder, job), code)
            outcomes.append(Outcome(job, row, error, time.monotonic() - begin))
        return outcomes

    def _stop(self, number: int) -> None:
        """Let every run write a checkpoint; kill those that take too long."""
        processes = [process for process, _ in self.running.values()]
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)
        deadline = time.monotonic() + _PATIENCE
        try:
            for process in processes:
                process.wait(max(0.1, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C: at once
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()


def _last_words(log: Path, code: int) -> str:
    """The last error that a run printed; otherwise how it ended, and its last line."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    how = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"{how}: {lines[-1]}" if lines else how


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def die_with_parent() -> None:
    """For a run: save and stop when the comparison was killed. The next one must find the folder unused."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    if os.name == "posix":
        threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock the folder: two comparisons in it would train the same runs. The lock ends with the process, in any case."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with told("written", folder, RunError):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunError(f"another comparison runs in {folder}", fix="wait for it, or use another folder") from error
        yield


def python() -> list[str]:
    """The command line of fxprune, of this installation."""
    return [sys.executable, "-m", "fxprune"]
