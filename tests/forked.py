"""Commands in processes of their own that need not import torch first: forked from one that has.

A pool that starts many short runs spends most of its time there. ``Forked`` stands in for ``subprocess.Popen``.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from typing import IO, Any

from tests.command_line import ROOT


@cache
def _context() -> ForkServerContext:
    """With a server that has imported the package of this checkout, wherever the test is at the moment."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fxprune.cli"])
    folder, path = os.getcwd(), os.environ.get("PYTHONPATH")
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = str(ROOT)
    try:
        forkserver.ensure_running()
    finally:
        os.chdir(folder)
        os.environ.pop("PYTHONPATH") if path is None else os.environ.update(PYTHONPATH=path)
    return context


class Forked:
    """``python -m fxprune ...``, as far as a pool sees it."""

    def __init__(self, command: list[str], *, stdout: IO[bytes], env: dict[str, str], **_: Any) -> None:
        assert command[:3] == [sys.executable, "-m", "fxprune"]
        given = (command[3:], os.getcwd(), env, os.path.abspath(stdout.name))
        self.process = _context().Process(target=_run, args=given)
        self.process.start()

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("fxprune", timeout or 0)
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()


def _run(arguments: list[str], folder: str, environment: dict[str, str], log: str) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    written = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(written, stream)
    sys.path.insert(0, folder)
    sys.argv = ["fxprune", *arguments]
    from fxprune.cli import main

    sys.exit(main(arguments))
