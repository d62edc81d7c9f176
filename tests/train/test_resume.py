"""Runs that are cut off and go on: bit for bit what they would have been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import fxprune
from fxprune.errors import OptionError, RunError, TrainingError
from fxprune.run.folder import Run
from tests.train.interrupted import Crash, assert_same, crash, crashing, weights
from tests.train.small_run import STEPS_PER_EPOCH, small_run

COMMAND = [sys.executable, str(Path(__file__).parent / "small_run.py")]


def rows(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in found]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> fxprune.Pruned:
    """Never interrupted; two workers."""
    return small_run(tmp_path_factory.mktemp("whole") / "run", workers=2)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> fxprune.Pruned:
    """Never interrupted; without workers the pictures are shifted in this process, between the steps."""
    return small_run(tmp_path_factory.mktemp("plain") / "run")


def test_mid_epoch_bit_for_bit(whole: fxprune.Pruned, tmp_path: Path) -> None:
    """Shuffling, random augmentation and two workers; a checkpoint after every step, which the next attempt repeats."""
    for step in (4, 29, 24):  # after 3, 31 (pruning) and 54 (fine-tuning) steps
        with pytest.raises(Crash):
            small_run(tmp_path / "run", workers=2, loss=crashing(step, crash), checkpoint_minutes=0)
    again = small_run(tmp_path / "run", workers=2)
    assert whole.run is not None
    assert_same(weights(whole.slim), weights(again.slim))
    assert rows(whole.run) == rows(tmp_path / "run")
    assert whole.report["accuracy"] == again.report["accuracy"]


def test_between_checkpoints_only_the_steps_since_are_lost(plain: fxprune.Pruned, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        small_run(tmp_path, loss=crashing(45, crash))  # in the middle of an epoch: its start is kept
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert (state["phase"], state["at"]["epoch"], state["at"]["batch"]) == ("prune", 1, 0)
    assert_same(weights(plain.slim), weights(small_run(tmp_path).slim))


def test_between_two_phases(plain: fxprune.Pruned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off after the gates were hardened, before and after the statistics were estimated again."""
    for place in ("fxprune.train.loop.reestimate", "fxprune.run.Run.write_hardened"):
        with monkeypatch.context() as patch, pytest.raises(Crash):
            patch.setattr(place, lambda *_: crash())
            small_run(tmp_path)
    assert Run(tmp_path).stage == "pruning"
    assert_same(weights(plain.slim), weights(small_run(tmp_path).slim))


def test_a_finished_run_is_not_trained_again(plain: fxprune.Pruned) -> None:
    again = small_run(plain.run, loss=crashing(1, crash))
    assert_same(weights(plain.slim), weights(again.slim))
    assert Run(plain.run).stage == "finished"  # type: ignore[arg-type]


def test_without_a_folder_the_result_is_the_same(plain: fxprune.Pruned) -> None:
    assert_same(weights(plain.slim), weights(small_run(None).slim))


def test_the_callers_random_numbers_are_untouched() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 1), torch.nn.Flatten(), torch.nn.Linear(4, 2))
    torch.manual_seed(5)
    fxprune.prune(
        net, [(torch.ones(2, 1, 1, 1), torch.tensor([0, 1]))], None, budget=1 / 2, epochs=(1, 0, 0), progress=False
    )
    assert torch.equal(torch.rand(3), expected)


def test_other_settings_are_refused(plain: fxprune.Pruned) -> None:
    with pytest.raises(RunError, match=r"other settings: epochs was \[2, 1, 1\] and is \[3, 1, 1\]"):
        small_run(plain.run, epochs=(3, 1, 1))
    with pytest.raises(RunError, match="optimizer was 'Adam"):
        small_run(plain.run, optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1))
    with pytest.raises(RunError, match="holds a run already"):
        small_run(plain.run, resume=False)


def test_a_run_whose_options_are_gone(tmp_path: Path) -> None:
    """It was begun when ``bar`` could close gates at once; what it made is still there."""
    quick: dict[str, Any] = {"epochs": (1, 0, 0), "teacher": None}
    small_run(tmp_path, **quick)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    state["facts"]["method_options"] = asked = {"closes": False, "slack": 1.02}
    torch.save(state, tmp_path / "checkpoint.pt")
    with pytest.raises(OptionError, match=r"'bar' has no closes, slack any more.*\n.*fix: leave it out of method_opt"):
        small_run(tmp_path, method_options=asked, **quick)
    with pytest.raises(RunError, match=r"method_options was \{'closes': False, 'slack': 1.02\} and is \{\}"):
        small_run(tmp_path, **quick)
    assert Run(tmp_path).stage == "finished" and Run(tmp_path).slim() is not None


def test_logs_of_another_program_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "events").touch()
    with pytest.raises(RunError, match="not an empty folder"):
        small_run(tmp_path)
    assert (tmp_path / "tensorboard" / "events").exists()


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(RunError, match="not an empty folder"):
        small_run(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_a_checkpoint_of_another_version(tmp_path: Path) -> None:
    quick: dict[str, Any] = {"epochs": (1, 0, 0), "teacher": None}
    with pytest.raises(Crash):
        small_run(tmp_path, loss=crashing_plain, **quick)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    del state["net"]["conv.weight"]
    torch.save(state, tmp_path / "checkpoint.pt")
    with pytest.raises(RunError, match=r"does not fit the network or the optimizer: Error\(s\) in loading"):
        small_run(tmp_path, **quick)


def crashing_plain(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    raise Crash


def test_cut_off_before_the_first_checkpoint(tmp_path: Path) -> None:
    def disturb(*_: Any) -> None:
        raise Crash

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        patch.setattr("fxprune.train.phase.save", disturb)
        small_run(tmp_path, epochs=(1, 0, 0), teacher=None)
    assert (tmp_path / "run.json").exists() and not (tmp_path / "checkpoint.pt").exists()
    assert small_run(tmp_path, epochs=(1, 0, 0), teacher=None).after is not None


# ------------------------------------------------------------ Ctrl-C, SIGTERM, SIGKILL


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_asked_to_stop(
    plain: fxprune.Pruned, tmp_path: Path, number: signal.Signals, raised: type[BaseException],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """In the middle of a step: the step is finished, everything is saved, the message says how to go on."""
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    ask = crashing(37, lambda: os.kill(os.getpid(), number))
    with pytest.raises(raised):
        small_run(tmp_path, loss=ask, progress=True)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert "start the same run again to go on" in capsys.readouterr().out
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert (state["phase"], state["at"]["epoch"], state["at"]["batch"]) == ("prune", 0, 37 - 3 * STEPS_PER_EPOCH)
    assert_same(weights(plain.slim), weights(small_run(tmp_path).slim))


def test_ctrl_c_while_the_validation_runs(plain: fxprune.Pruned, tmp_path: Path) -> None:
    calls = 0

    def metric(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return (output.argmax(1) == target).double()

    with pytest.raises(KeyboardInterrupt):
        small_run(tmp_path, metric_fn=metric)
    again = small_run(tmp_path, metric_fn=metric)
    assert_same(weights(plain.slim), weights(again.slim))
    assert plain.run is not None
    assert rows(plain.run) == rows(tmp_path)


def stopped(folder: Path, number: signal.Signals, group: bool) -> tuple[int, str]:
    """A real process, which gets a signal once it has saved something: what it returns and says."""
    file = folder / "checkpoint.pt"
    before = file.stat().st_mtime_ns if file.exists() else 0
    process = subprocess.Popen(
        [*COMMAND, str(folder), "2"], env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    patience = time.monotonic() + 60
    while time.monotonic() < patience and not (file.exists() and file.stat().st_mtime_ns > before):
        time.sleep(0.01)
    time.sleep(0.05)
    os.killpg(process.pid, number) if group else process.send_signal(number)
    said, _ = process.communicate()
    return process.returncode, said


def test_sigterm_to_all_processes_then_sigkill(whole: fxprune.Pruned, tmp_path: Path) -> None:
    """Loader workers that are ended beside it do not keep the process from finishing its step and saving."""
    code, said = stopped(tmp_path, signal.SIGTERM, group=True)
    assert code == 143 and "start the same run again to go on" in said
    code, said = stopped(tmp_path, signal.SIGKILL, group=False)
    assert code == -signal.SIGKILL and "going on with" in said
    assert_same(weights(whole.slim), weights(small_run(tmp_path, workers=2).slim))


# ------------------------------------------------------------ what goes wrong


def test_a_loss_that_is_no_number(tmp_path: Path) -> None:
    calls = 0

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return torch.nn.functional.cross_entropy(output, target) * (float("nan") if calls == 14 else 1)

    with pytest.raises(TrainingError, match=r"the loss is nan at step 13 .*\(epoch 2, batch 4\)") as said:
        small_run(tmp_path, teacher=None, loss=loss)
    assert "checkpoint.pt holds the state of step 10 of phase 'prune'" in str(said.value)


def test_weights_that_are_no_numbers_do_not_replace_a_checkpoint(tmp_path: Path) -> None:
    def explode(groups: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=1e38)

    with pytest.raises(TrainingError, match="phase 'prune'"):
        small_run(tmp_path, teacher=None, optimizer=explode, checkpoint_minutes=0)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert all(value.isfinite().all() for value in state["net"].values())
