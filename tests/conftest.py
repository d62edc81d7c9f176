from __future__ import annotations

import os
import sys

# oneDNN of torch 2.13 dies of an illegal instruction in bfloat16 (a plain transposed convolution) on virtual machines
# that report AMX and lack a part of it. To be set before torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from fxprune.cli import main
from fxprune.latency.stopwatch import in_turns
from tests.command_line import ROOT, Shell
from torchvision_ops import declare_torchvision_ops

declare_torchvision_ops()
torch.set_num_threads(1)  # nets this small only get slower with more, and much slower beside another process
os.environ["OMP_NUM_THREADS"] = "1"  # of the commands that tests start


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--overwrite", action="store_true", help="write what is printed now into tests/golden")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def timed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of their own for all nets that are timed takes seconds each; tests/latency has some in such a one."""
    monkeypatch.setattr("fxprune.latency.budget.own_process", lambda: nullcontext(in_turns))


@pytest.fixture
def in_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user in the checkout, at 80 columns."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    """The command line as a function."""

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a file of tests/golden; ``pytest --overwrite`` writes the file instead."""

    def check(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--overwrite"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"if this is meant, run pytest --overwrite and look at {name}"

    return check


# No tests: pytest, looking for examples in docstrings, would import them under other names and register all nets twice.
collect_ignore_glob = ["models/*", "programs/*"]
