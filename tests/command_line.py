"""The command line as tests use it: as a function, or in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

ROOT = Path(__file__).parents[1]
NETS = "tests/report/nets.py"
RESNET8 = ("inspect", "examples/models.py:resnet8", "--input", "1x3x32x32")
Shell = Callable[..., tuple[int, str, str]]  # exit code, stdout, stderr; the fixture ``shell``

PRUNE_CONFIG = """
[model]
target = "code.py:net"
[data]
target = "code.py:batches"
[prune]
budget = "1/2"
epochs = [2, 1, 1]
teacher = "none"
[run]
folder = "run"
"""


def in_a_process(*arguments: str, stdout: Any = subprocess.PIPE, **environment: str) -> CompletedProcess[str]:
    command = [sys.executable, "-m", "fxprune", *arguments]
    given = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, encoding="utf-8", env=given)
