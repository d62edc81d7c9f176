"""Rows and table of the step times; what is there is not measured again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import step_time


def test_rows_and_table(tmp_path: Path) -> None:
    pytest.importorskip("torchvision.models")
    out = tmp_path / "rows"
    asked = f"--modes eager --nets resnet18 --sizes 32 --batch 4 --runs 2 --out {out}".split()
    step_time.main(asked)
    written = out.with_suffix(".jsonl").read_text()
    (row,) = map(json.loads, written.splitlines())
    assert row["ratio"] > 0 and row["of_sums"] > 0 and set(row["parts"]) == set(step_time.PARTS)
    assert "| resnet18 | 32 | eager |" in out.with_suffix(".md").read_text()
    step_time.main(asked)
    assert out.with_suffix(".jsonl").read_text() == written
