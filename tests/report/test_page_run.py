"""Pages of runs: finished ones, unfinished ones, old and damaged ones; and the commands that write them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxprune
from fxprune.report.facts import of_run
from fxprune.report.page import render, write_page
from fxprune.run.folder import Run
from fxprune.train import loop
from tests.command_line import Shell

NETS = Path(__file__).parent / "nets.py"


class Net(nn.Module):
    """A stem and a residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.block = nn.ModuleDict({"conv1": nn.Conv2d(8, 8, 3, padding=1), "conv2": nn.Conv2d(8, 8, 3, padding=1)})
        self.fc = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = x + self.block["conv2"](torch.relu(self.block["conv1"](x)))
        out: torch.Tensor = self.fc(x.mean((2, 3)))
        return out


def _prune(folder: Path, **more: Any) -> fxprune.Pruned:
    torch.manual_seed(0)
    batches = [(torch.randn(4, 1, 4, 4), torch.randint(0, 3, (4,))) for _ in range(3)]
    options: dict[str, Any] = {"epochs": (2, 1, 0), "progress": False, **more}
    return fxprune.prune(Net(), batches, batches, budget=1 / 2, run=folder, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "first"
    _prune(folder)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "first")
    return tmp_path / "first"


def test_a_finished_run_has_everything(finished: Path) -> None:
    found = of_run(finished, "0")
    told = json.loads((finished / "report.json").read_text())
    assert found.missing == () and found.stage == "finished" and found.run == "first"
    assert found.layers is not None and found.after is not None and found.certificate is not None
    assert {name: left.channels for name, left in found.layers.items()} == told["widths"]
    assert found.after == {name: cost["after"] for name, cost in told["cost"].items()}
    for metric in ("volume", "flops", "params"):
        assert sum(getattr(left, metric) for left in found.layers.values()) == found.after[metric]
    assert found.joins is not None and set(found.joins) <= set(found.streams) == {"add"}
    assert found.certificate["error"] == told["error"] and found.certificate["batches"] == [2, 3]
    assert found.accuracy == told["accuracy"] and found.settings == told["settings"] and len(found.log) > 5
    json.dumps(found.as_dict(), allow_nan=False)


def test_prune_writes_the_page(finished: Path) -> None:
    assert (finished / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_a_page_that_fails_does_not_cost_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(folder: Path) -> None:
        raise KeyError("page")

    monkeypatch.setattr(fxprune.api, "write_page", fails)
    assert _prune(tmp_path / "run").after is not None
    assert not (tmp_path / "run" / "report.html").exists() and Run(tmp_path / "run").stage == "finished"


def test_the_command_writes_where_it_is_told(run: Path, tmp_path: Path, shell: Shell) -> None:
    assert shell("report", run, "-o", tmp_path / "page.html") == (0, f"wrote {tmp_path / 'page.html'}\n", "")
    (run / "report.html").unlink()
    code, _out, _ = shell("report", run)
    assert code == 0 and (run / "report.html").read_text() == (tmp_path / "page.html").read_text()
    assert write_page(run) == run / "report.html"


def test_no_code_of_the_run_is_executed(run: Path, shell: Shell) -> None:
    for part in ("slim", "hardened"):
        (run / part / "model.py").write_text("raise SystemExit('executed')")
    assert shell("report", run)[0] == 0


@pytest.mark.parametrize("stage", ["pruning", "fine-tuning"])
def test_an_unfinished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell, stage: str) -> None:
    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop._Pruning, "_prune" if stage == "pruning" else "_fine_tune", stop)
    with pytest.raises(KeyboardInterrupt):
        _prune(tmp_path / "run", teacher="train")
    found = of_run(tmp_path / "run", "0")
    assert found.stage == stage and found.inspection is not None and found.settings and found.accuracy["before"] >= 0
    assert (found.layers is None) == (stage == "pruning") == (found.after is None)
    assert found.certificate is None and len(found.missing) == 1 and stage.replace("ing", "") in found.missing[0]
    assert found.log and {row["phase"] for row in found.log} >= {"teacher"}
    code, _out, _ = shell("report", tmp_path / "run")
    assert code == 0
    assert "Not on this page" in (tmp_path / "run" / "report.html").read_text()


def test_a_run_in_a_loop_of_ones_own(tmp_path: Path) -> None:
    wrapped = fxprune.wrap(Net(), 1 / 2, example_inputs=torch.zeros(2, 1, 4, 4)).harden()
    run = Run.create(tmp_path / "own", wrapped)
    render(of_run(run.folder, "0"))
    run.write_hardened(wrapped)
    render(of_run(run.folder, "0"))
    run.write_slim(fxprune.export(wrapped, connectivity="dense"))
    found = of_run(run.folder, "0")
    assert found.layers is not None and found.joins is not None and found.certificate is not None
    assert not any("report.json" in entry for entry in found.missing)
    render(found)


def test_an_old_run_says_what_is_missing(run: Path, shell: Shell) -> None:
    (run / "network.json").unlink()
    (run / "log.jsonl").unlink()
    found = of_run(run, "0")
    assert found.inspection is None and found.after is not None and found.accuracy
    assert {entry.split()[0] for entry in found.missing} == {"network.json", "log.jsonl"}
    assert shell("report", run)[0] == 0


def _changed(file: Path, change: Callable[[Any], Any]) -> None:
    file.write_text(json.dumps(change(json.loads(file.read_text()))))


DAMAGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "another schema": ("network.json", lambda found: {**found, "schema": "other"}),
    "a list": ("network.json", lambda found: []),
    "no layers": ("network.json", lambda found: {**found, "inspection": {**found["inspection"], "layers": None}}),
    "an edge to nowhere": (
        "network.json",
        lambda found: {**found, "inspection": {**found["inspection"], "edges": [["stem", "nowhere"]]}},
    ),
    "a circle": (
        "network.json",
        lambda found: {**found, "inspection": {**found["inspection"], "edges": [["stem", "add"], ["add", "stem"]]}},
    ),
    "nodes of nothing": (
        "network.json",
        lambda found: {**found, "inspection": {**found["inspection"], "nodes": {"x": {}}, "edges": []}},
    ),
    "a short mask": (
        "network.json",
        lambda found: {**found, "living": {**found["living"], "layers": {"stem": {"mask": "1"}}}},
    ),
    "no masks": ("network.json", lambda found: {**found, "living": "none"}),
    "masks of words": ("network.json", lambda found: {**found, "living": {**found["living"], "joins": {"add": "abc"}}}),
    "joins of numbers": ("network.json", lambda found: {**found, "joins": {"add": 3}}),
    "a certificate of words": ("network.json", lambda found: {**found, "certificate": {"error": "small"}}),
    "settings of words": ("network.json", lambda found: {**found, "settings": "none"}),
    "a report of something else": ("report.json", lambda found: {"schema": "other"}),
    "costs of words": ("report.json", lambda found: {**found, "cost": "low", "accuracy": [], "settings": []}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_costs_a_part_of_the_page(run: Path, shell: Shell, damage: str) -> None:
    name, change = DAMAGES[damage]
    _changed(run / name, change)
    code, _, err = shell("report", run)
    assert (code, err) == (0, "")


@pytest.mark.parametrize("name", ["network.json", "report.json", "log.jsonl"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b"null\n3\n"], ids=range(5))
def test_no_file_is_trusted(run: Path, shell: Shell, name: str, content: bytes) -> None:
    (run / name).write_bytes(content)
    code, _, err = shell("report", run)
    assert (code, err) == (0, "")
    if content:
        assert any(name in entry for entry in of_run(run, "0").missing)


def test_what_is_no_run_is_an_error(tmp_path: Path, run: Path, shell: Shell) -> None:
    for folder, why in ((tmp_path / "nothing", "there is no folder"), (tmp_path, "it has no run.json")):
        code, out, err = shell("report", folder)
        assert (code, out) == (2, "") and why in err and "fix:" in err
    (run / "run.json").write_text("{")
    code, _, err = shell("report", run)
    assert code == 2 and "is damaged" in err and "fix:" in err


def test_where_nothing_can_be_written(run: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    for path, why in (
        (tmp_path, "is a directory"),
        (tmp_path / "no" / "page.html", "there is no directory"),
        (run / "run.json", "is a part of the run"),
        (run / "slim" / "page.html", "is a part of the run"),
    ):
        code, out, err = shell("report", run, "-o", path)
        assert (code, out) == (2, "") and why in err and "fix:" in err

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    code, out, err = shell("report", run, "-o", tmp_path / "page.html")
    assert (code, out) == (2, "") and "No space left" in err
    assert {path: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_inspect_writes_a_page(tmp_path: Path, shell: Shell) -> None:
    page = tmp_path / "odd.html"
    code, out, err = shell("inspect", f"{NETS}:Odd", "--input", "1x3x8x8", "--html", page, "--budget", "1/8")
    assert code == 0 and "odd.html" in err and out.startswith("Odd")
    text = page.read_text(encoding="utf-8")
    for word in (
        "torch.renorm",
        "a_branch_with_quite_a_long_name",
        "Opaque",
        "pooling block",
        "Asked about a budget of 1/8",
    ):
        assert word in text, word
    code, _, err = shell("inspect", f"{NETS}:Odd", "--input", "1x3x8x8", "--html", tmp_path)
    assert code == 2 and "--html" in err and "is a directory" in err


def test_the_page_is_part_of_the_package() -> None:
    text = (Path(__file__).parents[2] / "setup.cfg").read_text()
    assert "fxprune.report = page.html.j2, graph.svg.j2, page.css, page.js" in text
