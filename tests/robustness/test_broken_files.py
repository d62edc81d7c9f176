"""Files that are cut, flipped, swapped, emptied or forged: told in a sentence, never a traceback or another net."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

import fxprune
from fxprune.cli import main
from fxprune.compare.plan import Entry, Job, Plan
from fxprune.compare.results import read_failed, read_rows, rows_of_plan, write_rows
from fxprune.errors import FxPruneError, RunError
from fxprune.run.folder import Run
from tests.robustness.runs import X, as_folder, as_loop, net, pruned, told

quick = settings(
    max_examples=40, deadline=None, database=None, print_blob=False, suppress_health_check=list(HealthCheck)
)


# ------------------------------------------------------------ at random


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Cut off, a bit flipped, a hole of zeros, a piece twice, or a byte too much."""
    kind, where = draw(st.sampled_from(["cut", "flip", "flip", "hole", "twice", "more"])), draw(st.floats(0, 0.9999))
    bit, size = draw(st.integers(0, 7)), draw(st.integers(1, 64))

    def damage(data: bytes) -> bytes:
        at, made = int(where * len(data)), bytearray(data)
        if kind == "cut":
            return data[:at]
        if kind == "flip":
            made[at] ^= 1 << bit
        if kind == "hole":
            made[at : at + size] = bytes(len(made[at : at + size]))
        if kind == "twice":
            made[at:at] = made[at : at + size]
        if kind == "more":
            made[at:at] = bytes([size + 60])
        return bytes(made)

    return damage


def random_damage(file: Path, read: Callable[[], torch.Tensor], start: int, examples: int = 30) -> None:
    """Whatever happens to the file, reading it says so, or makes no difference."""
    good, expected = file.read_bytes(), read()

    @seed(start)
    @settings(quick, max_examples=examples)
    @given(damages())
    def check(damage: Callable[[bytes], bytes]) -> None:
        file.write_bytes(damage(good))
        try:
            found = read()
        except FxPruneError as error:
            assert error.cause and error.fix
        else:
            assert torch.equal(found, expected)

    check()
    file.write_bytes(good)


@pytest.mark.parametrize("name", ["model.py", "weights.pt"])
def test_a_saved_net(runs: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(runs / "finished" / "slim", tmp_path / "slim")

    def read() -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = fxprune.load(tmp_path / "slim")(X)
        return found

    random_damage(tmp_path / "slim" / name, read, start=1)


def test_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    """Either the run goes on to the same bits, or it says that it cannot. Most is seen when the file is read."""
    whole = pruned(folder.with_name("whole"))

    def read() -> torch.Tensor:
        shutil.rmtree(tmp_path / "again", ignore_errors=True)
        shutil.copytree(folder, tmp_path / "again")
        assert torch.equal(pruned(tmp_path / "again"), whole)
        return whole

    random_damage(folder / "checkpoint.pt", read, start=2, examples=12)


def test_the_facts_of_a_run(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "finished", tmp_path / "run")

    def read() -> torch.Tensor:
        run = Run(tmp_path / "run")
        run.example()
        with torch.no_grad():
            found: torch.Tensor = run.slim()(X)
        return found

    random_damage(tmp_path / "run" / "run.json", read, start=3)


def test_a_teacher_in_a_file(tmp_path: Path) -> None:
    data, teacher = TensorDataset(X, torch.tensor([0, 1])), net()

    def read() -> torch.Tensor:
        return fxprune.CachedTeacher(teacher, data, tmp_path / "logits.pt")(torch.arange(2)).clone()

    read()
    random_damage(tmp_path / "logits.pt", read, start=4)


# ------------------------------------------------------------ on purpose


def forged(**changes: Any) -> Callable[[Path], None]:
    """A checkpoint with other entries; ``...`` takes one out."""

    def change(file: Path) -> None:
        state = {**torch.load(file, weights_only=True), **changes}
        torch.save({name: value for name, value in state.items() if value is not ...}, file)

    return change


# file of a run that is gone on with, what happens to it, what is said
RESUMED: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "an empty checkpoint": ("checkpoint.pt", lambda file: file.write_bytes(b""), "checkpoint.pt cannot be read"),
    "a checkpoint that is text": ("checkpoint.pt", lambda file: file.write_text("{}"), "checkpoint.pt cannot be read"),
    "a folder as checkpoint": ("checkpoint.pt", as_folder, "is not an empty folder"),
    "a loop as checkpoint": ("checkpoint.pt", as_loop, "is not an empty folder"),
    "no checkpoint": ("checkpoint.pt", Path.unlink, "is not an empty folder"),
    "weights as checkpoint": ("checkpoint.pt", lambda file: torch.save(net().state_dict(), file), "not of the form"),
    "a list as checkpoint": ("checkpoint.pt", lambda file: torch.save([1, 2], file), "not of the form"),
    "no facts": ("checkpoint.pt", forged(facts=...), "facts is missing"),
    "a position of text": ("checkpoint.pt", forged(at="end"), "at is of type str"),
    "no position": ("checkpoint.pt", forged(at={}), "epoch is missing"),
    "rows that are none": ("checkpoint.pt", forged(rows="many"), "rows is of type str"),
    "nothing kept": ("checkpoint.pt", forged(kept={}), "of phase 'fine-tune', but what it keeps is of 'teacher'"),
    "accuracies of text": ("checkpoint.pt", forged(kept={"accuracy": {"before": "x"}}), "accuracy.before is of type"),
    "another phase": ("checkpoint.pt", forged(phase="teacher"), "of phase 'teacher', but what it keeps is of"),
    "a net of nothing": ("checkpoint.pt", forged(net={}), "does not fit the network or the optimizer"),
    "an optimizer of nothing": ("checkpoint.pt", forged(optimizer={}), "does not fit the network or the optimizer"),
    "a damaged log": ("log.jsonl", lambda file: file.write_bytes(b"\xff\n" * 9), "log.jsonl is damaged: line 1"),
    "a log of lists": ("log.jsonl", lambda file: file.write_text("[1]\n" * 40), "line 1: it is not a row of this log"),
    "a folder as log": ("log.jsonl", as_folder, "cannot be written to (Is a directory)"),
    "a folder as table": ("log.csv", as_folder, "is not a regular file"),
    "no facts of the run": ("run.json", Path.unlink, "has no run.json"),
    "a folder as facts": ("run.json", as_folder, "has no run.json"),
    "facts of nothing": ("run.json", lambda file: file.write_text("{}"), "was not written by fxprune"),
}


@pytest.mark.parametrize("case", RESUMED)
def test_a_run_that_goes_on(folder: Path, case: str) -> None:
    name, happens, said = RESUMED[case]
    happens(folder / name)
    told(lambda: pruned(folder), said)


def test_a_log_that_is_gone_is_no_harm(folder: Path, tmp_path: Path) -> None:
    whole = pruned(tmp_path / "whole")
    for name in ("log.jsonl", "log.csv"):
        (folder / name).unlink()
    assert torch.equal(pruned(folder), whole)


# part of a run's facts, what it says, what is told
FACTS: dict[str, tuple[dict[str, Any], str]] = {
    "a version of many digits": ({"schema": "fxprune.run/" + "9" * 5000}, "not written by fxprune"),
    "a size of many digits": ({"args": {"tuple": [{"shape": [10**30], "dtype": "float32"}]}}, "damaged"),
    "more integers than fit": ({"args": {"tuple": [{"shape": [10**9] * 3, "dtype": "int64"}]}}, "damaged"),
    "a type that is a function": ({"args": {"tuple": [{"shape": [1], "dtype": "load"}]}}, "describes no example"),
    "a negative cost": ({"cost": dict.fromkeys(["volume", "flops", "params"], -1)}, "damaged"),
    "a budget of text": ({"budget": {"volume": "../.."}}, "damaged"),
    "a budget that takes ages": ({"budget": {"volume": "1e-999999999"}}, "damaged"),
    "a budget of huge numbers": ({"budget": {"volume": 10**400}}, "damaged"),
    "a stage elsewhere": ({"stage": "../../finished"}, "damaged"),
    "inputs of inputs": ({"args": {"tuple": [[]]}}, "own shapes"),
}  # fmt: skip


@pytest.mark.parametrize("case", FACTS)
def test_forged_facts(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    changes, said = FACTS[case]
    shutil.copytree(runs / "finished", tmp_path / "run")
    file = tmp_path / "run" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    code = main(["check", str(tmp_path / "run" / "slim"), "--against", str(tmp_path / "run"), "--json"])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and said in err and "\n  fix: " in err


def test_facts_that_are_nested_deeply(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "finished", tmp_path / "run")
    file = tmp_path / "run" / "run.json"
    text = json.dumps({**json.loads(file.read_text()), "args": 12321})
    for depth in (300, 600, 900, 1200, 100_000):  # where it gets too much depends on who called
        file.write_text(text.replace("12321", '{"tuple": [' * depth + "]}" * depth))
        with contextlib.suppress(RunError):
            Run(tmp_path / "run")
    told(lambda: Run(tmp_path / "run"), "is damaged")


# ------------------------------------------------------------ rows of a comparison

SETTINGS = {"metric": "volume", "teacher": "self", "epochs": [1, 1, 0]}
# what is in a row of rows.jsonl, and what is said
ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "no accuracy": ({"accuracy": ...}, "accuracy is missing"),
    "an accuracy of text": ({"accuracy": "good"}, "accuracy is of type str"),
    "settings of a list": ({"settings": [1]}, "settings is of type list"),
    "a cost of text": ({"cost": {"volume": "2"}}, "cost.volume is of type str"),
    "widths of nothing": ({"widths": None}, "widths is of type NoneType"),
    "another seed": ({"seed": 7}, "those of another run"),
    "another share": ({"share": 0.25}, "those of another run"),
}


def plan_of(folder: Path) -> tuple[Plan, Job, dict[str, Any]]:
    """A comparison with one run, and its row."""
    entry = Entry("bar", "bar", None, {"1/2": 0.5}, SETTINGS, {})
    plan = Plan({"bar": entry}, (0,), "bar", {"target": "m:m"}, {"target": "d:d"}, {"epochs": [1, 1]}, folder)
    job = plan.jobs()[-1]
    costs: dict[str, Any] = {"cost": {"volume": 2}, "full": {"volume": 4}, "factor": {"volume": 2.0}, "latency": {}}
    row = {"key": job.key, "entry": "bar", "seed": 0, "accuracy": 70.0, "settings": plan.facts(job), "share": 0.5}
    return plan, job, {**row, "used": 1.0, "widths": {"conv": 2}, **costs}


@pytest.mark.parametrize("case", ROWS)
def test_rows(tmp_path: Path, case: str) -> None:
    (plan, job, row), file = plan_of(tmp_path), tmp_path / "rows.jsonl"
    write_rows(file, [row])
    assert list(rows_of_plan(file, read_rows(file), plan)) == [job.key]
    changes, said = ROWS[case]
    write_rows(file, [{name: value for name, value in {**row, **changes}.items() if value is not ...}])
    told(lambda: rows_of_plan(file, read_rows(file), plan), "rows.jsonl is damaged", said)


@pytest.mark.parametrize("line", [b"\xff\xfe", b"[1]", b"{", b"null", b"[" * 100_000], ids=lambda line: str(line[:4]))
def test_lines_that_are_no_rows(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(line + b"\n{}\n")
    told(lambda: read_rows(file), "rows.jsonl is damaged: line 1")
    file.write_bytes(b"{}\n" + line)  # a last line may have been cut off
    assert read_rows(file) == [{}] and file.read_bytes() == b"{}\n"
    file.write_text('{"error": "x"}\n')
    told(lambda: read_failed(file), "line 1: key is missing")
    as_folder(file)
    told(lambda: read_rows(file), "cannot be read: Is a directory")
