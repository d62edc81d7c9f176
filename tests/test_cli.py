"""The command line: what it says when it is misused, interrupted, or wrong itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fxprune
from fxprune.cli import main
from tests.command_line import NETS, RESNET8, ROOT, Shell

pytestmark = pytest.mark.usefixtures("in_checkout")

INPUT = ("--input", "1x3x8x8")
MISUSE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # name: (arguments after inspect, what the message must contain)
    "shape with a comma": ((f"{NETS}:Odd", "--input", "1,3,8,8"), ("1,3,8,8", "--input 1x3x224x224")),
    "shape with a word": ((f"{NETS}:Odd", "--input", "1x3xHxW"), ("1x3xHxW", "--input 1x3x224x224")),
    "empty shape": ((f"{NETS}:Odd", "--input", ""), ("--input 1x3x224x224",)),
    "size of zero": ((f"{NETS}:Odd", "--input", "0x3x8x8"), ("empty",)),
    "too many elements": ((f"{NETS}:Odd", "--input", "99999999x99999999x99999999"), ("too large",)),
    "an input twice": ((f"{NETS}:Two", "--input", "x=1x3x8x8", "--input", "x=1x3x8x8"), ("twice",)),
    "more inputs than arguments": (
        (f"{NETS}:Odd", *INPUT, "--input", "y=1x3x8x8"),
        ("does not fit", "unexpected keyword argument 'y'"),
    ),
    "target without a colon": ((NETS, *INPUT), ("names no model", "path/to/file.py:function")),
    "target without a name": ((f"{NETS}:", *INPUT), ("names no model",)),
    "no such file": (("nowhere/net.py:Net", *INPUT), ("no file nowhere/net.py",)),
    "no such module": (("torch.optin:Adam", *INPUT), ("no module torch.optin", "did you mean torch.optim")),
    "no such package": (("nosuchpackage.models:net", *INPUT), ("no module nosuchpackage",)),
    "no such attribute": (("examples/models.py:resnet9", *INPUT), ("no attribute 'resnet9'", "did you mean resnet8")),
    "no attribute like it": (("examples/models.py:qqq", *INPUT), ("no attribute 'qqq'", "it has", "resnet8")),
    "no such inner attribute": ((f"{NETS}:Odd.make", *INPUT), ("Odd", "no attribute 'make'")),
    "import that fails": (("{tmp}/broken.py:net", *INPUT), ("ZeroDivisionError", "broken.py:2")),
    "import of what is not there": (("{tmp}/needs.py:net", *INPUT), ("nosuchthing", "install nosuchthing")),
    "syntax error": (("{tmp}/syntax.py:net", *INPUT), ("SyntaxError", "syntax.py:1")),
    "import that exits": (("{tmp}/exits.py:net", *INPUT), ("SystemExit", "exits.py:2")),
    "torchvision without operators": (("{tmp}/nms.py:net", *INPUT), ("torchvision::nms", "--preload")),
    "preload that fails": ((f"{NETS}:model", *INPUT, "--preload", "{tmp}/broken.py"), ("ZeroDivisionError",)),
    "not callable": ((f"{NETS}:number", *INPUT), ("type int, not a model",)),
    "callable that makes no model": ((f"{NETS}:no_model", *INPUT), ("returned an object of type dict",)),
    "callable that fails": ((f"{NETS}:fails", *INPUT), ("RuntimeError: the weights are not there", "nets.py:")),
    "callable that exits": ((f"{NETS}:quits", *INPUT), ("SystemExit",)),
    "callable that needs arguments": ((f"{NETS}:small", *INPUT), ("needs arguments: width", "--arg width=")),
    "unknown argument": ((f"{NETS}:small", *INPUT, "--arg", "widht=3"), ("'widht'", "did you mean width")),
    "argument without a value": ((f"{NETS}:small", *INPUT, "--arg", "width"), ("--arg name=value",)),
    "arguments for a model": ((f"{NETS}:model", *INPUT, "--arg", "width=3"), ("takes no arguments",)),
    "input that the model rejects": ((f"{NETS}:Odd", "--input", "1x4x8x8"), ("rejects the example inputs", "--input")),
    "missing input": ((f"{NETS}:Two", *INPUT), ("rejects the example inputs", "'y'")),
    "input of the wrong type": ((f"{NETS}:model", *INPUT, "--dtype", "int64"), ("rejects the example inputs",)),
    "model with a typo": (("{tmp}/typo.py:Net", *INPUT), ("no attribute 'lost'", "typo.py:7", "mend that line")),
    "no layer": ((f"{NETS}:without_layers", *INPUT), ("no convolution and no linear layer",)),
    "NaN weights": ((f"{NETS}:with_nan", *INPUT), ("0.weight", "NaN")),
    "wrapped already": ((f"{NETS}:wrapped", *INPUT), ("wrapped already",)),
    "budget above 1": ((f"{NETS}:model", *INPUT, "--budget", "2"), ("outside (0, 1]", "--budget 1/8")),
    "budget of 0": ((f"{NETS}:model", *INPUT, "--budget", "0"), ("outside (0, 1]",)),
    "budget below 0": ((f"{NETS}:model", *INPUT, "--budget=-1/8"), ("outside (0, 1]",)),
    "budget above 100 %": ((f"{NETS}:model", *INPUT, "--budget", "120%"), ("outside (0, 1]",)),
    "budget without a number": ((f"{NETS}:model", *INPUT, "--budget", "half"), ("not a number", "--budget 1/8")),
    "budget of 1/0": ((f"{NETS}:model", *INPUT, "--budget", "1/0"), ("not a number",)),
    "budget that is no number": ((f"{NETS}:model", *INPUT, "--budget", "nan"), ("not a number",)),
    "ignore that matches nothing": (
        (f"{NETS}:model", *INPUT, "--ignore", "layer9"),
        ("layer9", "matches no layer"),
    ),
    "leaf that matches nothing": ((f"{NETS}:model", *INPUT, "--leaf", "layer9"), ("layer9", "matches no submodule")),
    "svg in a directory that is not there": ((f"{NETS}:model", *INPUT, "--svg", "{tmp}/no/net.svg"), ("no directory",)),
    "svg that is a directory": ((f"{NETS}:model", *INPUT, "--svg", "{tmp}"), ("is a directory",)),
    "svg that is a device": ((f"{NETS}:model", *INPUT, "--svg", os.devnull), ("not a regular file",)),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse(shell: Shell, tmp_path: Path, case: str) -> None:
    (tmp_path / "broken.py").write_text("x = 0\n1 / x\n")
    (tmp_path / "needs.py").write_text("import nosuchthing\n")
    (tmp_path / "syntax.py").write_text("def net(:\n")
    (tmp_path / "exits.py").write_text("import sys\nsys.exit('usage')\n")
    (tmp_path / "nms.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    (tmp_path / "typo.py").write_text(
        "from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.kept = nn.Conv2d(3, 4, 1)\n    def forward(self, x):\n        return self.lost(x)\n"
    )
    arguments, expected = MISUSE[case]
    before = {path: path.read_text() for path in tmp_path.iterdir() if path.is_file()}
    words = [word.replace("{tmp}", str(tmp_path)) for word in arguments]
    if "--svg" not in words:
        words += ["--svg", str(tmp_path / "must_not_exist.svg")]
    code, out, err = shell("inspect", *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and "\n  fix: " in err and "Traceback" not in err
    for words_of_message in expected:
        assert words_of_message in err
    assert {path: path.read_text() for path in tmp_path.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("prune",),
        ("inspect",),
        ("inspect", f"{NETS}:model"),
        ("inspect", f"{NETS}:model", *INPUT, "--dtype", "complex"),
    ],
)
def test_usage_errors(shell: Shell, arguments: tuple[str, ...]) -> None:
    code, out, err = shell(*arguments)
    assert (code, out) == (2, "") and err.startswith("error: ")
    assert err.endswith(f"\n  fix: {' '.join(['fxprune', *arguments[:1]])} --help shows how it is written\n")


def test_a_misspelt_option(shell: Shell) -> None:
    code, out, err = shell(*RESNET8, "--jsn")
    assert (code, out) == (2, "") and err.startswith("error: fxprune inspect does not know --jsn: did you mean --json?")
    code, out, err = shell(*RESNET8, "--traceback")
    assert (code, out) == (2, "") and "--traceback goes before the command: fxprune --traceback inspect" in err


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [(("inspct",), "inspect"), (("inspect", f"{NETS}:model", *INPUT, "--dtype", "flot32"), "float32")],
)
def test_a_misspelt_choice(shell: Shell, arguments: tuple[str, ...], meant: str) -> None:
    code, out, err = shell(*arguments)
    assert (code, out) == (2, "") and f"invalid choice: '{arguments[-1]}'\n  fix: did you mean {meant}?\n" in err


def test_version_and_help(shell: Shell) -> None:
    assert shell("--version") == (0, f"fxprune {fxprune.__version__}\n", "")
    code, out, _ = shell("inspect", "--help")
    assert code == 0 and "torchvision.models:resnet18" in out


def test_interrupt_is_quiet(shell: Shell) -> None:
    assert shell("inspect", f"{NETS}:interrupted", *INPUT) == (130, "", "")


def test_an_error_of_our_own_is_reported_as_such(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("nobody thought of this")

    monkeypatch.setattr(fxprune, "inspect", broken)
    code, out, err = shell(*RESNET8)
    assert (code, out) == (1, "") and "KeyError" in err and "bug" in err and "Traceback" not in err
    with pytest.raises(KeyError):
        main(["--traceback", *RESNET8])


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = [sys.executable, "-m", "fxprune.cli", *RESNET8, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1
