"""``fxprune prune PRUNE_CONFIG.toml``: what it does, prints and refuses."""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import fxprune
from fxprune.commands.config import read_config
from tests.command_line import PRUNE_CONFIG, Shell

CODE = '''
import torch
from torch import nn

def net(classes=3):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, classes))

def batches(count=3):
    print("reading the data")
    torch.manual_seed(1)
    pairs = [(torch.randn(4, 1, 4, 4), torch.randint(0, 3, (4,))) for _ in range(count)]
    return pairs, pairs

def loss(output, target):
    return nn.functional.cross_entropy(output, target)

def broken(output, target):
    raise KeyError("classes")
'''


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("code.py").write_text(CODE)
    Path("config.toml").write_text(PRUNE_CONFIG)


@pytest.fixture
def shell(shell: Shell) -> Shell:
    return partial(shell, "prune")


def test_a_run(shell: Shell) -> None:
    code, out, _ = shell("config.toml")
    assert code == 0
    assert "volume: 8 of 16 (50.0 %), at most 50.0 %" in out
    assert "prune       2/2  loss" in out and "wrote run: slim/" in out
    assert fxprune.load("run/slim")(torch.zeros(1, 1, 4, 4)).shape == (1, 3)


def test_json_is_the_report_and_nothing_else(shell: Shell) -> None:
    code, out, err = shell("config.toml", "--json", "--run", "other")
    assert code == 0
    assert json.loads(out) == json.loads(Path("other/report.json").read_text())
    assert "reading the data" in err and "prune       2/2" in err
    assert not Path("run").exists()


def test_resume_must_be_asked_for(shell: Shell) -> None:
    assert shell("config.toml", "--resume")[0] == 0  # nothing there: it starts
    code, _, err = shell("config.toml")
    assert code == 2 and "run holds a run already" in err and "fxprune prune --resume" in err
    assert shell("config.toml", "--resume")[0] == 0


def test_ctrl_c_and_on(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written in the end is what it would have been."""
    assert shell("config.toml", "--run", "whole")[0] == 0
    from fxprune.train import phase

    row, calls = phase.Trainer._row, iter(range(100))

    def interrupted(*args: Any, **keywords: Any) -> Any:
        if next(calls) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return row(*args, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(phase.Trainer, "_row", interrupted)
        code, out, _ = shell("config.toml")
    assert code == 130 and "start the same run again to go on" in out
    code, out, _ = shell("config.toml", "--resume")
    assert code == 0 and "going on with run: phase 'prune'" in out
    one, other = (torch.load(f"{run}/slim/weights.pt", weights_only=True) for run in ("whole", "run"))
    assert list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_every_section(shell: Shell) -> None:
    names: dict[str, Any] = {}
    exec(CODE, names)
    torch.save(names["net"]().state_dict(), "weights.pt")
    text = PRUNE_CONFIG.replace(':net"', ':net"\nweights = "weights.pt"')
    text = text.replace('teacher = "none"', 'metric = "flops"\nnoise = "sample"\nschedule = "linear"\nignore = []')
    text += '[teacher]\ntarget = "code.py:net"\narguments = { classes = 3 }\n'
    text += '[optimizer]\ntarget = "torch.optim:SGD"\narguments = { lr = 0.01, momentum = 0.9 }\n'
    Path("config.toml").write_text(text)
    code, out, err = shell("config.toml", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["budget"] == {"flops": 0.5}
    assert report["settings"]["optimizer"].startswith("SGD(lr=0.01, momentum=0.9")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("budget =", "buget =", "[prune] has no key 'buget'\n  fix: did you mean budget?"),
        ("[prune]", "[pune]", "there is no section [pune]\n  fix: did you mean prune?"),
        ('[data]\ntarget = "code.py:batches"', "", "has no section [data]"),
        ('target = "code.py:net"', "", "has no key 'target' in [model]"),
        ("epochs = [2, 1, 1]", 'epochs = "2"', "epochs in [prune] is a text\n  fix: write a list"),
        ("epochs = [2, 1, 1]", "epochs = [2, 1]", "epochs=(2, 1) is not what three phases take"),
        ('budget = "1/2"', 'budget = "half"', "[prune] budget 'half' is not a number"),
        ('budget = "1/2"', "budget = 3", "budget 3 is not a fraction"),
        ('budget = "1/2"', "budget = true", "budget in [prune] is"),
        ('folder = "run"', "", "the run has no folder"),
        ("[model]", "model", "is not TOML"),
        ("[model]", "fast = 1\n[model]", "there is no key 'fast' outside any section"),
        ("code.py:net", "code.py:nett", "code.py has no attribute 'nett'\n  fix: did you mean net?"),
        ("code.py:batches", "code.py:batch", "did you mean batches"),
        ("code.py:batches", "code.py:net", "returned an object of type Sequential, not two loaders"),
        ("code.py:batches", "code.py:loss", "add [data] arguments output=... [data] arguments target=..."),
        ('"code.py:batches"', '"code.py:batches"\narguments = { count = 0 }', "train is empty"),
        ('teacher = "none"', 'teacher = "nobody"', "teacher='nobody' is unknown"),
        ('teacher = "none"', 'loss = "code.py:broken"', "code.py:broken failed: KeyError: 'classes'"),
        ("[run]", '[optimizer]\ntarget = "torch.optim:SGD"\narguments = { rate = 1 }\n[run]', "torch.optim:SGD failed"),
        (
            'teacher = "none"\n', '[teacher]\ntarget = "code.py:net"\narguments = { classes = 5 }\n',
            "the student's output is 4x3, the teacher's 4x5",
        ),
        (
            'target = "code.py:net"', 'target = "code.py:net"\nweights = "none.pt"',
            "the weights none.pt cannot be loaded into code.py:net",
        ),
    ],
    ids=lambda text: text[:40].replace("\n", " "),
)  # fmt: skip
def test_misuse(shell: Shell, old: str, new: str, said: str) -> None:
    assert old in PRUNE_CONFIG
    Path("config.toml").write_text(PRUNE_CONFIG.replace(old, new))
    code, _, err = shell("config.toml")
    assert said in err and "fix:" in err
    assert code == 2


def test_the_example_is_well_formed() -> None:
    config = read_config(Path(__file__).parents[2] / "examples" / "handwriting.toml")
    assert config["prune"]["budget"] == "1/4" and config["teacher"] == {}


def test_no_such_file(shell: Shell) -> None:
    code, _, err = shell("nothing.toml")
    assert code == 2 and "nothing.toml cannot be read: No such file" in err


def test_a_method_of_the_users_own(shell: Shell) -> None:
    first = """
from fxprune.methods import Method

class First(Method):
    def __init__(self, net, best=0):
        super().__init__(net)
        self.best = best

    def decide(self):
        wanted = {name: [-abs(i - self.best) for i in range(len(gate))] for name, gate in self.net.gates.items()}
        self.net.harden(wanted)
"""
    Path("mine.py").write_text(first)
    more = 'method = "mine.py:First"\nmethod_options = { best = 2 }\nteacher'
    Path("config.toml").write_text(PRUNE_CONFIG.replace("teacher", more))
    code, out, err = shell("config.toml")
    assert code == 0, err
    assert "volume: 8 of 16" in out
    Path("config.toml").write_text(PRUNE_CONFIG.replace("teacher", 'method = "code.py:net"\nteacher'))
    code, _, err = shell("config.toml", "--run", "other")
    assert code == 2 and "code.py:net is no fxprune.methods.Method" in err
