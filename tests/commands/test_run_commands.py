"""``fxprune export`` and ``fxprune check``: what they write, find, print and refuse."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxprune
from fxprune.run.folder import Run
from tests.command_line import Shell
from tests.exactness import call, error
from tests.save.artefact_nets import hardened

needs_onnx = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("onnx", "onnxruntime", "onnxscript"))),
    reason="ONNX is not installed",
)


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with nets beside it: the final one, the one before fine-tuning, and another one."""
    root = tmp_path_factory.mktemp("nets")
    wrapped, _, _ = hardened("resnet", 0.5, seed=2)
    wrapped = copy.deepcopy(wrapped).float()
    run = Run.create(root / "run", wrapped)
    run.write_hardened(wrapped)
    slim = fxprune.export(wrapped, verify=False)
    fxprune.save(slim, root / "before")
    for name, factor in (("other", 1.001), ("after", 1.01)):
        with torch.no_grad():
            for parameter in slim.parameters():
                parameter.mul_(factor)
        fxprune.save(slim, root / name)
    run.write_slim(slim)
    unfinished = Run.create(root / "unfinished", wrapped)
    unfinished.write_hardened(wrapped)
    return root


@pytest.fixture
def root(nets: Path, tmp_path: Path) -> Path:
    shutil.copytree(nets, tmp_path, dirs_exist_ok=True)
    return tmp_path


def files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


# -------------------------------------------------------------------- check


@pytest.mark.parametrize(("net", "part", "code"), [("after", "slim", 0), ("before", "hardened", 0), ("other", None, 1)])
def test_check_tells_which_net_it_is(shell: Shell, nets: Path, net: str, part: str | None, code: int) -> None:
    returned, out, err = shell("check", nets / net, "--against", nets / "run", "--budget", "1", "--json")
    said = json.loads(out)
    assert (returned, err) == (code, "") and said["equals"] == part and said["ok"] is (code == 0)
    assert said["schema"] == "fxprune.check/1" and said["cost"] == Run(nets / "run").cost
    far = said["differences"]
    assert 0 <= min(far.values()) < 1e-5 if part else min(far.values()) > 1e-4
    assert len(said["batches"]) == 2
    code, out, _ = shell("check", nets / net, "--against", nets / "run", "--budget", "1")
    assert ("DIFFERENT" in out, "NOT FINE" in out, code) == (part is None, part is None, returned)


def test_check_counts_the_net_and_not_what_files_claim(shell: Shell, root: Path) -> None:
    cost, full = Run(root / "run").cost, Run(root / "run").full_cost
    assert cost is not None
    facts = json.loads((root / "run" / "run.json").read_text())
    (root / "run" / "run.json").write_text(json.dumps({**facts, "cost": dict.fromkeys(cost, 1)}))
    source = root / "after" / "model.py"
    text = re.sub(r"^# volume .*", "# volume 1 1 100%", source.read_text(), flags=re.MULTILINE)
    source.write_text(text.rstrip().rpartition("\n")[0])  # without its digest
    for metric in cost:
        for share, code in ((cost[metric], 0), (cost[metric] - 1, 1)):
            budget = f"{share}/{full[metric]}"
            arguments = ("check", root / "after", "--against", root / "run", "--metric", metric, "--budget", budget)
            returned, out, err = shell(*arguments, "--json")
            (limit,) = json.loads(out)["budget"]
            assert (returned, err) == (code, "") and limit["ok"] is (code == 0) and limit["metric"] == metric
    assert ("OVER BUDGET" in shell(*arguments)[1]) and json.loads(out)["cost"] == cost


def test_the_run_has_a_budget_of_its_own(shell: Shell, root: Path) -> None:
    code, out, _ = shell("check", root / "after", "--against", root / "run", "--json")
    (limit,) = json.loads(out)["budget"]
    assert (limit["metric"], limit["fraction"]) == ("volume", 0.5) and limit["ok"] is (code == 0)
    facts = json.loads((root / "run" / "run.json").read_text())
    (root / "run" / "run.json").write_text(json.dumps({**facts, "budget": {"volume": 1, "flops": 0.001}}))
    code, out, _ = shell("check", root / "after", "--against", root / "run", "--json")
    assert code == 1 and [limit["ok"] for limit in json.loads(out)["budget"]] == [True, False]
    assert shell("check", root / "after", "--against", root / "run", "--metric", "volume")[0] == 0


def test_a_budget_of_time_is_not_checked_and_said_so(shell: Shell, root: Path) -> None:
    facts = json.loads((root / "run" / "run.json").read_text())
    (root / "run" / "run.json").write_text(json.dumps({**facts, "budget": {"volume": 1, "latency": 0.5}}))
    code, out, _ = shell("check", root / "after", "--against", root / "run", "--json")
    said = json.loads(out)
    assert code == 0 and [limit["metric"] for limit in said["budget"]] == ["volume"]
    assert said["not_checked"] == ["latency"]
    assert "latency: not checked" in shell("check", root / "after", "--against", root / "run")[1]


def test_an_unfinished_run_has_its_hardened_net(shell: Shell, nets: Path) -> None:
    code, out, _ = shell("check", nets / "before", "--against", nets / "unfinished", "--budget", "1", "--json")
    assert code == 0 and list(json.loads(out)["differences"]) == ["hardened"]


def test_a_net_of_another_kind_differs(shell: Shell, nets: Path, tmp_path: Path) -> None:
    wrapped, _, _ = hardened("keyword_inputs")
    fxprune.save(fxprune.export(wrapped, verify=False), tmp_path / "net")
    code, out, _ = shell("check", tmp_path / "net", "--against", nets / "run", "--json")
    said = json.loads(out)
    assert code == 1 and not said["ok"] and "fails at batch size" in said["problem"] and said["cost"] is None
    code, out, _ = shell("check", tmp_path / "net", "--against", nets / "run")
    assert code == 1 and "cannot be compared" in out


class Cast(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[1](self[0](x).float())


class OneBatch(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[1](self[0](x)).reshape(2, 2, 48)


@pytest.mark.parametrize(("kind", "batches"), [(Cast, [2, 3]), (OneBatch, [2])])
def test_nets_that_do_not_take_everything(shell: Shell, tmp_path: Path, kind: Any, batches: list[int]) -> None:
    """One cannot run in float64, the other only with the batch size of its example."""
    net = kind(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2, 1)).eval()
    wrapped = fxprune.wrap(net, 1 / 2, example_inputs=torch.zeros(2, 3, 6, 8)).harden()
    run = Run.create(tmp_path / "run", wrapped)
    run.write_hardened(wrapped)
    run.write_slim(fxprune.export(wrapped, verify=False))
    code, out, _ = shell("export", run.folder, "--source", tmp_path / "slim", "--fuse")
    assert code == 0 and "folded 0 batch norms" in out
    code, out, err = shell("check", tmp_path / "slim", "--against", run.folder, "--json")
    said = json.loads(out)
    assert (code, err, said["equals"], said["batches"]) == (0, "", "slim", batches)


# -------------------------------------------------------------------- export


def test_source_is_a_copy(shell: Shell, nets: Path, tmp_path: Path) -> None:
    code, out, err = shell("export", nets / "run", "--source", tmp_path / "slim")
    assert (code, err) == (0, "") and out.startswith("wrote ")
    assert [file.read_bytes() for file in sorted((tmp_path / "slim").iterdir())] == [
        file.read_bytes() for file in sorted((nets / "run" / "slim").iterdir())
    ]
    assert shell("export", nets / "run", "--source", tmp_path / "slim")[0] == 0  # an older one of ours


def test_fused_source(shell: Shell, nets: Path, tmp_path: Path) -> None:
    code, out, _ = shell("export", nets / "run", "--source", tmp_path / "slim", "--fuse", "--json")
    said = json.loads(out)
    assert code == 0 and said["fused"] > 3 and said["onnx"] is None and said["schema"] == "fxprune.export/1"
    assert "BatchNorm" not in (tmp_path / "slim" / "model.py").read_text()
    run = Run(nets / "run")
    given = run.example(3, torch.float32)[0]
    assert error(call(fxprune.load(tmp_path / "slim"), given), call(run.slim(), given)) < 1e-5
    code, out, _ = shell("check", tmp_path / "slim", "--against", nets / "run", "--budget", "1", "--json")
    checked = json.loads(out)
    assert (code, checked["equals"]) == (0, "slim")
    _check_folded(checked["cost"], run.cost)


def _check_folded(cost: dict[str, int], of_run: dict[str, int] | None) -> None:
    """The same but for the weights of norms, which have become part of their layers."""
    assert of_run is not None and cost["params"] < of_run["params"]
    assert {**cost, "params": 0} == {**of_run, "params": 0}


@needs_onnx
def test_onnx(shell: Shell, nets: Path, tmp_path: Path) -> None:
    file = tmp_path / "slim.onnx"
    code, out, err = shell("export", nets / "run", "--onnx", file, "--source", tmp_path / "slim", "--json")
    said = json.loads(out)
    assert (code, err) == (0, "") and said["onnx"]["error"] < 1e-5 and len(said["onnx"]["batches"]) == 2
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["slim", "slim.onnx"]
    code, out, err = shell("check", file, "--against", nets / "run", "--budget", "1", "--json")
    checked = json.loads(out)
    assert (code, err) == (0, "") and checked["equals"] == "slim"
    _check_folded(checked["cost"], Run(nets / "run").cost)
    assert shell("check", file, "--against", nets / "unfinished", "--budget", "1")[0] == 1
    file.write_bytes(file.read_bytes()[:500])
    code, out, err = shell("check", file, "--against", nets / "run")
    assert (code, out) == (2, "") and "slim.onnx" in err


@needs_onnx
def test_onnx_without_a_runtime(shell: Shell, nets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _hide(monkeypatch, "onnxruntime")
    code, out, _ = shell("export", nets / "run", "--onnx", tmp_path / "slim.onnx")
    assert code == 0 and "not tried" in out and "pip install onnxruntime" in out
    code, out, err = shell("check", tmp_path / "slim.onnx", "--against", nets / "run")
    assert (code, out) == (2, "") and "needs onnxruntime" in err and "pip install onnxruntime" in err


def test_onnx_that_is_not_installed(shell: Shell, nets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _hide(monkeypatch, "onnx", "onnxscript")
    code, out, err = shell("export", nets / "run", "--onnx", tmp_path / "slim.onnx", "--source", tmp_path / "slim")
    assert (code, out) == (2, "") and "onnx and onnxscript" in err and "pip install onnx onnxscript" in err
    assert not list(tmp_path.iterdir())


def _hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, package=None: None if name in names else find(name, package)
    )


# -------------------------------------------------------------------- misuse

MISUSE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # name: (arguments, what the message must contain); @ is the folder of everything
    "nothing to export": (("export", "@/run"), ("--onnx FILE",)),
    "export of no folder": (("export", "@/nowhere", "--source", "@/new"), ("no folder", "nowhere")),
    "export of a saved net": (("export", "@/after", "--source", "@/new"), ("not the folder of a run",)),
    "report on a folder of runs": (("report", "@"), ("not the folder of a run", "/began or ")),
    "export of an unfinished run": (("export", "@/unfinished", "--source", "@/new"), ("no slim net", "fine-tuning")),
    "export of damaged weights": (("export", "@/broken", "--source", "@/new"), ("weights.pt is damaged",)),
    "export of damaged json": (("export", "@/torn", "--source", "@/new"), ("run.json is damaged",)),
    "export into a foreign folder": (("export", "@/run", "--source", "@/foreign"), ("did not write", "notes.txt")),
    "fused into a foreign folder": (("export", "@/run", "--source", "@/foreign", "--fuse"), ("did not write",)),
    "export over a file": (("export", "@/run", "--source", "@/foreign/notes.txt"), ("is a file",)),
    "export into the run": (("export", "@/run", "--source", "@/run/slim", "--fuse"), ("part of the run",)),
    "export over the run's json": (("export", "@/run", "--onnx", "@/run/run.json"), ("part of the run",)),
    "onnx in no folder": (("export", "@/run", "--onnx", "@/no/slim.onnx"), ("no directory",)),
    "onnx that is a folder": (("export", "@/run", "--onnx", "@/foreign"), ("is a directory", "slim.onnx")),
    "check of no folder": (("check", "@/nowhere", "--against", "@/run"), ("no folder",)),
    "check of no file": (("check", "@/nowhere.onnx", "--against", "@/run"), ("no file",)),
    "check of a foreign folder": (("check", "@/foreign", "--against", "@/run"), ("no model.py",)),
    "check of damaged weights": (("check", "@/broken/slim", "--against", "@/run"), ("weights.pt is damaged",)),
    "check against no run": (("check", "@/after", "--against", "@/after"), ("not the folder of a run",)),
    "check against a newer run": (("check", "@/after", "--against", "@/newer"), ("format 9", "upgrade")),
    "check against damaged weights": (("check", "@/after", "--against", "@/broken"), ("weights.pt is damaged",)),
    "check against a run that began": (("check", "@/after", "--against", "@/began"), ("no hardened net yet",)),
    "check against a mixed-up run": (("check", "@/after", "--against", "@/mixed"), ("own shapes",)),
    "a budget above 1": (("check", "@/after", "--against", "@/run", "--budget", "2"), ("outside (0, 1]",)),
    "a metric alone": (("check", "@/after", "--against", "@/run", "--metric", "flops"), ("no budget of flops",)),
    "no metric": (("check", "@/after", "--against", "@/two", "--budget", "1/2"), ("--metric volume",)),
    "a tolerance of 0": (("check", "@/after", "--against", "@/run", "--tolerance", "0"), ("--tolerance 1e-4",)),
}  # fmt: skip


@pytest.mark.parametrize("case", MISUSE)
def test_misuse(shell: Shell, root: Path, case: str) -> None:
    for name, facts in {
        "torn": None, "broken": {}, "newer": {"schema": "fxprune.run/9"}, "began": {"stage": "pruning"},
        "two": {"budget": {"volume": 1, "flops": 1}},
        "mixed": {"args": {"tuple": [{"shape": [2, 5, 8, 8], "dtype": "float32"}]}},
    }.items():  # fmt: skip
        shutil.copytree(root / "run", root / name)
        text = (root / name / "run.json").read_text()
        (root / name / "run.json").write_text(text[:80] if facts is None else json.dumps({**json.loads(text), **facts}))
    weights = root / "broken" / "slim" / "weights.pt"
    weights.write_bytes(weights.read_bytes()[:-100])
    (root / "foreign").mkdir()
    (root / "foreign" / "notes.txt").write_text("precious")
    before = files(root)
    arguments, expected = MISUSE[case]
    code, out, err = shell(*(word.replace("@", str(root)) for word in arguments))
    assert (code, out) == (2, ""), out
    assert err.startswith("error: ") and "\n  fix: " in err and "Traceback" not in err
    for words in expected:
        assert words in err
    assert files(root) == before


def test_usage(shell: Shell, nets: Path) -> None:
    for arguments in (("check", nets / "after"), ("export",), ("check", nets / "after", "--against")):
        assert shell(*arguments)[0] == 2
    for command in ("export", "check"):
        code, out, _ = shell(command, "--help")
        assert code == 0 and "examples:" in out


def test_every_json_key_is_documented(shell: Shell, nets: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/json.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`([a-z_]+)`", page))
    checked = json.loads(shell("check", nets / "after", "--against", nets / "run", "--json")[1])
    exported = json.loads(shell("export", nets / "run", "--source", tmp_path / "slim", "--json")[1])
    facts = json.loads((nets / "run" / "run.json").read_text())
    keys = {*checked, *checked["budget"][0], *exported, *facts, "file", "error", "batches"}
    assert keys <= documented, keys - documented


def test_one_batch_norm_is_one(shell: Shell, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 2, 1)).eval()
    wrapped = fxprune.wrap(net, 1 / 2, example_inputs=torch.zeros(1, 3, 4, 4)).harden()
    run = Run.create(tmp_path / "run", wrapped)
    run.write_hardened(wrapped)
    run.write_slim(fxprune.export(wrapped))
    assert "folded 1 batch norm\n" in shell("export", run.folder, "--source", tmp_path / "slim", "--fuse")[1]
