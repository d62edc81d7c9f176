"""Pages of runs: finished ones, unfinished ones, old and damaged ones; and the commands that write them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxprune
from fxprune.analysis.inspection import plain
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
    data = of_run(finished)
    told = json.loads((finished / "report.json").read_text())
    assert data.missing == () and data.stage == "finished" and data.run == "first"
    assert data.layers is not None and data.after is not None and data.certificate is not None
    assert {name: left.channels for name, left in data.layers.items()} == told["widths"]
    assert data.after == {name: cost["after"] for name, cost in told["cost"].items()}
    for metric in ("volume", "flops", "params"):
        assert sum(getattr(left, metric) for left in data.layers.values()) == data.after[metric]
    assert data.joins is not None and set(data.joins) <= set(data.streams) == {"add"}
    assert data.certificate["error"] == told["error"] and data.certificate["batches"] == [2, 3]
    assert data.accuracy == told["accuracy"] and data.settings == told["settings"] and len(data.log) > 5
    json.dumps(plain(asdict(data)), allow_nan=False)


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

    monkeypatch.setattr(loop.Pruning, "prune" if stage == "pruning" else "fine_tune", stop)
    with pytest.raises(KeyboardInterrupt):
        _prune(tmp_path / "run", teacher="train")
    data = of_run(tmp_path / "run")
    assert data.stage == stage and data.inspection is not None and data.settings and data.accuracy["before"] >= 0
    assert (data.layers is None) == (stage == "pruning") == (data.after is None)
    assert data.certificate is None and len(data.missing) == 1 and stage.replace("ing", "") in data.missing[0]
    assert data.log and {row["phase"] for row in data.log} >= {"teacher"}
    code, _out, _ = shell("report", tmp_path / "run")
    assert code == 0
    assert "Not on this page" in (tmp_path / "run" / "report.html").read_text()


def test_a_run_in_a_loop_of_ones_own(tmp_path: Path) -> None:
    wrapped = fxprune.wrap(Net(), 1 / 2, example_inputs=torch.zeros(2, 1, 4, 4)).harden()
    run = Run.create(tmp_path / "own", wrapped)
    render(of_run(run.folder))
    run.write_hardened(wrapped)
    render(of_run(run.folder))
    run.write_slim(fxprune.export(wrapped, connectivity="dense"))
    data = of_run(run.folder)
    assert data.layers is not None and data.joins is not None and data.certificate is not None
    assert not any("report.json" in entry for entry in data.missing)
    render(data)


def test_options_that_a_method_had_are_told(run: Path, shell: Shell) -> None:
    for name in ("network.json", "report.json"):
        told = json.loads((run / name).read_text())
        told["settings"]["method_options"] = {"closes": False, "least": 0.7}
        (run / name).write_text(json.dumps(told))
    assert shell("report", run)[0] == 0
    assert "method_options</dt><dd>closes False, least 0.7</dd>" in (run / "report.html").read_text()


def test_an_old_run_says_what_is_missing(run: Path, shell: Shell) -> None:
    (run / "network.json").unlink()
    (run / "log.jsonl").unlink()
    data = of_run(run)
    assert data.inspection is None and data.after is not None and data.accuracy
    assert {entry.split()[0] for entry in data.missing} == {"network.json", "log.jsonl"}
    assert shell("report", run)[0] == 0


def _changed(file: Path, change: Callable[[Any], Any]) -> None:
    file.write_text(json.dumps(change(json.loads(file.read_text()))))


DAMAGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "another schema": ("network.json", lambda data: {**data, "schema": "other"}),
    "a list": ("network.json", lambda data: []),
    "no layers": ("network.json", lambda data: {**data, "inspection": {**data["inspection"], "layers": None}}),
    "an edge to nowhere": (
        "network.json",
        lambda data: {**data, "inspection": {**data["inspection"], "edges": [["stem", "nowhere"]]}},
    ),
    "a circle": (
        "network.json",
        lambda data: {**data, "inspection": {**data["inspection"], "edges": [["stem", "add"], ["add", "stem"]]}},
    ),
    "nodes of nothing": (
        "network.json",
        lambda data: {**data, "inspection": {**data["inspection"], "nodes": {"x": {}}, "edges": []}},
    ),
    "a short mask": (
        "network.json",
        lambda data: {**data, "living": {**data["living"], "layers": {"stem": {"mask": "1"}}}},
    ),
    "no masks": ("network.json", lambda data: {**data, "living": "none"}),
    "masks of words": ("network.json", lambda data: {**data, "living": {**data["living"], "joins": {"add": "abc"}}}),
    "joins of numbers": ("network.json", lambda data: {**data, "joins": {"add": 3}}),
    "a certificate of words": ("network.json", lambda data: {**data, "certificate": {"error": "small"}}),
    "settings of words": ("network.json", lambda data: {**data, "settings": "none"}),
    "a report of something else": ("report.json", lambda data: {"schema": "other"}),
    "costs of words": ("report.json", lambda data: {**data, "cost": "low", "accuracy": [], "settings": []}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_costs_a_part_of_the_page(run: Path, shell: Shell, damage: str) -> None:
    name, change = DAMAGES[damage]
    _changed(run / name, change)
    code, _, err = shell("report", run)
    assert (code, err) == (0, "")


def _with_node(inspection: dict[str, Any], **facts: Any) -> dict[str, Any]:
    nodes = inspection["nodes"]
    return {**inspection, "nodes": {**nodes, "stem": {**nodes["stem"], **facts}}}


def _with_layer(inspection: dict[str, Any], **facts: Any) -> dict[str, Any]:
    first, *others = inspection["layers"]
    return {**inspection, "layers": [{**first, **facts}, *others]}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: _with_node(data, source=3), "source is of type int"),
        (lambda data: _with_node(data, source=["net.py"]), "source is of type list"),
        (lambda data: _with_node(data, module={}), "module is of type dict"),
        (lambda data: _with_layer(data, channels=10**15), "channels of stem is not from 0 to 1,048,576"),
        (lambda data: _with_layer(data, channels=-1), "channels of stem is not from 0"),
        (lambda data: _with_layer(data, volume=10**400), "volume of stem is not from 0"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("living", [True, False])
def test_a_graph_that_cannot_be_drawn(
    run: Path, shell: Shell, change: Callable[[Any], Any], why: str, living: bool
) -> None:
    kept = {} if living else {"living": None, "joins": None}
    _changed(run / "network.json", lambda data: {**data, "inspection": change(data["inspection"]), **kept})
    code, _, err = shell("report", run)
    assert (code, err) == (0, "")
    (told,) = (entry for entry in of_run(run).missing if entry.startswith("the graph "))
    assert told.startswith("the graph cannot be shown, the file is damaged: ") and why in told and "\n" not in told


@pytest.mark.parametrize("name", ["network.json", "report.json", "log.jsonl"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b"null\n3\n"], ids=range(5))
def test_no_file_is_trusted(run: Path, shell: Shell, name: str, content: bytes) -> None:
    (run / name).write_bytes(content)
    code, _, err = shell("report", run)
    assert (code, err) == (0, "")
    if content:
        assert any(name in entry for entry in of_run(run).missing)


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
