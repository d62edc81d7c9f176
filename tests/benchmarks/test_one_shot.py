"""Rows and table of the comparison without training, on a net that was not trained."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import one_shot

pytest.importorskip("torch_pruning")


@pytest.fixture
def data(tmp_path: Path) -> str:
    random = np.random.default_rng(0)
    parts = {"train": 40, "test": 250}
    arrays = {f"{name}_x": random.integers(0, 256, (size, 3, 32, 32), dtype=np.uint8) for name, size in parts.items()}
    arrays |= {f"{name}_y": random.integers(0, 10, size) for name, size in parts.items()}
    np.savez(tmp_path / "data.npz", **arrays)
    return str(tmp_path / "data.npz")


def test_rows_and_table(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_shot, "RESULTS", tmp_path / "rows.jsonl")
    monkeypatch.setattr(one_shot, "SAMPLES", 32)
    monkeypatch.setattr(one_shot, "BUDGETS", (1 / 2,))
    ways = ("cut, magnitude", "Torch-Pruning, magnitude, local", "Torch-Pruning, taylor, global")
    monkeypatch.setattr(one_shot, "WAYS", {way: one_shot.WAYS[way] for way in ways})
    torch.manual_seed(0)
    rows: list[one_shot.Row] = []
    one_shot.run(one_shot.the_net().eval(), 3, data, rows, (0,), 250)
    assert [row["way"] for row in rows] == list(ways) and all(0.3 < row["flops"] <= 0.5 for row in rows)
    kept = [json.loads(line) for line in one_shot.RESULTS.read_text().splitlines()]
    assert kept == rows
    one_shot.run(one_shot.the_net().eval(), 3, data, kept, (0,), 250)
    assert kept == rows  # they are there
    text = one_shot.table(rows)
    assert "stopped while its rate was still high" in text and text.count("\n| Torch-Pruning") == 2
