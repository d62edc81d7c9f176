"""Two processes prune as one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("sklearn")
EXAMPLE = Path(__file__).parents[1] / "examples" / "ddp.py"


def run(out: Path, *launcher: str) -> tuple[str, Any]:
    command = [sys.executable, *launcher, str(EXAMPLE), "--double", "--epochs", "2", "--out", str(out)]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLE.parents[1])}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, torch.load(out)


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")
def test_two_ranks_give_what_one_process_gives(tmp_path: Path) -> None:
    _, alone = run(tmp_path / "alone.pt")
    told, together = run(tmp_path / "together.pt", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    assert "2 process(es)" in told
    assert alone["volume"] == together["volume"]
    torch.testing.assert_close(alone["gates"], together["gates"], rtol=0, atol=1e-8)
    for name, value in alone["slim"].items():
        torch.testing.assert_close(together["slim"][name], value, rtol=0, atol=1e-8)
