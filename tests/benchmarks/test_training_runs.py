"""Benchmarks that train go on where they were cut off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from training import accuracy, in_a_process, rows_of, run_missing, taught


def test_only_runs_without_a_row_are_run(tmp_path: Path) -> None:
    file, ran = tmp_path / "rows.jsonl", []

    def run(key: str) -> dict[str, Any]:
        if key == "c":
            raise RuntimeError("cut off")
        ran.append(key)
        return {"key": key}

    with pytest.raises(RuntimeError, match="cut off"):
        run_missing(file, ["a", "b", "c"], lambda row: row["key"], run, jobs=1)
    assert rows_of(file) == [{"key": "a"}, {"key": "b"}]
    run_missing(file, ["b", "d", "a"], lambda row: row["key"], run, jobs=1)
    assert ran == ["a", "b", "d"] and [row["key"] for row in rows_of(file)] == ran


def test_a_process_tells_its_last_line_or_what_went_wrong(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os, sys\nprint('begun')\nprint(json.dumps([os.environ['OMP_NUM_THREADS'], *sys.argv[1:]]))"
    )
    assert in_a_process(str(script), "--one", "a,b") == ["1", "--one", "a,b"]
    script.write_text("raise ValueError('no such setting')")
    with pytest.raises(RuntimeError, match=r"(?s)--one a: .*no such setting"):
        in_a_process(str(script), "--one", "a")


def test_a_teacher_is_trained_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    batches = [(x, (x[:, 0] > 0).long())] * 60
    net = taught(nn.Linear(4, 2), batches, (3, 1), tmp_path / "teacher.pt")
    assert accuracy(net, batches[:1]) > 80 and [path.name for path in tmp_path.iterdir()] == ["teacher.pt"]
    again = taught(nn.Linear(4, 2), [], (3, 1), tmp_path / "teacher.pt")
    assert json.dumps(again.weight.tolist()) == json.dumps(net.weight.tolist())  # type: ignore[operator, union-attr]
