"""The command line: what it prints, and what it says when it is misused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch

import fxprune
from fxprune.cli import main
from fxprune.commands.target import load_model

ROOT = Path(__file__).parents[1]
NETS = "tests/report/nets.py"
RESNET8 = ("inspect", "examples/models.py:resnet8", "--input", "1x3x32x32")
ODD = ("inspect", f"{NETS}:Odd", "--input", "1x3x8x8")
SVG = "{http://www.w3.org/2000/svg}"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def in_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user in the checkout, at 80 columns."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(arguments)
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def _shell(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fxprune.cli", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


# ---------------------------------------------------------------- what it prints


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("resnet8.txt", RESNET8),
        ("resnet8_budget.txt", (*RESNET8, "--budget", "1/500")),
        ("resnet8_tree.txt", (*RESNET8, "--tree")),
        ("odd.txt", ODD),
        ("odd_ignored.txt", (*ODD, "--ignore", "stem", "--ignore", "tw*", "--leaf", "normed")),
    ],
)
def test_golden(run: Run, golden: Callable[[str, str], None], name: str, arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    golden(name, out)


def test_golden_json(run: Run, golden: Callable[[str, str], None]) -> None:
    code, out, err = run(*RESNET8, "--json")
    assert (code, err) == (0, "")
    golden("resnet8.json", out.replace(str(ROOT), "CHECKOUT").replace("\\\\", "/"))


def test_a_pipe_gets_the_same_text(golden: Callable[[str, str], None]) -> None:
    done = _shell(*RESNET8, COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, "")
    golden("resnet8.txt", done.stdout)


@pytest.mark.parametrize("columns", ["40", "80", "100", "200"])
@pytest.mark.parametrize("form", [(), ("--tree",)])
def test_nothing_is_cut_off(run: Run, monkeypatch: pytest.MonkeyPatch, columns: str, form: tuple[str, ...]) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = run(*ODD, *form)
    assert "\x1b" not in out and "…" not in out
    lines = out.splitlines()
    assert max(map(len, lines)) <= max(int(columns), 72)
    assert not any(line.endswith(" ") for line in lines)
    if not form:
        rows = [line.split()[0] for line in lines if line]
        for part in ("stem", "depthwise", "a_branch_with_quite_a_long_name"):
            assert part in "".join(rows)


def test_marks_in_the_table_are_resolved_below_it(run: Run) -> None:
    _, out, _ = run(*ODD)
    table, _, below = out.partition("\nNotes\n")
    used = set(re.findall(r"\b[gfn]\d+\b", table))
    resolved = set(re.findall(r"^([gfn]\d+) ", below, flags=re.MULTILINE))
    assert used and used == resolved


def test_output_does_not_depend_on_where_the_checkout_is(run: Run) -> None:
    for form in ((), ("--tree",)):
        _, out, _ = run(*ODD, *form)
        assert str(ROOT) not in out and "report/nets.py:" in out


def test_an_ascii_terminal_gets_ascii() -> None:
    done = _shell(*RESNET8, "--tree", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and done.stdout.isascii()


# ---------------------------------------------------------------- json


def test_json_holds_the_inspection(run: Run) -> None:
    code, out, err = run(*ODD, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    seen = fxprune.inspect(load_model(f"{NETS}:Odd", {}), torch.zeros(1, 3, 8, 8))
    assert found.pop("schema") == "fxprune.inspect/1"
    assert found.pop("budget") is None
    assert found == json.loads(json.dumps(seen.as_dict()))


def test_json_answers_the_budget(run: Run) -> None:
    _, out, _ = run(*RESNET8, "--json", "--budget", "0.2%")
    asked = json.loads(out)["budget"]
    assert asked["fraction"] == 0.002
    assert asked["reachable"]["params"] and not asked["reachable"]["volume"]


def test_every_json_key_is_documented(run: Run) -> None:
    _, out, _ = run(*ODD, "--json", "--budget", "1/2")
    documented = set(re.findall(r"`([a-z_]+)`", (ROOT / "docs/reference/json.md").read_text(encoding="utf-8")))
    found = json.loads(out)
    keys = set(found) | set(found["cost"]) | set(found["budget"])
    for entry in (
        *found["layers"],
        *found["freezes"],
        *found["leaves"],
        *found["specialisations"],
        *found["nodes"].values(),
    ):
        keys |= set(entry)
    assert keys <= documented, keys - documented


# ---------------------------------------------------------------- svg


def test_svg_has_a_node_per_convolution(run: Run, tmp_path: Path) -> None:
    code, out, err = run(*RESNET8, "--svg", str(tmp_path / "net.svg"))
    assert code == 0 and "net.svg" in err and out.startswith("ResNet8")
    root = ET.parse(tmp_path / "net.svg").getroot()
    drawn = [group.attrib["data-layer"] for group in root.iter(f"{SVG}g") if "data-layer" in group.attrib]
    seen = json.loads(run(*RESNET8, "--json")[1])
    assert sorted(drawn) == sorted(layer["name"] for layer in seen["layers"])
    assert len(list(root.iter(f"{SVG}g"))) >= len(seen["nodes"])
    assert [path.name for path in tmp_path.iterdir()] == ["net.svg"]


def test_svg_replaces_the_old_file_whole_or_not_at_all(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.svg"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        code, out, err = run(*RESNET8, "--svg", str(path))
    assert (code, out) == (2, "") and "No space left" in err
    assert [entry.read_text() for entry in tmp_path.iterdir()] == ["old"]
    assert run(*RESNET8, "--svg", str(path))[0] == 0
    assert path.read_text().startswith("<svg")


# ---------------------------------------------------------------- targets and inputs


@pytest.mark.parametrize(
    ("target", "more"),
    [
        (f"{NETS}:small", ("--arg", "width=8")),
        (f"{NETS}:model", ()),
        ("torch.nn:Conv2d", ("--arg", "in_channels=3", "--arg", "out_channels=4", "--arg", "kernel_size=1")),
        (str(ROOT / NETS) + ":small", ("--arg", "width=8")),
    ],
)
def test_targets(run: Run, target: str, more: tuple[str, ...]) -> None:
    code, out, err = run("inspect", target, "--input", "1x3x8x8", *more)
    assert (code, err) == (0, "") and "volume" in out


@pytest.mark.parametrize(
    "inputs",
    [
        ("1x3x8x8", "1x5x8x8"),
        ("x=1x3x8x8", "y=1x5x8x8"),
        ("y=1x5x8x8", "x=1x3x8x8"),
        ("1x3x8x8", "y=1x5x8x8"),
    ],
)
def test_several_inputs(run: Run, inputs: tuple[str, ...]) -> None:
    code, out, err = run("inspect", f"{NETS}:Two", *(word for text in inputs for word in ("--input", text)))
    assert (code, err) == (0, "")
    assert out.startswith("Two, inputs ") and "1x5x8x8" in out.splitlines()[0]


def test_what_the_model_prints_is_kept_out_of_the_json(run: Run) -> None:
    code, out, err = run("inspect", f"{NETS}:chatty", "--input", "1x3x8x8", "--json")
    assert code == 0 and "printed by the model" in err
    json.loads(out)


def test_a_package_on_the_path_and_a_preloaded_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first.py").write_text("import builtins\nbuiltins.fxprune_test_width = 4\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "zoo.py").write_text(
        "from torch import nn\n"
        "class Zoo:\n"
        "    @staticmethod\n"
        "    def net():\n"
        "        return nn.Sequential(nn.Conv2d(3, fxprune_test_width, 1), nn.Conv2d(4, 2, 1))\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = ("inspect", "package.zoo:Zoo.net", "--input", "1x3x8x8")
    assert run(*arguments)[0] == 2
    assert run(*arguments, "--preload", "first.py")[0] == 0


@pytest.mark.slow
def test_torchvision_beside_another_torch() -> None:
    pytest.importorskip("torchvision")
    arguments = ("inspect", "torchvision.models:resnet18", "--input", "1x3x64x64")
    assert _shell(*arguments, "--preload", "benchmarks/torchvision_ops.py").returncode == 0
    plain = _shell(*arguments)
    if plain.returncode:  # torchvision's extension does not load here
        assert plain.returncode == 2 and "--preload" in plain.stderr and "Traceback" not in plain.stderr


# ---------------------------------------------------------------- misuse

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
    "no convolution": ((f"{NETS}:without_convolution", *INPUT), ("no convolution",)),
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
        ("layer9", "matches no convolution"),
    ),
    "leaf that matches nothing": ((f"{NETS}:model", *INPUT, "--leaf", "layer9"), ("layer9", "matches no submodule")),
    "svg in a directory that is not there": ((f"{NETS}:model", *INPUT, "--svg", "{tmp}/no/net.svg"), ("no directory",)),
    "svg that is a directory": ((f"{NETS}:model", *INPUT, "--svg", "{tmp}"), ("is a directory",)),
    "svg that is a device": ((f"{NETS}:model", *INPUT, "--svg", os.devnull), ("not a regular file",)),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse(run: Run, tmp_path: Path, case: str) -> None:
    (tmp_path / "broken.py").write_text("x = 0\n1 / x\n")
    (tmp_path / "needs.py").write_text("import nosuchthing\n")
    (tmp_path / "syntax.py").write_text("def net(:\n")
    (tmp_path / "exits.py").write_text("import sys\nsys.exit('usage')\n")
    (tmp_path / "nms.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    arguments, expected = MISUSE[case]
    before = {path: path.read_text() for path in tmp_path.iterdir() if path.is_file()}
    words = [word.replace("{tmp}", str(tmp_path)) for word in arguments]
    if "--svg" not in words:
        words += ["--svg", str(tmp_path / "must_not_exist.svg")]
    code, out, err = run("inspect", *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and "\n  fix: " in err and "Traceback" not in err
    for words_of_message in expected:
        assert words_of_message in err
    assert {path: path.read_text() for path in tmp_path.iterdir() if path.is_file()} == before


@pytest.mark.skipif(
    os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_svg_where_writing_is_not_allowed(run: Run, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    code, out, err = run(*RESNET8, "--svg", str(tmp_path / "net.svg"))
    tmp_path.chmod(0o700)
    assert (code, out) == (2, "") and "cannot be written" in err


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
def test_usage_errors(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "") and err.startswith("error: ")
    assert err.endswith(f"\n  fix: {' '.join(['fxprune', *arguments[:1]])} --help shows how it is written\n")


def test_a_misspelt_option(run: Run) -> None:
    code, out, err = run(*RESNET8, "--jsn")
    assert (code, out) == (2, "") and err.startswith("error: fxprune inspect does not know --jsn: did you mean --json?")
    code, out, err = run(*RESNET8, "--traceback")
    assert (code, out) == (2, "") and "--traceback goes before the command: fxprune --traceback inspect" in err


def test_version_and_help(run: Run) -> None:
    assert run("--version") == (0, f"fxprune {fxprune.__version__}\n", "")
    code, out, _ = run("inspect", "--help")
    assert code == 0 and "torchvision.models:resnet18" in out


def test_interrupt_is_quiet(run: Run) -> None:
    assert run("inspect", f"{NETS}:interrupted", *INPUT) == (130, "", "")


def test_an_error_of_our_own_is_reported_as_such(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("nobody thought of this")

    monkeypatch.setattr(fxprune, "inspect", broken)
    code, out, err = run(*RESNET8)
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
