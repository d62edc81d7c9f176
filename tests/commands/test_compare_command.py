"""``fxprune compare CONFIG.toml``: real, tiny comparisons, whole and cut off."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fxprune
from fxprune.commands.compare import parts_of
from fxprune.commands.config import read_plan
from fxprune.commands.user_code import check_options
from fxprune.compare.worker import one
from tests.command_line import Shell
from tests.forked import Forked

EXAMPLES = Path(__file__).parents[2] / "examples"

CODE = f'''
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
from models import resnet8
import fxprune, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def net():
    return resnet8(width=4)

def data():
    print("reading the data")
    train, val = torch.load("digits.pt", weights_only=True)
    held_out = DataLoader(TensorDataset(*val), 256)
    return DataLoader(TensorDataset(*train), 16, shuffle=True), held_out, held_out

def narrow(model, train, val, *, budget, metric, epochs, teacher, optimizer, alpha, temperature, seed, example_inputs,
           keep=1.0):
    assert metric == "volume" and teacher is not None and epochs == (1, 1, 0)
    slim = fxprune.export(fxprune.wrap(model, budget * keep, example_inputs=example_inputs))
    step = optimizer([{{"params": list(slim.parameters())}}])
    for x, y in train:
        step.zero_grad()
        nn.functional.cross_entropy(slim.train()(x), y).backward()
        step.step()
    return slim

def untouched(model, train, val, **other):
    return model

def broken(model, train, val, **other):
    raise KeyError("no such layer")

def nothing(model, train, val, **other):
    return 1.0
'''
CONFIG = """
[model]
target = "code.py:net"
[data]
target = "code.py:data"
[teacher]
epochs = [1, 1]
[prune]
epochs = [1, 1, 0]
[compare]
budgets = ["1/2"]
seeds = [0, 1]
methods = ["bar"]
[entries."bar, labels"]
method = "bar"
teacher = "none"
optimizer = { target = "torch.optim:SGD", arguments = { lr = 0.05 } }
[run]
folder = "kept"
"""
# Teachers need no training where something else is tested, and one seed is enough.
SHORT = CONFIG.replace("[1, 1]", "[0, 0]").replace("seeds = [0, 1]", "seeds = [0]")


@pytest.fixture(scope="module")
def digits() -> list[list[torch.Tensor]]:
    """Real handwriting; importing scikit-learn would take each of the runs longer than all the rest."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    x = torch.tensor(loaded.images[:200], dtype=torch.float32)[:, None] / 8 - 1
    x = torch.nn.functional.interpolate(x, scale_factor=2).expand(-1, 3, -1, -1).contiguous()
    y = torch.tensor(loaded.target[:200])
    return [[x[:160], y[:160]], [x[160:], y[160:]]]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: list[list[torch.Tensor]]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    Path("code.py").write_text(CODE)
    Path("config.toml").write_text(CONFIG)
    torch.save(digits, "digits.pt")


@pytest.fixture
def shell(shell: Shell) -> Shell:
    return partial(shell, "compare", "config.toml")


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that start at once. Those of a command in a process of its own start as they do for everybody."""
    monkeypatch.setattr("fxprune.compare.pool.subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": Forked}))


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("kept/rows.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_comparison_in_pieces(shell: Shell) -> None:
    """Two entries, two seeds: first one seed, then a part of the rest, then all; then only the tables."""
    code, out, _ = shell("--seeds", 0)
    assert code == 0 and "3/3  bar, labels, 1/2, seed 0  accuracy" in out
    Path("kept/rows.jsonl").write_text(Path("kept/rows.jsonl").read_text() + '{"key": "bar, 1/2, se')  # a power cut
    code, out, _ = shell("--minutes", 0)
    assert code == 0 and "3 of 3 runs were not started" in out
    assert "Pruned nets: 2 of 4." in Path("kept/compare.md").read_text()
    before = rows()
    code, out, err = shell("--json", "--jobs", 2)
    assert code == 0 and "1/3  teacher, seed 1" in err and "seed 0" not in err.replace("teacher, seed 0", "")
    printed = json.loads(out)
    assert sorted(row["key"] for row in printed) == sorted(row["key"] for row in rows())
    assert rows()[:3] == before
    assert [row["key"] for row in printed] == [
        "teacher, seed 0", "teacher, seed 1", "bar, 1/2, seed 0", "bar, labels, 1/2, seed 0",
        "bar, 1/2, seed 1", "bar, labels, 1/2, seed 1",
    ]  # fmt: skip
    by_key = {row["key"]: row for row in printed}
    row = by_key["bar, 1/2, seed 1"]
    assert row["used"] <= 1 and row["cost"]["volume"] * 2 <= row["full"]["volume"] == 2 * 672
    assert row["factor"]["volume"] == pytest.approx(row["full"]["volume"] / row["cost"]["volume"], abs=1e-3)
    assert row["teacher"] == by_key["teacher, seed 1"]["accuracy"] and row["distilled"]
    assert not by_key["bar, labels, 1/2, seed 1"]["distilled"]
    assert set(row["latency"]) == {"1", "32"} and row["full_widths"]["stage3.conv1"] == 16
    folder = Path("kept/runs/bar-1_2-1")
    assert not (folder / "checkpoint.pt").exists() and (folder / "report.json").exists()
    assert not list(Path("kept/runs").glob("*.log")) and not Path("kept/failed.jsonl").exists()
    slim = fxprune.load(folder / "slim")
    assert {n: m.out_channels for n, m in slim.named_modules() if isinstance(m, torch.nn.Conv2d)}.items() <= row[
        "widths"
    ].items()
    text = Path("kept/compare.md").read_text()
    assert "Pruned nets: 4 of 4." in text and "bar, labels | 1/2" in text and str(Path.cwd()) not in text
    for name in ("accuracy", "neurons"):
        assert Path(f"kept/{name}.png").stat().st_size > 5000
    drawn = Path("kept/accuracy.svg").read_bytes()
    code, out, _ = shell("--tables", "--out", "out")
    assert code == 0 and Path("out/compare.md").read_text() == text and Path("out/accuracy.svg").read_bytes() == drawn
    assert len(Path("out/rows.jsonl").read_text().splitlines()) == 6
    assert len(Path("out/compare.csv").read_text().splitlines()) == 5
    # Nothing is left to do; other settings belong into another folder.
    assert shell()[0] == 0 and len(rows()) == 6
    Path("config.toml").write_text(CONFIG.replace("epochs = [1, 1, 0]", "epochs = [1, 2, 0]"))
    code, _, err = shell()
    assert code == 2 and "epochs was [1, 1, 0] and is [1, 2, 0]" in err and "use another folder" in err


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_rows_from_elsewhere_come_without_teachers(shell: Shell) -> None:
    """A teacher is trained again if a run needs it, and left alone if none does."""
    Path("config.toml").write_text(SHORT)
    assert shell()[0] == 0
    shutil.rmtree("kept/teachers")
    assert shell()[0] == 0 and not Path("kept/teachers").exists()
    Path("kept/rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows() if row["entry"] != "bar"))
    code, out, _ = shell("--entries", "bar")
    assert code == 0 and "1/2  teacher, seed 0" in out and "2/2  bar, 1/2, seed 0  accuracy" in out
    assert {row["key"] for row in rows()} == {"teacher, seed 0", "bar, 1/2, seed 0", "bar, labels, 1/2, seed 0"}


@pytest.mark.slow
def test_random_weights_are_taught_by_the_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = '[entries."scratch"]\nmethod = "bar"\nstart = "random"\n[entries."labels"]\nmethod = "bar"\n'
    entries += 'start = "random"\nteacher = "none"\n[run]'
    Path("config.toml").write_text(CONFIG.replace("[run]", entries))
    plan, sections = read_plan(Path("config.toml"), "whole")
    taught, parts = [], parts_of(sections)
    one(plan, plan.jobs(seeds=[0])[0], parts)

    def capture(model: Any, *args: Any, teacher: Any, **more: Any) -> Any:
        taught.append((model.state_dict(), teacher))
        raise InterruptedError

    monkeypatch.setattr("fxprune.compare.worker.prune", capture)
    for name in ("bar", "scratch", "scratch", "labels"):
        with pytest.raises(InterruptedError):
            one(plan, plan.jobs([name], seeds=[0])[1], parts)
    (bar, own), (scratch, teacher), (again, _), (labels, nobody) = taught
    trained = torch.load("whole/teachers/0.pt", weights_only=True)
    assert own == "self" and nobody is None
    assert torch.equal(bar["conv.weight"], trained["conv.weight"])
    assert torch.equal(teacher.state_dict()["conv.weight"], trained["conv.weight"])
    assert not torch.equal(scratch["conv.weight"], trained["conv.weight"])
    assert torch.equal(scratch["conv.weight"], again["conv.weight"])  # a run that goes on has the same ones
    assert torch.equal(scratch["conv.weight"], labels["conv.weight"])
    facts = [plan.facts(plan.jobs([name], seeds=[0])[1]) for name in ("bar", "scratch")]
    assert "start" not in facts[0] and facts[1]["start"] == "random"


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_tools_and_failures(shell: Shell) -> None:
    """Two at once: tools that do what they should, and those that do not; the others go on."""
    entries = {"narrow": "options = { keep = 0.9 }", "untouched": "", "broken": "", "nothing": ""}
    tools = "".join(f'[entries.{name}]\ntool = "code.py:{name}"\n{more}\n' for name, more in entries.items())
    Path("config.toml").write_text(SHORT.replace('methods = ["bar"]', "").partition("[entries")[0] + tools)
    code, out, _ = shell("--run", "kept", "--jobs", 2)
    assert code == 1
    assert "broken, 1/2, seed 0  FAILED: code.py:broken failed: KeyError: 'no such layer'" in out
    assert "FAILED: code.py:nothing returned an object of type float, not a net" in out
    failed = [json.loads(line) for line in Path("kept/failed.jsonl").read_text().splitlines()]
    assert {row["entry"] for row in failed} == {"broken", "nothing"}
    assert Path("kept/runs/broken-1_2-0.log").exists()
    by_entry = {row["entry"]: row for row in rows()}
    assert by_entry["narrow"]["used"] <= 0.9 and by_entry["untouched"]["used"] == 2
    assert by_entry["narrow"]["tool"] == "code.py:narrow" and by_entry["narrow"]["seconds"] > 0
    text = Path("kept/compare.md").read_text()
    assert "| 2.000 OVER |" in text and "- nothing, 1/2, seed 0: code.py:nothing returned" in text
    Path("code.py").write_text(CODE.replace("return 1.0", "return model"))  # mended: tried again
    code, out, _ = shell("--run", "kept", "--entries", "nothing")
    assert code == 0 and "1/1  nothing, 1/2, seed 0  accuracy" in out
    assert [json.loads(line)["entry"] for line in Path("kept/failed.jsonl").read_text().splitlines()] == ["broken"]


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_times_can_be_taken_again(shell: Shell) -> None:
    """Of nets of a method and of a tool; nothing else of the rows changes."""
    entries = """[entries."untouched"]
tool = "code.py:untouched"
metric = "latency"
batch_size = 5
[run]"""
    Path("config.toml").write_text(SHORT.replace("[run]", entries))
    assert shell("--time")[0] == 2  # there is nothing yet
    assert shell()[0] == 0
    before = rows()
    for row in before:
        row["latency"] = dict.fromkeys(row["latency"], 99.0) if "latency" in row else None
    past = {"key": "of a plan that was changed since", "entry": "gone"}
    Path("kept/rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*before, past]))
    assert shell("--time")[0] == 0
    after = {row["key"]: row for row in rows()}
    assert after[past["key"]] == past
    for row in before:
        timed = after[row["key"]]
        assert timed["accuracy"] == row["accuracy"] and timed["settings"] == row["settings"]
        if row["entry"] != "teacher":
            assert all(0 < share < 10 for share in timed["latency"].values())
    timed = after["untouched, 1/2, seed 0"]
    assert set(timed["latency"]) == {"1", "5", "32"} and timed["used"] == pytest.approx(timed["latency"]["5"] / 0.5)
    Path("kept/runs/untouched-1_2-0/net.pt").unlink()
    code, out, _ = shell("--time")
    assert code == 0 and "untouched, 1/2, seed 0 keeps the times that it has: its net cannot be read" in out
    assert rows()[-2] == after["untouched, 1/2, seed 0"]


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_ctrl_c_and_on(shell: Shell) -> None:
    """In the middle of a run; the next start goes on from its checkpoint and ends with the net it would have been."""
    Path("config.toml").write_text(SHORT.replace("epochs = [1, 1, 0]", "epochs = [12, 1, 0]"))
    command = [sys.executable, "-m", "fxprune.cli", "compare", "config.toml", "--entries", "bar"]
    paths = {"PYTHONPATH": str(Path(fxprune.__file__).parents[1])}
    with Path("said").open("w") as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=said, env={**os.environ, **paths},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell in the background ignores it
        )  # fmt: skip
        copied, checkpoint = Path("kept/config.toml"), Path("kept/runs/bar-1_2-0/checkpoint.pt")
        deadline = time.monotonic() + 120
        while not copied.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        other, _, err = shell()  # long before it is done
        while not checkpoint.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert other == 2 and "another comparison runs in kept" in err
    assert "start the same command again" in Path("said").read_text()
    assert [row["entry"] for row in rows()] == ["teacher"] and checkpoint.exists()
    assert torch.load(checkpoint, weights_only=True)["at"] != {}
    code, out, _ = shell("--entries", "bar")
    assert code == 0 and "1/1  bar, 1/2, seed 0" in out
    shutil.copytree("kept/teachers", "whole/teachers")
    plan, sections = read_plan(Path("config.toml"), "whole")
    one(plan, plan.jobs(["bar"])[1], parts_of(sections))
    files = [f"{run}/runs/bar-1_2-0/slim/weights.pt" for run in ("kept", "whole")]
    first, second = (torch.load(file, weights_only=True) for file in files)
    assert list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("budgets =", "buget =", "[compare] has no key 'buget'\n  fix: did you mean budgets?"),
        ("[compare]", "[compere]", "there is no section [compere]\n  fix: did you mean compare?"),
        ('teacher = "none"', 'techer = "none"', "has no key 'techer'\n  fix: did you mean teacher?"),
        ("epochs = [1, 1, 0]", 'epochs = [1, 1, 0]\nbudget = "1/2"', "write them under [compare]"),
        ('methods = ["bar"]', 'methods = ["barr"]', "there is no method 'barr'\n  fix: did you mean bar?"),
        ('method = "bar"\n', "", "has no method and no tool"),
        ('methods = ["bar"]', 'methods = ["bar, labels"]', "the entry 'bar, labels' is there twice"),
        ('methods = ["bar"]', 'reference = "wm"', "reference 'wm' is no entry"),
        ('["1/2"]', "[]", "[compare] budgets are empty"),
        ('["1/2"]', '["3/2"]', "3/2 is outside (0, 1]"),
        ('["1/2"]', "[0]", "0 is outside (0, 1]"),
        ('["1/2"]', '["1/2", 0.5]', "has the budget 0.5 twice"),
        ("[0, 1]", "[]", "[compare] seeds are empty"),
        ("[0, 1]", "[1, 1]", "[compare] seed 1 is there twice"),
        ("[0, 1]", '["a"]', "seed 'a' is not a whole number"),
        ("[1, 1]", "[1]", "[teacher] epochs: [1] are not 2 numbers of epochs"),
        ("epochs = [1, 1]\n", "", "[teacher] has no epochs"),
        ("[1, 1, 0]", "[0, 1, 0]", "[0, 1, 0] are not 3 numbers of epochs"),
        ('teacher = "none"', 'teacher = "train"', "teacher='train' is unknown"),
        ('teacher = "none"', 'metric = "speed"', "metric='speed' is unknown"),
        ('folder = "kept"', "", "the comparison has no folder"),
        ("code.py:net", "code.py:nett", "did you mean net"),
        ('method = "bar"\n', 'tool = "code.py:narow"\n', "did you mean narrow"),
        ("torch.optim:SGD", "torch.optim:SDG", "did you mean SGD"),
        ('teacher = "none"', "options = { strength = 1.0 }", "unexpected keyword argument 'strength'"),
        ('teacher = "none"', 'options = { seed = { "1/8" = 1 } }', "seed has no value for the budget 1/2"),
        ("epochs = [1, 1, 0]", "epochs = [1, 1, 0]\nmethod_options = { strength = 1 }", "has no key 'method_options'"),
        ("[model]", "model", "is not TOML"),
    ],
    ids=lambda text: text[:30].replace("\n", " "),
)  # fmt: skip
def test_misuse(shell: Shell, old: str, new: str, said: str) -> None:
    assert old in CONFIG
    Path("config.toml").write_text(CONFIG.replace(old, new, 1))
    code, _, err = shell()
    assert said in err and "fix:" in err
    assert code == 2 and not Path("kept/runs").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--entries", "baar"], "there is no entry 'baar'\n  fix: did you mean bar?"),
        (["--seeds", "7"], "7 is not one of the config's\n  fix: the seeds are 0, 1"),
        (["--budgets", "1/3"], "no run is left"),
        (["--budgets", "half"], "--budgets 'half' is not a number"),
        (["--jobs", "0"], "--jobs 0 runs nothing"),
        (["--one", "bar"], "there is no run 'bar'"),
    ],
)
def test_misuse_of_options(shell: Shell, arguments: list[str], said: str) -> None:
    code, _, err = shell(*arguments)
    assert code == 2 and said in err


def test_a_damaged_file_is_not_guessed_at(shell: Shell) -> None:
    Path("kept").mkdir()
    Path("kept/rows.jsonl").write_text('{"key": \n{"key": "x"}\n')
    code, _, err = shell("--tables")
    assert code == 2 and "kept/rows.jsonl is damaged: line 1" in err
    Path("kept/rows.jsonl").write_text("")
    code, out, _ = shell("--tables")
    assert code == 0 and "there are no tables" in out
    Path("kept/rows.jsonl").write_text('{"key":')  # somebody may be writing it
    assert shell("--tables")[0] == 0 and Path("kept/rows.jsonl").read_text() == '{"key":'


def test_the_example_is_well_formed() -> None:
    plan, _ = read_plan(EXAMPLES / "compare.toml", None)
    assert plan.seeds == (0, 1) and len(plan.jobs()) == 2 + 2 * len(plan.entries)


def test_an_option_can_have_a_value_per_budget() -> None:
    options = 'options = { strength = { "1/2" = 3.0, "1/4" = 5.0 } }'
    entry = f'[entries.lzr]\nmethod = "lzr"\n{options}\nbudgets = ["1/2", "1/4"]'
    Path("config.toml").write_text(CONFIG.replace("[run]", f"{entry}\n[run]"))
    plan, _ = read_plan(Path("config.toml"), None)
    strengths = {job.budget: plan.facts(job)["options"] for job in plan.jobs(["lzr"], seeds=[0]) if job.entry == "lzr"}
    assert strengths == {"1/2": {"strength": 3.0}, "1/4": {"strength": 5.0}}


@pytest.mark.parametrize("file", sorted((EXAMPLES.parent / "benchmarks").glob("*.toml")), ids=lambda file: file.stem)
def test_benchmarks_name_methods_and_options_that_there_are(file: Path) -> None:
    plan, _ = read_plan(file, None)
    for entry in plan.entries.values():
        for budget in entry.budgets if entry.method else ():
            check_options(str(entry.method), entry.options_at(budget), entry.name)
