"""Rows and table of the comparison without training, on a net that was not trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fxprune
import one_shot
from tests.exactness import TOLERANCE

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
    monkeypatch.setattr(one_shot, "LABELLED", {"taylor": (10, 8)})
    torch.manual_seed(0)
    net, rows = one_shot.NETS["mobilenet"]().eval(), one_shot.Rows()
    options: Any = {"seeds": (0,), "budgets": (1 / 2,), "tests": 250}
    one_shot.run("mobilenet", net, 3, data, rows, ways=ways, samples=32, **options)
    assert [row["way"] for row in rows] == list(ways) and all(0.3 < row["flops"] <= 0.5 for row in rows)
    assert one_shot.Rows() == rows
    one_shot.run("mobilenet", net, 3, data, rows, ways=ways, samples=32, **options)
    assert len(rows) == 3  # they are there
    one_shot.run("mobilenet", net, 3, data, rows, ways=ways[:1], samples=16, given="noise", **options)
    text = one_shot.table(rows)
    assert "mobilenet" in text and text.count("\n| Torch-Pruning") == 2
    assert "| 16 of noise" in "\n".join(one_shot.samples_table(rows))


@pytest.mark.parametrize("name", one_shot.NETS)
@pytest.mark.filterwarnings("ignore:.* calibration samples are few")
def test_every_net_can_be_cut(name: str) -> None:
    torch.manual_seed(0)
    slim = fxprune.cut(one_shot.NETS[name]().eval(), torch.randn(16, 3, 32, 32), 1 / 2, metric="flops", progress=False)
    assert slim.report.error <= TOLERANCE
    assert all(why == "nothing of it is left" for why in slim.report.left.values())
