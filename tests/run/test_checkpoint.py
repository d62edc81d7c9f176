from __future__ import annotations

import errno
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from fxprune.errors import RunError
from fxprune.run.checkpoint import load, save
from tests.train.small_run import small_run


def test_round_trip(tmp_path: Path) -> None:
    state = {"weights": torch.randn(3), "lr": 0.1, "names": ["a", None], "nested": {"betas": (0.9, 0.99), "on": True}}
    save(tmp_path / "checkpoint.pt", state)
    found = load(tmp_path / "checkpoint.pt")
    assert torch.equal(found.pop("weights"), state.pop("weights"))  # type: ignore[arg-type]
    assert found.pop("schema") == "fxprune.checkpoint/1"
    assert found == state
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_what_could_not_be_loaded_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pt"
    with pytest.raises(RunError, match=r"the checkpoint\['optimizer'\]\[0\] is of type pathlib"):
        save(file, {"optimizer": [Path("x")]})
    assert not file.exists()


def test_a_full_disk_leaves_the_old_one(tmp_path: Path) -> None:
    """Beyond this size the system refuses to write, as it does when there is no room."""
    file = tmp_path / "checkpoint.pt"
    save(file, {"step": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(RunError, match=r"checkpoint.pt cannot be written \(.+\); the one before is intact"):
            save(file, {"step": 2, "weights": torch.randn(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert load(file)["step"] == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_disk_that_is_full_for_everything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fxprune.run.log.Log.write", full)
    with pytest.raises(RunError, match=r"run cannot be written to \(No space left.*checkpoint in it is intact"):
        small_run(tmp_path / "run", teacher=None)
    assert load(tmp_path / "run" / "checkpoint.pt")["phase"] == "prune"


@pytest.mark.parametrize("damage", [b"", b"no checkpoint", None])
def test_a_damaged_file_is_said_to_be(tmp_path: Path, damage: bytes | None) -> None:
    file = tmp_path / "checkpoint.pt"
    save(file, {"weights": torch.randn(1000)})
    file.write_bytes(file.read_bytes()[:2000] if damage is None else damage)
    with pytest.raises(RunError, match="cannot be read"):
        load(file)
