"""``fxprune inspect``: what it prints, as text, JSON and a picture, and of which models."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch

import fxprune
from fxprune.commands.user_code import load_model
from tests.command_line import NETS, RESNET8, ROOT, Shell, in_a_process

ODD = ("inspect", f"{NETS}:Odd", "--input", "1x3x8x8")
TOKENS = ("inspect", f"{NETS}:Tokens", "--input", "1x3x16x16")
SVG = "{http://www.w3.org/2000/svg}"
pytestmark = pytest.mark.usefixtures("in_checkout")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("resnet8.txt", RESNET8),
        ("resnet8_budget.txt", (*RESNET8, "--budget", "1/500")),
        ("resnet8_tree.txt", (*RESNET8, "--tree")),
        ("odd.txt", ODD),
        ("tokens.txt", TOKENS),
        ("tokens_tree.txt", (*TOKENS, "--tree")),
        ("odd_ignored.txt", (*ODD, "--ignore", "stem", "--ignore", "tw*", "--leaf", "normed")),
    ],
)
def test_golden(shell: Shell, golden: Callable[[str, str], None], name: str, arguments: tuple[str, ...]) -> None:
    code, out, err = shell(*arguments)
    assert (code, err) == (0, "")
    golden(name, out)


def test_golden_json(shell: Shell, golden: Callable[[str, str], None]) -> None:
    code, out, err = shell(*RESNET8, "--json")
    assert (code, err) == (0, "")
    golden("resnet8.json", out.replace(str(ROOT), "CHECKOUT").replace("\\\\", "/"))


def test_a_pipe_gets_the_same_text(golden: Callable[[str, str], None]) -> None:
    done = in_a_process(*RESNET8, COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, "")
    golden("resnet8.txt", done.stdout)


@pytest.mark.parametrize("columns", ["40", "80", "100", "200"])
@pytest.mark.parametrize("form", [(), ("--tree",)])
def test_nothing_is_cut_off(shell: Shell, monkeypatch: pytest.MonkeyPatch, columns: str, form: tuple[str, ...]) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = shell(*ODD, *form)
    assert "\x1b" not in out and "…" not in out
    lines = out.splitlines()
    assert max(map(len, lines)) <= max(int(columns), 72)
    assert not any(line.endswith(" ") for line in lines)
    if not form:
        rows = [line.split()[0] for line in lines if line]
        for part in ("stem", "depthwise", "a_branch_with_quite_a_long_name"):
            assert part in "".join(rows)


def test_marks_in_the_table_are_resolved_below_it(shell: Shell) -> None:
    _, out, _ = shell(*ODD)
    table, _, below = out.partition("\nNotes\n")
    used = set(re.findall(r"\b[gfn]\d+\b", table))
    resolved = set(re.findall(r"^([gfn]\d+) ", below, flags=re.MULTILINE))
    assert used and used == resolved


def test_output_does_not_depend_on_where_the_checkout_is(shell: Shell) -> None:
    for form in ((), ("--tree",)):
        _, out, _ = shell(*ODD, *form)
        assert str(ROOT) not in out and "report/nets.py:" in out


def test_an_ascii_terminal_gets_ascii() -> None:
    done = in_a_process(*RESNET8, "--tree", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and done.stdout.isascii()


# ---------------------------------------------------------------- json


def test_json_holds_the_inspection(shell: Shell) -> None:
    code, out, err = shell(*ODD, "--json")
    assert (code, err) == (0, "")
    printed = json.loads(out)
    seen = fxprune.inspect(load_model(f"{NETS}:Odd", {}), torch.zeros(1, 3, 8, 8))
    assert printed.pop("schema") == "fxprune.inspect/1"
    assert printed.pop("budget") is None
    assert printed == json.loads(json.dumps(seen.as_dict()))


def test_json_answers_the_budget(shell: Shell) -> None:
    _, out, _ = shell(*RESNET8, "--json", "--budget", "0.2%")
    asked = json.loads(out)["budget"]
    assert asked["fraction"] == 0.002
    assert asked["reachable"]["params"] and not asked["reachable"]["volume"]


def test_every_json_key_is_documented(shell: Shell) -> None:
    _, out, _ = shell(*ODD, "--json", "--budget", "1/2")
    documented = set(re.findall(r"`([a-z_]+)`", (ROOT / "docs/reference/json.md").read_text(encoding="utf-8")))
    printed = json.loads(out)
    keys = set(printed) | set(printed["cost"]) | set(printed["budget"])
    for entry in (
        *printed["layers"],
        *printed["freezes"],
        *printed["leaves"],
        *printed["specialisations"],
        *printed["nodes"].values(),
    ):
        keys |= set(entry)
    assert keys <= documented, keys - documented


# ---------------------------------------------------------------- svg


def test_svg_has_a_node_per_convolution(shell: Shell, tmp_path: Path) -> None:
    code, out, err = shell(*RESNET8, "--svg", str(tmp_path / "net.svg"))
    assert code == 0 and "net.svg" in err and out.startswith("ResNet8")
    root = ET.parse(tmp_path / "net.svg").getroot()
    drawn = [group.attrib["data-layer"] for group in root.iter(f"{SVG}g") if "data-layer" in group.attrib]
    seen = json.loads(shell(*RESNET8, "--json")[1])
    assert sorted(drawn) == sorted(layer["name"] for layer in seen["layers"])
    assert len(list(root.iter(f"{SVG}g"))) >= len(seen["nodes"])
    assert [path.name for path in tmp_path.iterdir()] == ["net.svg"]


def test_svg_replaces_the_old_file_whole_or_not_at_all(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.svg"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        code, out, err = shell(*RESNET8, "--svg", str(path))
    assert (code, out) == (2, "") and "No space left" in err
    assert [entry.read_text() for entry in tmp_path.iterdir()] == ["old"]
    assert shell(*RESNET8, "--svg", str(path))[0] == 0
    assert path.read_text().startswith("<svg")


@pytest.mark.skipif(
    os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_svg_where_writing_is_not_allowed(shell: Shell, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    code, out, err = shell(*RESNET8, "--svg", str(tmp_path / "net.svg"))
    tmp_path.chmod(0o700)
    assert (code, out) == (2, "") and "cannot be written" in err


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
def test_targets(shell: Shell, target: str, more: tuple[str, ...]) -> None:
    code, out, err = shell("inspect", target, "--input", "1x3x8x8", *more)
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
def test_several_inputs(shell: Shell, inputs: tuple[str, ...]) -> None:
    code, out, err = shell("inspect", f"{NETS}:Two", *(word for text in inputs for word in ("--input", text)))
    assert (code, err) == (0, "")
    assert out.startswith("Two, inputs ") and "1x5x8x8" in out.splitlines()[0]


def test_what_the_model_prints_is_kept_out_of_the_json(shell: Shell) -> None:
    code, out, err = shell("inspect", f"{NETS}:chatty", "--input", "1x3x8x8", "--json")
    assert code == 0 and "printed by the model" in err
    json.loads(out)


def test_a_package_on_the_path_and_a_preloaded_file(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert shell(*arguments)[0] == 2
    assert shell(*arguments, "--preload", "first.py")[0] == 0


@pytest.mark.slow
def test_torchvision_beside_another_torch() -> None:
    pytest.importorskip("torchvision")
    arguments = ("inspect", "torchvision.models:resnet18", "--input", "1x3x64x64")
    assert in_a_process(*arguments, "--preload", "benchmarks/torchvision_ops.py").returncode == 0
    plain = in_a_process(*arguments)
    if plain.returncode:  # torchvision's extension does not load here
        assert plain.returncode == 2 and "--preload" in plain.stderr and "Traceback" not in plain.stderr
