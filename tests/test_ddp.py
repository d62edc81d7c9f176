"""Two processes prune as one does."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("sklearn")
EXAMPLE = Path(__file__).parents[1] / "examples" / "ddp.py"


OPTIONS = ("--double", "--epochs", "2", "--out")


def alone(out: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """In this process."""
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *OPTIONS, str(out)])
    monkeypatch.delenv("RANK", raising=False)
    before = torch.get_default_dtype()
    try:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    finally:
        torch.set_default_dtype(before)
    return torch.load(out)


def together(out: Path) -> tuple[str, Any]:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLE.parents[1])}
    command = [sys.executable, *launcher, str(EXAMPLE), *OPTIONS, str(out)]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, torch.load(out)


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")
def test_two_ranks_give_what_one_process_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = alone(tmp_path / "alone.pt", monkeypatch)
    told, two = together(tmp_path / "together.pt")
    assert "2 process(es)" in told
    assert one["volume"] == two["volume"]
    torch.testing.assert_close(one["gates"], two["gates"], rtol=0, atol=1e-8)
    for name, value in one["slim"].items():
        torch.testing.assert_close(two["slim"][name], value, rtol=0, atol=1e-8)
