"""Processes that do one model after another and can be given up."""

from __future__ import annotations

import gc
import multiprocessing
import queue
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch

from zoo_check import Record, check, compare_torch_pruning
from zoo_models import Model

TASKS: dict[str, Callable[[Model], Record]] = {"check": check, "torch_pruning": compare_torch_pruning}


def _serve(pipe: Connection, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    while (task := pipe.recv()) is not None:
        name, entry = task
        pipe.send(TASKS[name](entry))
        gc.collect()


class Worker:
    """A process that does one task after another; one that takes too long is ended with it."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.process: Any = None

    def run(self, task: str, entry: Model, timeout: float) -> Record | str:
        """The task's answer, or why there is none."""
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=_serve, args=(theirs, self.threads), daemon=True)
            self.process.start()
            theirs.close()
            timeout += 60  # importing the zoos
        self.pipe.send((task, entry))
        try:
            if self.pipe.poll(timeout):
                answer: Record = self.pipe.recv()
                return answer
            reason = f"took more than {timeout:.0f} s"
        except EOFError:
            self.process.join(10)
            reason = f"the process died (exit code {self.process.exitcode})"
        self.process.kill()
        self.process.join()
        self.close()
        return reason

    def close(self) -> None:
        if self.process is not None:
            if self.process.is_alive():
                self.pipe.send(None)
                self.process.join(10)
            self.pipe.close()
            self.process = None


def run(models: list[Model], jobs: int, timeout: float, torch_pruning: bool) -> Iterator[Record]:
    """Records in the order in which they get ready."""
    todo: queue.SimpleQueue[Model] = queue.SimpleQueue()
    for entry in models:
        todo.put(entry)
    done: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
    threads = max((torch.get_num_threads() + jobs - 1) // jobs, 1)

    def work() -> None:
        worker = Worker(threads)
        try:
            one_after_another(worker)
        finally:
            worker.close()
            done.put(None)

    def one_after_another(worker: Worker) -> None:
        while True:
            try:
                entry = todo.get_nowait()
            except queue.Empty:
                return
            record = worker.run("check", entry, timeout)
            if isinstance(record, str):
                basics = {"suite": entry.suite, "family": entry.family, "name": entry.name, "input": entry.input}
                record = {**basics, "status": "gave up", "reason": record}
            if torch_pruning:
                answer = worker.run("torch_pruning", entry, timeout)
                record["torch_pruning"] = {"ok": False, "reason": answer} if isinstance(answer, str) else answer
            done.put(record)

    for _ in range(jobs):
        threading.Thread(target=work, daemon=True).start()
    running = jobs
    while running:
        record = done.get()
        if record is None:
            running -= 1
        else:
            yield record
