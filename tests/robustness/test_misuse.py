"""What is written -> what is said: every refusal names the argument, the cause, and what to write instead.

What single commands and files refuse is beside their tests (tests/test_cli.py, tests/train, tests/compare).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fxprune
from fxprune.errors import FxPruneError
from fxprune.gated.wrapped import Wrapped
from tests.command_line import PRUNE_CONFIG, Shell, in_a_process

X = torch.zeros(1, 1, 4, 4)
ROOT = Path(__file__).parents[2]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def wrap(**changes: Any) -> Wrapped:
    return fxprune.wrap(net(), **{"budget": 0.5, "example_inputs": X, **changes})


def prune(**changes: Any) -> fxprune.Pruned:
    data = [(torch.zeros(2, 1, 4, 4), torch.tensor([0, 1]))] * 2
    given: dict[str, Any] = {"train": data, "val": data, "budget": 0.5, "epochs": (1, 0, 0), "teacher": None, **changes}
    return fxprune.prune(net(), given.pop("train"), given.pop("val"), progress=False, **given)


SAMPLES = TensorDataset(torch.randn(4, 1, 4, 4), torch.zeros(4).long())


def cached(dataset: Any) -> fxprune.CachedTeacher:
    return fxprune.CachedTeacher(net(), dataset, "no/such/folder/logits.pt")


class Keyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"class": nn.Conv2d(1, 2, 1), "box": nn.Conv2d(1, 2, 1)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.heads["class"](x) + self.heads["box"](x)


def progress(value: Any) -> None:
    wrap().progress = value


# ------------------------------------------------------------ Python

PYTHON: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    # what is called: (the call, words of the message)
    "wrap a class": (lambda: fxprune.wrap(nn.Linear, 0.5), ("expected a torch.nn.Module", "Linear()")),  # type: ignore
    "metrics in a list": (lambda: wrap(metric=["flops"]), ("['flops'] is unknown", 'budget={"flops": 1/8}')),
    "an example in a list": (
        lambda: fxprune.wrap(nn.Conv2d(3, 4, 1), 0.5, example_inputs=[torch.zeros(1, 3, 4, 4)]),
        ("rejects the example inputs", "a tensor, a tuple"),
    ),
    "an example of another kind": (
        lambda: fxprune.wrap(nn.Conv2d(3, 4, 1), 0.5, example_inputs=torch.zeros(1, 3, 4, 4).long()),
        ("rejects the example inputs", "dtype"),
    ),
    "an argument that is missing": (
        lambda: fxprune.wrap(nn.Bilinear(2, 2, 2), 0.5, example_inputs=torch.zeros(1, 2)),
        ("rejects the example inputs", "all that forward() takes"),
    ),
    "wrap nothing": (lambda: fxprune.wrap(None, 0.5), ("expected a torch.nn.Module", "NoneType")),  # type: ignore
    "wrap a wrapped net": (lambda: fxprune.wrap(wrap(), 0.5), ("wrapped already", "unwrap()")),
    "a metric of nothing": (lambda: wrap(metric="speed"), ("'speed' is unknown", "volume")),
    "a metric that is none": (lambda: wrap(metric=None), ("None is unknown", "volume")),
    "a budget of nothing": (lambda: wrap(budget={}), ("the budget is empty", "budget=1/8")),
    "a word of Python's": (
        lambda: fxprune.wrap(Keyword(), 0.5, example_inputs=X), ("'heads.class' has a word of Python's", "'class_'")
    ),
    "a metric beside budgets": (
        lambda: wrap(budget={"flops": 0.5}, metric="params"), ("says nothing of metric='params'", "leave metric out")
    ),
    "a budget of a list": (lambda: wrap(budget=[0.5]), ("budget [0.5]", "budget=1/8")),
    "a budget of many digits": (lambda: wrap(budget=10**400), ("not a fraction", "budget=1/8")),
    "a budget that takes ages": (lambda: wrap(budget="1e-999999999"), ("not a fraction", "budget=1/8")),
    "a budget of no text": (lambda: wrap(budget="%"), ("'%' is not a fraction", "budget=1/8")),
    "noise": (lambda: wrap(noise="loud"), ("noise='loud'", "'batch'")),
    "noise that is none": (lambda: wrap(noise=None), ("noise=None", "'batch'")),
    "a schedule": (lambda: wrap(schedule=["linear"]), ("schedule=['linear']", "'linear'")),
    "ignore of a number": (lambda: wrap(ignore=3), ("ignore: 3", "ignore=['stem.*', 'head']")),
    "ignore of nobody": (lambda: wrap(ignore="nobody"), ("ignore: 'nobody' matches no layer", "such as '0'")),
    "leaf of nobody": (lambda: wrap(leaf="nobody"), ("leaf: 'nobody' matches no submodule", "named_modules()")),
    "an example of text": (lambda: wrap(example_inputs="1x1x4x4"), ("example", "a tensor, a tuple")),
    "an example of an array": (lambda: wrap(example_inputs=np.zeros((1, 1, 4, 4))), ("example", "a tensor, a tuple")),
    "an example too few": (lambda: wrap(example_inputs=()), ("example", "all that forward() takes")),
    "inspect nothing": (lambda: fxprune.inspect(None, X), ("expected a torch.nn.Module",)),  # type: ignore[arg-type]
    "export a model": (lambda: fxprune.export(net()), ("a wrapped network, not Sequential", "fxprune.wrap")),  # type: ignore
    "connectivity": (lambda: fxprune.export(wrap(), connectivity="full"), ("connectivity='full'", "'mixed'")),
    "save a model": (lambda: fxprune.save(net(), "x"), ("not a Sequential", "wrap and export")),
    "save a wrapped net": (lambda: fxprune.save(wrap(), "x"), ("a wrapped net", "fxprune.export(wrapped)")),
    "load on no device": (lambda: fxprune.load("x", device="abacus"), ("'abacus' cannot be used", '"cpu"')),
    "load nothing": (lambda: fxprune.load("no/such/folder"), ("no folder", "fxprune.save")),
    "masks of nothing": (lambda: wrap().set_masks(None), ("set_masks: a NoneType names no layers", "{layer")),  # type: ignore
    "masks by number": (lambda: wrap().set_masks({0: [1] * 4}), ("set_masks: 0 has no gate", "'0'")),  # type: ignore
    "masks that are short": (lambda: wrap().set_masks({"0": [1]}), ("'0' is given 1 numbers", "len(wrapped.gates")),
    "masks of scores": (lambda: wrap().set_masks({"0": torch.rand(4)}), ("other values than 0", "harden(scores)")),
    "scores of text": (lambda: wrap().harden({"0": "best"}), ("harden: '0'", "one number per gate")),
    "scores of NaN": (lambda: wrap().harden({"0": [float("nan")] * 4}), ("scores of '0' hold NaN", "finite")),
    "a width of 1.5": (lambda: wrap().harden(multiple_of=1.5), ("multiple_of=1.5", "multiple_of=8")),  # type: ignore
    "a minimum for all": (lambda: wrap().harden(minimum=2), ("minimum=2 names no layers", "{'*': 2}")),  # type: ignore
    "a minimum of text": (lambda: wrap().harden(minimum={"0": "two"}), ("'two' is no number", "{'0': 8}")),  # type: ignore
    "another budget": (lambda: wrap().harden(budget={"speed": 0.5}), ("'speed' is unknown", "volume")),
    "a budget out of reach": (lambda: wrap().harden(budget={"volume": 1e-6}), ("smallest that", "larger budget")),
    "a law": (lambda: wrap().set_law("uniform"), ("law='uniform'", "'gaussian'")),
    "progress of 2": (lambda: progress(2), ("progress 2", "step / total")),
    "progress of text": (lambda: progress("half"), ("progress 'half'", "step / total")),
    "a loss before progress": (lambda: wrap().budget_loss(), ("how far training is", "net.progress = step / total")),
    "no areas yet": (lambda: fxprune.wrap(net()[:2], 0.5).cost(), ("areas", "example_inputs")),  # type: ignore
    "no example": (lambda: wrap(example_inputs=None), ("no example was given", "example_inputs=torch.zeros")),
    "a loss that is a class": (
        lambda: prune(loss=nn.CrossEntropyLoss), ("the class CrossEntropyLoss", "loss=CrossEntropyLoss()")
    ),
    "a teacher's logits of a loader": (lambda: cached(DataLoader(SAMPLES)), ("is a loader", "loader.dataset")),
    "a teacher's logits of batches": (lambda: cached([SAMPLES[:2]] * 2), ("fit the teacher", "not batches")),
    "alpha of many digits": (lambda: prune(alpha=10**400), ("alpha", "alpha=0.9")),
    "a temperature of infinity": (lambda: prune(temperature=float("inf")), ("temperature=inf", "fix: leave")),
    "a temperature of digits": (lambda: prune(temperature=10**400), ("temperature=", "leave temperature out")),
    "epochs of text": (lambda: prune(epochs="111"), ("epochs='111'", "epochs=(80, 40, 10)")),
    "options of a list": (lambda: prune(method_options=["strength"]), ("method_options=['strength']", '{"strength"')),
    "options of nobody": (lambda: prune(method_options={"haste": 1}), ("'haste'", "docs/reference/methods.md")),
    "data of a number": (lambda: prune(train=3), ("train is of type int", "DataLoader")),
    "data without a length": (lambda: prune(train=iter([])), ("how many batches", "__len__")),
    "a batch of three": (lambda: prune(train=[(X, X, X)]), ("a batch of train has 3 parts", "(inputs, target)")),
    "a run of a number": (lambda: prune(run=3), ("run=3 is no path", 'run="a/folder"')),
    "a distillation of texts": (lambda: fxprune.distillation_loss("a", "b", X), ("student's output", "pair=")),  # type: ignore
}  # fmt: skip


@pytest.mark.parametrize("case", PYTHON)
def test_python(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, words = PYTHON[case]
    with pytest.raises(FxPruneError) as caught:
        call()
    assert caught.value.fix and len(str(caught.value)) < 2000
    for word in words:
        assert word in str(caught.value)
    assert not list(tmp_path.iterdir()), "something was written"


# ------------------------------------------------------------ the shell

CODE = """
import os, sys
from torch import nn

def net():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))

def loud():
    os.system("echo a child")
    os.write(1, b"a system call")
    sys.__stdout__.write("a print")
    print("another print")
    return net()

def batches():
    import torch
    return [(torch.zeros(2, 1, 4, 4), torch.tensor([0, 1]))] * 2, None

def exits(*_):
    sys.exit(7)

def odd():
    raise BaseException("odd")

class Mute(Exception):
    def __str__(self):
        raise ValueError

def mute():
    raise Mute

class Held:
    @property
    def net(self):
        raise RuntimeError("not yet")

held = Held()

class Exits(nn.Conv2d):
    def forward(self, x):
        sys.exit(7)

def optimizer(groups):
    raise KeyError("lr")
"""
CONFIG = PRUNE_CONFIG.replace("[2, 1, 1]", "[1, 0, 0]")
INSPECT = ("inspect", "code.py:net", "--input", "1x1x4x4")
SHELL: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "prune by a comparison": (("prune", "compare.toml"), ("describes a comparison", "fxprune compare compare.toml")),
    "compare by one run": (("compare", "config.toml"), ("describes one run", "fxprune prune config.toml")),
    # what is typed: (the arguments, words of the message)
    "a target that exits": (("inspect", "code.py:exits", *INSPECT[2:]), ("SystemExit: 7", "code.py:")),
    "a target that raises anything": (("inspect", "code.py:odd", *INSPECT[2:]), ("BaseException: odd", "code.py:")),
    "an error without words": (("inspect", "code.py:mute", *INSPECT[2:]), ("code.py:mute failed: Mute",)),
    "an attribute that raises": (("inspect", "code.py:held.net", *INSPECT[2:]), ("RuntimeError: not yet",)),
    "a forward that exits": (
        ("inspect", "code.py:Exits", *INSPECT[2:], "--arg", "in_channels=1", "--arg", "out_channels=2",
         "--arg", "kernel_size=1"), ("exits: SystemExit: 7", "code.py:"),
    ),
    "a name too long": (("inspect", "x" * 300 + ".py:net", *INSPECT[2:]), ("there is no file", "package.module:")),
    "a size of many digits": ((*INSPECT[:3], "9" * 5000), ("too large",)),
    "a size beyond integers": ((*INSPECT[:3], "1x" + "9" * 25), ("too large",)),
    "a budget that takes ages": ((*INSPECT, "--budget", "1e999999999"), ("not a number", "--budget 1/8")),
    "a picture with a zero byte": ((*INSPECT, "--svg", "a\0b"), ("is no path",)),
    "a picture with a long name": ((*INSPECT, "--svg", "x" * 300), ("File name too long",)),
    "no config": (("prune", "nothing.toml"), ("nothing.toml cannot be read: No such file",)),
    "a folder as config": (("compare", "."), ("cannot be read: Is a directory",)),
    "a config with a zero byte": (("prune", "a\0b"), ("is no path",)),
    "a run below a file": (("prune", "config.toml", "--run", "code.py/x"), ("code.py is a file",)),
    "a run with a long name": (("prune", "config.toml", "--run", "x" * 300), ("File name too long",)),
    "a comparison below a file": (("compare", "compare.toml", "--run", "code.py/x"), ("cannot be written",)),
    "no time": (("compare", "compare.toml", "--run", "kept", "--minutes", "nan"), ("--minutes nan",)),
    "time before now": (("compare", "compare.toml", "--run", "kept", "--minutes=-1"), ("--minutes -1.0",)),
    "export of nothing": (("export", "", "--source", "new"), ("not the folder of a run",)),
    "export of a long name": (("export", "x" * 300, "--source", "new"), ("File name too long",)),
    "check of nothing": (("check", "", "--against", ""), ("not the folder of a run",)),
}  # fmt: skip


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("code.py").write_text(CODE)
    Path("config.toml").write_text(CONFIG)
    compared = '[teacher]\nepochs = [0, 0]\n[compare]\nbudgets = ["1/2"]\nseeds = [0]\nmethods = ["bar"]\n'
    Path("compare.toml").write_text(CONFIG.partition("[prune]")[0] + compared)
    return tmp_path


@pytest.mark.parametrize("case", SHELL)
def test_shell(there: Path, shell: Shell, case: str) -> None:
    arguments, words = SHELL[case]
    before = set(there.iterdir())
    code, out, err = shell(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and "\n  fix: " in err and "Traceback" not in err and "itself failed" not in err
    for word in words:
        assert word in err
    assert {path for path in there.iterdir() if path.name not in ("__pycache__", "kept")} == before


TOML: dict[str, tuple[str, str, str]] = {
    # what is in the config: (old text, new text, words of the message)
    "a number for a section": ("[model]\ntarget", "model = 3\n[modl]\ntarget", "model is a whole number, not"),
    "deep brackets": ("[model]", "a = " + "[" * 5000, "is not TOML"),
    "a budget of many digits": ('"1/2"', "9" * 400, "is not a fraction of the full cost"),
    "a temperature of many digits": ("epochs", f"temperature = {'9' * 400}\nepochs", "temperature="),
    "a seed of text": ("epochs", 'seed = "one"\nepochs', "seed in [prune] is a text"),
    "a seed of truth": ("epochs", "seed = true\nepochs", "seed in [prune] is"),
    "a date": ("epochs", "alpha = 1979-05-27\nepochs", "alpha in [prune] is something else"),
    "a folder with a zero byte": ('"run"', '"a\\u0000b"', "is no path"),
    "a loss that exits": ("epochs", 'loss = "code.py:exits"\nepochs', "code.py:exits failed: SystemExit: 7"),
    "an optimizer that fails": ("[run]", '[optimizer]\ntarget = "code.py:optimizer"\n[run]', "failed: KeyError: 'lr'"),
    "weights that are no weights": ("[data]", 'weights = "code.py"\n[data]', "the weights code.py cannot be loaded"),
}


@pytest.mark.parametrize("case", TOML)
def test_toml(there: Path, shell: Shell, case: str) -> None:
    old, new, words = TOML[case]
    assert old in CONFIG
    Path("config.toml").write_text(CONFIG.replace(old, new, 1))
    code, out, err = shell("prune", "config.toml", "--json")
    assert (code, out) == (2, "") and words in err and "\n  fix: " in err and "itself failed" not in err


def test_nobody_prints_between_the_json(there: Path) -> None:
    """Neither child processes nor what writes past Python's own print."""
    done = in_a_process("inspect", "code.py:loud", *INSPECT[2:], "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["model"] == "Sequential"
    for word in ("a child", "a system call", "a print", "another print"):
        assert word in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
def test_a_full_disk_for_the_output(there: Path) -> None:
    with open("/dev/full", "w") as full:
        done = in_a_process(*INSPECT, stdout=full)
    assert done.returncode == 2 and done.stderr.startswith("error: No space left on device")
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
