"""``fxprune demo``, in a small setting."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import fxprune
from fxprune.cli import main
from fxprune.commands import demo
from fxprune.demo import DigitNet, Digits, digits, loaders
from fxprune.errors import DataError

pytest.importorskip("sklearn")
QUICK = ("--epochs", "1", "1", "0")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DigitNet", lambda: DigitNet(width=4))
    monkeypatch.setattr(demo, "loaders", lambda: loaders(most=200))


def test_digits_are_read_and_split() -> None:
    (x, y), (held_x, held_y) = digits()
    assert x.shape == (1437, 1, 16, 16) and held_x.shape == (360, 1, 16, 16)
    assert float(x.min()) == -1 and float(x.max()) <= 1
    assert set(y.tolist()) == set(held_y.tolist()) == set(range(10))


def test_training_pictures_move_and_test_pictures_do_not() -> None:
    train, test = loaders()
    first, again = (train.dataset[0][0] for _ in range(2))  # the seed of the tests gives two different shifts
    assert not torch.equal(first, again) and torch.equal(first.sort().values.sum(), again.sum())
    assert torch.equal(test.dataset[0][0], test.dataset[0][0])


def test_missing_scikit_learn_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match="pip install scikit-learn"):
        digits()


def test_demo_prints_a_table_and_says_where_things_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "installed", lambda *names: False)
    assert main(["demo", *QUICK]) == 0
    said = capsys.readouterr().out
    told = ("accuracy", "1/8.", "cut", "without labels, without training", "FLOPs", "parameters", "bytes")
    for text in (*told, "32 pictures", "pip install onnx"):
        assert text in said
    assert said.rindex("What next") > said.rindex("time for") and said.count("\n  fxprune ") == 4
    for net in ("slim", "cut"):
        assert fxprune.load(f"fxprune-demo/{net}")(torch.zeros(1, 1, 16, 16)).shape == (1, 10)
    before = Path("fxprune-demo/log.csv").read_text()
    assert main(["demo", *QUICK]) == 0  # it was finished: nothing is trained again
    assert Path("fxprune-demo/log.csv").read_text() == before
    assert main(["demo", *QUICK, "--budget", "1/4"]) == 2
    assert "another folder" in capsys.readouterr().err


def test_demo_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript")
    out = tmp_path / "demo"
    assert main(["demo", *QUICK, "--budget", "1/2", "--seed", "3", "--out", str(out), "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (said["budget"], said["seed"], said["epochs"]) == (0.5, 3, [1, 1, 0])
    for key in ("volume", "flops", "params", "bytes"):
        full, slim = said[key]
        assert slim < full
    assert said["volume"][1] <= said["volume"][0] / 2
    assert said["bytes"][1] == (out / "slim" / "weights.pt").stat().st_size
    assert {size: len(times) for size, times in said["milliseconds"].items()} == {"1": 2, "32": 2}
    assert said["error"] < 1e-9
    cut = said["cut"]
    assert cut["volume"] <= said["volume"][0] / 2 and cut["bytes"] == (out / "cut" / "weights.pt").stat().st_size
    assert 0 <= cut["accuracy"] <= 1 and set(cut["milliseconds"]) == {"1", "32"} and cut["samples"] == 128
    assert said["files"]["onnx"] == str(out / "slim.onnx")
    assert main(["check", str(out / "slim.onnx"), "--against", str(out)]) == 0


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_demo_goes_on_after_ctrl_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = loaders(most=200)
    fetched = []

    class Interrupted(Digits):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            fetched.append(index)
            if len(fetched) == 200:  # in the second epoch
                os.kill(os.getpid(), signal.SIGINT)
            return super().__getitem__(index)

    train = DataLoader(Interrupted(*digits(most=200)[0]), 64, shuffle=True, drop_last=True)
    monkeypatch.setattr(demo, "loaders", lambda: (train, test))
    command = ["demo", "--epochs", "2", "0", "0", "--out", str(tmp_path / "demo"), "--json"]
    assert main(command) == 130
    assert "start the same run again" in capsys.readouterr().err
    assert main(command) == 0
    said = capsys.readouterr()
    assert "going on with" in said.err and "teacher     1/2" not in said.err
    assert json.loads(said.out)["accuracy"][1] is not None
