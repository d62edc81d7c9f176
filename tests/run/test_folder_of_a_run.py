"""A run folder gives back what was put into it, and says plainly what is wrong with it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxprune
from fxprune.errors import FxPruneError, OptionError, RunError
from fxprune.gated.wrapped import Wrapped
from fxprune.run.folder import Run
from tests.exactness import call, error
from tests.save.artefact_nets import hardened, slim_of

NETS = ("resnet", "keyword_inputs", "siamese", "functional_norm", "parametrized")


@pytest.fixture
def wrapped() -> Wrapped:
    return hardened("chain")[0]


@pytest.fixture
def run(wrapped: Wrapped, tmp_path: Path) -> Run:
    made = Run.create(tmp_path / "run", wrapped)
    made.write_hardened(wrapped)
    made.write_slim(slim_of("chain")[0])
    return made


def change(run: Run, **facts: Any) -> None:
    file = run.folder / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **facts}))


@pytest.mark.parametrize("name", NETS)
def test_round_trip(name: str, tmp_path: Path) -> None:
    wrapped, example, _ = hardened(name)
    slim = slim_of(name)[0].eval()
    run = Run.create(tmp_path / "deep" / "run", wrapped)
    assert Run(run.folder).stage == "pruning" and Run(run.folder).cost is None
    run.write_hardened(wrapped)
    assert Run(run.folder).stage == "fine-tuning"
    with torch.no_grad():
        next(slim.parameters()).mul_(1.5)  # what fine-tuning does
    run.write_slim(slim)
    again = Run(str(run.folder))
    assert again.stage == "finished" and again.model == type(wrapped).__name__
    assert again.full_cost == wrapped.full_cost() and again.target == wrapped.target
    assert again.cost == {key: slim.report.after[key] for key in ("volume", "flops", "params")}
    assert error(call(again.hardened(), example), call(wrapped, example)) == 0
    assert error(call(again.slim(), example), call(slim, example)) == 0
    assert sorted(entry.name for entry in run.folder.iterdir()) == ["hardened", "network.json", "run.json", "slim"]


def test_nothing_is_pickled(run: Run) -> None:
    for part in ("hardened", "slim"):
        files = {file.name: file for file in (run.folder / part).iterdir()}
        assert set(files) == {"model.py", "weights.pt"}
        torch.load(files["weights.pt"], weights_only=True)


def test_examples(tmp_path: Path) -> None:
    wrapped, example, _ = hardened("keyword_inputs")
    run = Run(Run.create(tmp_path / "run", wrapped).folder)
    args, kwargs = run.example()
    assert args == () and {k: v.shape for k, v in kwargs.items()} == {k: v.shape for k, v in example.items()}
    assert kwargs["image"].dtype is torch.float64
    _, larger = run.example(batch=5, dtype=torch.float32)
    assert all(value.shape[0] == 5 and value.dtype is torch.float32 for value in larger.values())
    assert torch.equal(run.example(batch=5)[1]["image"], run.example(batch=5)[1]["image"])


def test_two_inputs_of_one_shape_differ(tmp_path: Path) -> None:
    """Equal ones would cancel in a siamese net."""
    left, right = Run.create(tmp_path / "run", hardened("siamese")[0]).example()[0]
    assert left.shape == right.shape and not torch.equal(left, right)


def test_inputs_of_all_kinds(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.table = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1), nn.Embedding(5, 4)

        def forward(self, pair: Any, index: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            x = self.b(self.a(pair[0] + pair[1]["y"]))
            return x * scale + self.table(index)[:, :, None, None]

    x = torch.zeros(2, 3, 4, 4)
    example = ([x, {"y": x}], torch.ones(2, dtype=torch.int64), 0.5)
    wrapped = fxprune.wrap(Net(), 1 / 2, example_inputs=example).eval().harden()
    run = Run.create(tmp_path / "run", wrapped)
    run.write_hardened(wrapped)
    (pair, index, scale), _ = Run(run.folder).example(batch=3)
    assert pair[1]["y"].shape == (3, 3, 4, 4) and index.tolist() == [0, 0, 0] and scale == 0.5
    assert error(call_with(run.hardened(), pair, index, scale), call_with(wrapped, pair, index, scale)) == 0


def call_with(net: nn.Module, *args: Any) -> Any:
    with torch.no_grad():
        return net(*args)


def test_an_input_that_cannot_be_written_down(wrapped: Wrapped, tmp_path: Path) -> None:
    from fxprune.run.folder import described

    with pytest.raises(OptionError, match=r"pathlib\..*Path"):
        described((torch.zeros(1), tmp_path))


def test_an_undecided_net_is_not_written(tmp_path: Path) -> None:
    wrapped = fxprune.wrap(nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2, 1)), 1 / 2)
    with pytest.raises(OptionError, match="example_inputs"):
        Run.create(tmp_path / "run", wrapped)
    wrapped(torch.zeros(1, 3, 4, 4))
    run = Run.create(tmp_path / "run", wrapped)
    with pytest.raises(OptionError, match="harden"):
        run.write_hardened(wrapped)
    with pytest.raises(RunError, match="still pruning"):
        run.hardened()
    with pytest.raises(RunError, match="still pruning"):
        run.slim()
    run.write_hardened(wrapped.harden())
    with pytest.raises(RunError, match="still fine-tuning"):
        run.slim()


def test_a_folder_in_use_is_left_alone(wrapped: Wrapped, run: Run, tmp_path: Path) -> None:
    before = {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()}
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("precious")
    for folder in (run.folder, tmp_path / "notes", run.folder / "run.json"):
        with pytest.raises(RunError, match="there already"):
            Run.create(folder, wrapped)
    assert before == {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()}


def test_a_run_that_is_cut_off_is_a_step_behind(
    wrapped: Wrapped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "run", wrapped)
    replace = os.replace

    def interrupted(source: Any, target: Any) -> None:
        if Path(target).name == "run.json":
            raise OSError(28, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(OSError, match="No space"):
            run.write_hardened(wrapped)
    again = Run(run.folder)
    assert again.stage == "pruning" and not list(run.folder.glob(".*"))
    again.write_hardened(wrapped)
    again.hardened()


def _truncated(run: Run) -> None:
    file = run.folder / "run.json"
    file.write_text(file.read_text()[:100])


DAMAGE: dict[str, tuple[Callable[[Run], Any], str]] = {
    "no json": (lambda run: (run.folder / "run.json").unlink(), "not the folder of a run"),
    "half of the json": (_truncated, "is damaged"),
    "not text": (lambda run: (run.folder / "run.json").write_bytes(b"\xff\xfe\x00"), "is damaged"),
    "another json": (lambda run: (run.folder / "run.json").write_text("[1, 2]"), "not written by fxprune"),
    "newer": (lambda run: change(run, schema="fxprune.run/7", fxprune="9.1"), "9.1, in format 7.*\n.*upgrade"),
    "no cost": (lambda run: change(run, full_cost=None), "is damaged"),
    "a cost less": (lambda run: change(run, full_cost={"volume": 1}), "is damaged"),
    "a cost of text": (lambda run: change(run, cost={"volume": "12"}), "is damaged"),
    "another cost": (lambda run: change(run, cost={"volume": 1, "flop": 1, "params": 1}), "damaged.*a cost of.*flop"),
    "no budget": (lambda run: change(run, budget={}), "damaged: the budget is empty"),
    "a budget of 3": (lambda run: change(run, budget={"volume": 3}), "damaged: budget 3"),
    "no shape": (lambda run: change(run, args={"tuple": [{"shape": [1, "x"], "dtype": "float32"}]}), "example input"),
    "no type": (lambda run: change(run, args={"tuple": [{"shape": [1], "dtype": "nn"}]}), "example input"),
    "no inputs": (lambda run: change(run, args=None), "is damaged"),
    "a stage": (lambda run: change(run, stage="lunch"), "is damaged"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_told(run: Run, case: str) -> None:
    damage, message = DAMAGE[case]
    damage(run)
    with pytest.raises(RunError, match=message) as caught:
        Run(run.folder)
    assert "\n  fix: " in str(caught.value)


def test_a_folder_below_a_file(wrapped: Wrapped, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(RunError, match="file is a file"):
        Run.create(tmp_path / "file" / "run", wrapped)


def test_nets_of_the_wrong_kind(wrapped: Wrapped, run: Run, tmp_path: Path) -> None:
    slim = slim_of("chain")[0]
    for net in (slim, nn.Conv2d(3, 2, 1)):
        with pytest.raises(OptionError, match=r"Run\.create takes a wrapped net, not a"):
            Run.create(tmp_path / "new", net)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="write_hardened takes a wrapped net, not a"):
            run.write_hardened(net)  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()
    for other in (wrapped, nn.Conv2d(3, 2, 1)):
        with pytest.raises(OptionError, match=r"write_slim takes what fxprune\.export returns, not a"):
            run.write_slim(other)  # type: ignore[arg-type]


def test_a_slim_net_of_another_run(wrapped: Wrapped, run: Run) -> None:
    file = run.folder / "slim" / "weights.pt"
    before = file.read_bytes()
    wider = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 31, 1))
    for name in ("siamese", "keyword_inputs", None):
        image = torch.zeros(1, 3, 8, 8)
        slim = slim_of(name)[0] if name else fxprune.export(fxprune.wrap(wider, 0.9, example_inputs=image))
        with pytest.raises(RunError, match="does not belong to the run"):
            run.write_slim(slim)
    assert file.read_bytes() == before


def test_the_slim_net_comes_after_the_hardened_one(wrapped: Wrapped, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", wrapped)
    with pytest.raises(RunError, match=r"write_hardened\(wrapped\) first"):
        run.write_slim(slim_of("chain")[0])


@pytest.mark.parametrize("batch", [0, -1, "4", 2.0, True])
def test_no_batch_size(run: Run, batch: Any) -> None:
    with pytest.raises(OptionError, match="no batch size"):
        run.example(batch=batch)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no folder"):
        Run(tmp_path / "nowhere")


def test_a_missing_or_damaged_part(run: Run) -> None:
    weights = run.folder / "slim" / "weights.pt"
    weights.write_bytes(weights.read_bytes()[:-200])
    with pytest.raises(FxPruneError, match="damaged"):
        run.slim()
    weights.unlink()
    with pytest.raises(FxPruneError, match=r"no weights\.pt"):
        run.slim()
    run.hardened()
