from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fxprune.run.checkpoint import load_run
from tests.robustness.runs import pruned


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``finished``, and ``cut``: a run that was stopped while it was fine-tuned."""
    from fxprune.train import phase

    root = tmp_path_factory.mktemp("runs")
    pruned(root / "finished")
    step, steps = phase.Trainer._step, iter(range(100))

    def interrupted(*args: Any) -> None:
        if next(steps) == 8:  # three of the teacher, three of pruning, two of fine-tuning
            raise KeyboardInterrupt
        step(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phase.Trainer, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pruned(root / "cut", checkpoint_minutes=0)
    assert load_run(root / "cut" / "checkpoint.pt")["at"]["batch"] == 2
    return root


@pytest.fixture
def folder(runs: Path, tmp_path: Path) -> Path:
    shutil.copytree(runs / "cut", tmp_path / "run", symlinks=True)
    return tmp_path / "run"
