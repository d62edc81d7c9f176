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
from fxprune.compare.rows import Row
from fxprune.compare.work import log_file, row_file
from fxprune.errors import RunError
from fxprune.files import told

_PATIENCE = 60  # seconds that a run has to save itself after Ctrl-C


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
        """Outcomes as they come; ``taught`` are the seeds whose teacher is there."""
        waiting = list(left)
        with _terminated():
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
            # A session of its own: Ctrl-C reaches it once, through us. A second one would stop it before it has saved.
            return subprocess.Popen(
                self.command(job), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment,
                start_new_session=True,
            )  # fmt: skip

    def _ended(self) -> list[Outcome]:
        found = []
        for job, (process, begin) in list(self.running.items()):
            code = process.poll()
            if code is None:
                continue
            del self.running[job]
            row = _row_of(row_file(self.folder, job)) if code == 0 else None
            error = None if row is not None else _last_words(log_file(self.folder, job), code)
            found.append(Outcome(job, row, error, time.monotonic() - begin))
        return found

    def _stop(self, number: int) -> None:
        """Let every run save itself; whoever does not listen is ended."""
        processes = [process for process, _ in self.running.values()]
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)
        deadline = time.monotonic() + _PATIENCE
        try:
            for process in processes:
                process.wait(max(0.1, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):  # asked again: at once
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()


def _row_of(file: Path) -> Row | None:
    try:
        row: Row = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return row


def _last_words(log: Path, code: int) -> str:
    """The error that a run told, or its last line, or how it ended."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if told:
        return told[-1]
    how = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"{how}: {lines[-1]}" if lines else how


@contextlib.contextmanager
def _terminated() -> Iterator[None]:
    """SIGTERM ends us by an exception, so that the runs are told, too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def die_with_parent() -> None:
    """In a run: when the comparison is killed, save and stop. Its successor must find nobody in the run's folder."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    if os.name == "posix":
        threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Two comparisons in one folder would train the same runs; the lock goes with the process, however it ends."""
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
