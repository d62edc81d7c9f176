"""``fxprune.prune``: what it returns, writes and refuses."""

from __future__ import annotations

import csv
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fxprune
from fxprune.errors import DataError, InputError, OptionError, RunError
from fxprune.run.folder import Run
from fxprune.train.data import Batch, Batches, example_of
from fxprune.train.measure import evaluate, reestimate
from tests.train.small_run import loaders, resnet8, small_run

CPU = torch.device("cpu")
Options = dict[str, Any]
QUICK: Options = {"budget": 1 / 2, "epochs": (1, 0, 0), "progress": False}


def tiny(classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, classes))


def pairs(count: int = 3, classes: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(4, 1, 4, 4), torch.randint(0, classes, (4,))) for _ in range(count)]


# ------------------------------------------------------------ a real run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> fxprune.Pruned:
    torch.manual_seed(0)
    train, val = loaders()
    folder = tmp_path_factory.mktemp("real") / "run"
    return fxprune.prune(
        resnet8(8), train, val, budget=1 / 4, epochs=(4, 2, 1), teacher="train", run=folder, progress=False
    )


def test_handwriting_is_still_read(made: fxprune.Pruned) -> None:
    found = made.report["accuracy"]
    assert found["before"] > 0.9 and found["after"] > 0.8
    assert (found["before"], found["after"]) == (made.before, made.after)
    assert found["hardened"] == found["exported"]


def test_on_budget(made: fxprune.Pruned) -> None:
    volume = made.report["cost"]["volume"]
    assert 0.98 / 4 <= volume["after"] / volume["before"] <= 1 / 4
    assert made.report["error"] < 1e-9


def test_the_run_folder_is_complete(made: fxprune.Pruned) -> None:
    assert made.run is not None
    run = Run(made.run)
    assert run.stage == "finished" and run.cost is not None
    assert run.cost["volume"] == made.report["cost"]["volume"]["after"]
    picture = torch.randn(2, 3, 16, 16)
    assert torch.equal(run.slim()(picture), made.slim(picture))
    assert run.hardened()(picture).shape == (2, 10)
    assert json.loads((made.run / "report.json").read_text()) == made.report


def test_the_logs_tell_the_same(made: fxprune.Pruned) -> None:
    assert made.run is not None
    found = [json.loads(line) for line in (made.run / "log.jsonl").read_text().splitlines()]
    with (made.run / "log.csv").open() as opened:
        table = list(csv.DictReader(opened))
    assert list(table[0]) == ["phase", "epoch", "step", "loss", "accuracy", "V", "b", "lr", "seconds"]
    assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in found] == table
    ends = [row for row in found if row["accuracy"] is not None]
    assert [(row["phase"], row["epoch"]) for row in ends] == [
        *[("teacher", n) for n in range(1, 6)], *[("prune", n) for n in range(1, 5)],
        *[("fine-tune", n) for n in range(1, 4)],
    ]  # fmt: skip
    pruning = [row for row in found if row["phase"] == "prune"]
    assert pruning[-1]["b"] == pytest.approx(made.report["cost"]["volume"]["before"] / 4)
    assert pruning[-1]["V"] <= 1.1 * pruning[-1]["b"]
    rates = {row["phase"]: row["lr"] for row in found}  # the last of each phase
    assert rates == {"teacher": pytest.approx(1e-4), "prune": 1e-3, "fine-tune": pytest.approx(1e-4)}


# ------------------------------------------------------------ other tasks and data


def test_the_model_is_untouched() -> None:
    net = tiny()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    fxprune.prune(net, pairs(), pairs(), teacher="train", **QUICK)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert net.training


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = nn.Conv2d(1, 4, 3), nn.Conv2d(1, 4, 3), nn.Conv2d(4, 2, 1)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"map": self.out(torch.relu(self.left(a)) + torch.relu(self.right(b)))}


@pytest.mark.parametrize("named", [False, True], ids=["tuple", "dict"])
def test_several_inputs_and_a_loss_of_ones_own(named: bool) -> None:
    """Regression of maps from two pictures, with a teacher; larger is better, so the metric is a negative error."""

    def batch() -> Any:
        a, b = torch.randn(3, 1, 6, 6), torch.randn(3, 1, 6, 6)
        return ({"a": a, "b": b} if named else (a, b)), torch.randn(3, 2, 4, 4)

    def loss(output: Any, target: torch.Tensor, taught: Any) -> torch.Tensor:
        return (output["map"] - target).square().mean() + (output["map"] - taught["map"]).square().mean()

    def metric(output: Any, target: torch.Tensor) -> float:
        return -float((output["map"] - target).square().mean())

    data = [batch() for _ in range(3)]
    made = fxprune.prune(TwoInputs(), data, data, loss=loss, metric_fn=metric, **{**QUICK, "epochs": (2, 1, 0)})
    assert made.after is not None and made.after < 0


def test_segmentation_maps() -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
    data = [(torch.randn(2, 1, 4, 4), torch.randint(0, 3, (2, 4, 4)))]
    made = fxprune.prune(net, data, data, **QUICK)
    assert 0 <= made.after <= 1  # type: ignore[operator]


def test_a_metric_that_collects() -> None:
    class Largest:
        def reset(self) -> None:
            self.seen = 0.0

        def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
            self.seen = max(self.seen, float(target.max()))

        def compute(self) -> torch.Tensor:
            return torch.tensor(self.seen)

    data = [(torch.zeros(2, 1, 4, 4), torch.tensor([n, 0])) for n in (1, 7, 3)]
    assert evaluate(tiny(), Batches(data, "val"), Largest(), CPU) == 7.0


def test_the_mean_counts_samples_not_batches() -> None:
    data = [(torch.zeros(3, 1), torch.zeros(3)), (torch.zeros(1, 1), torch.ones(1))]
    assert evaluate(nn.Identity(), Batches(data, "val"), lambda output, target: target.mean(), CPU) == 0.25


def test_batch_norm_statistics_are_plain_averages() -> None:
    net = nn.Sequential(nn.BatchNorm1d(2, momentum=0.3), nn.Dropout(0.9), nn.BatchNorm1d(2))
    data = [(torch.randn(5, 2) + number, torch.zeros(5)) for number in range(4)]
    assert reestimate(net, Batches(data, "train"), CPU, seed=0) == 4
    inputs = torch.stack([x for x, _ in data])
    torch.testing.assert_close(net[0].running_mean, inputs.mean((0, 1)))
    torch.testing.assert_close(net[0].running_var, inputs.var(1).mean(0))
    torch.testing.assert_close(net[2].running_mean, torch.zeros(2), atol=1e-6, rtol=0)  # no dropout
    assert net[0].momentum == 0.3 and not net[0].training


def test_persistent_workers_and_own_generators_repeat_an_epoch() -> None:
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.arange(8.0), torch.arange(8))
    loader = DataLoader(data, 2, shuffle=True, generator=generator, num_workers=1, persistent_workers=True)
    batches = Batches(loader, "train")
    assert batches.generators == [generator]
    first, again = ([batch.target.tolist() for _, batch in batches.epoch(0, "key")] for _ in range(2))
    other = [batch.target.tolist() for _, batch in batches.epoch(1, "key")]
    assert first == again != other
    loader._iterator = None


def test_an_example_is_a_few_samples() -> None:
    batch = Batch([torch.zeros(8, 3), {"scale": torch.tensor(2.0)}], torch.zeros(8))
    found = example_of(batch)
    assert isinstance(found, tuple) and found[0].shape == (2, 3) and found[1]["scale"].shape == ()


def test_an_example_has_the_batch_size_that_is_asked_for() -> None:
    batch = Batch([torch.arange(3.0)], torch.zeros(3))
    assert example_of(batch, 1)[0].tolist() == [0] and example_of(batch, 5)[0].tolist() == [0, 1, 2, 0, 1]
    made = fxprune.prune(tiny(), pairs(), None, **{**QUICK, "batch_size": 7}).slim
    assert made(torch.zeros(3, *next(iter(pairs()))[0].shape[1:])).shape[0] == 3
    for wrong in (0, -1, 1.5, True, "8"):
        with pytest.raises(OptionError, match="is no number of samples"):
            fxprune.prune(tiny(), pairs(), pairs(), **{**QUICK, "batch_size": wrong})


# ------------------------------------------------------------ what is said


def test_plain_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    fxprune.prune(tiny(), pairs(), pairs(), **{**QUICK, "progress": True})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[::2]] == ["before pruning", "pruned, before fine-tuning"]
    assert lines[1].startswith("prune       1/1  loss ") and "cost " in lines[1] and "accuracy " in lines[1]


def test_bars_on_a_terminal() -> None:
    console = Console(force_terminal=True, width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    fxprune.prune(tiny(), pairs(), pairs(), **{**QUICK, "progress": console})
    assert "prune" in console.export_text()
    console.file.close()


def test_tensorboard_events_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int | None) -> None:
            assert folder == str(tmp_path / "tensorboard")

        def add_scalar(self, name: str, value: float, step: int) -> None:
            seen.append((name, value, step))

        def close(self) -> None:
            pass

    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    fxprune.prune(tiny(), pairs(), pairs(), run=tmp_path, **QUICK)
    assert {name for name, _, _ in seen} >= {"prune/loss", "prune/V", "prune/b", "prune/accuracy"}


# ------------------------------------------------------------ misuse


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epochs": (1, 2)}, r"epochs=\(1, 2\)"),
        ({"epochs": (0, 1, 1)}, r"epochs=\(0, 1, 1\)"),
        ({"epochs": 3}, "epochs=3"),
        ({"method": "magic"}, "method='magic' is unknown"),
        ({"teacher": "trian"}, "teacher='trian' is unknown"),
        ({"teacher": 3}, "teacher is of type int"),
        ({"noise": "loud"}, "noise='loud'"),
        ({"schedule": "later"}, "schedule='later'"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"loss": 3}, "loss is of type int"),
        ({"optimizer": torch.optim.SGD(tiny().parameters(), lr=0.1)}, "optimizer is of type SGD: it holds"),
        ({"optimizer": "adam"}, "optimizer='adam' is a text\n.*lambda groups"),
        ({"checkpoint_minutes": -1}, "checkpoint_minutes=-1"),
        ({"budget": 2}, "budget 2"),
        ({"budget": 0.01}, "budget"),
        ({"teacher": nn.Identity(), "loss": lambda output, target: output.mean()}, "the loss takes no output of it"),
        ({"teacher": tiny(classes=7)}, "student's output is 4x3, the teacher's 4x7"),
        ({"loss": lambda output, target: output}, "the loss returned a tensor of"),
        ({"alpha": 1.5, "teacher": "train"}, "alpha=1.5 is not between 0 and 1"),
        ({"temperature": 0}, "temperature=0 is not above 0"),
        ({"optimizer": lambda groups: None}, "optimizer returned NoneType"),
        ({"optimizer": lambda groups: torch.optim.SGD(tiny().parameters(), lr=0.1)}, "holds none of the parameters"),
        ({"device": "nowhere"}, "device='nowhere'"),
        ({"ignore": [1]}, "ignore: 1 is not the name of a layer"),
        ({"ignore": "nobody"}, r"ignore: 'nobody' matches no layer\n.*such as '0'"),
        ({"leaf": 5}, "leaf: 5 is not"),
    ],
    ids=lambda given: re.sub(r" at 0x\w+", "", str(given)),
)
def test_options(changes: Options, said: str) -> None:
    with pytest.raises(OptionError, match=said) as found:
        fxprune.prune(tiny(), pairs(), pairs(), **{**QUICK, **changes})
    assert found.value.fix


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ([], "train is empty"),
        (iter([]), "does not say how many batches"),
        (5, "gives no batches"),
        ([torch.zeros(2, 1, 4, 4)], "a batch of train is a Tensor, not two"),
        ([(1, 2, 3)], "a batch of train has 3 parts"),
    ],
)
def test_data(train: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        fxprune.prune(tiny(), train, None, **QUICK)


def test_data_that_fails_or_ends_early() -> None:
    class Short(list[Any]):
        def __len__(self) -> int:
            return 5

    with pytest.raises(DataError, match="says that it has 5 batches and gave 3"):
        fxprune.prune(tiny(), Short(pairs()), None, **QUICK)

    class Broken(list[Any]):
        def __iter__(self) -> Any:
            raise self[0]
            yield

    missing = FileNotFoundError("no picture 0.png")
    in_worker = RuntimeError(f"Caught it in DataLoader worker process 0.\nTraceback\nFileNotFoundError: {missing}")
    for error in (missing, in_worker):
        with pytest.raises(DataError, match="batch 0 of train cannot be fetched: FileNotFoundError: no picture"):
            fxprune.prune(tiny(), Broken([error]), None, **QUICK)


def test_outputs_and_labels_that_do_not_fit() -> None:
    floats = [(x, torch.rand(4)) for x, _ in pairs()]
    with pytest.raises(OptionError, match=r"labels of 4 \(float32\) do not fit an output of 4x3"):
        fxprune.prune(tiny(), floats, None, **QUICK)
    two = [((x, x), torch.zeros(3, 2, 2, 2).long()) for x, _ in pairs()]
    with pytest.raises(OptionError, match="the model's output is of type dict"):
        fxprune.prune(TwoInputs(), two, two, teacher=None, **QUICK)
    with pytest.raises(InputError):
        fxprune.prune(tiny(), [(torch.zeros(2, 5, 4, 4), torch.zeros(2).long())], None, **QUICK)


def test_labels_of_no_class() -> None:
    wrong = [(x, y + 5) for x, y in pairs()]
    for train, val in ((wrong, None), (pairs(), wrong)):
        with pytest.raises(OptionError, match=r"there is a label \d, but the output has 3 classes"):
            fxprune.prune(tiny(), train, val, **QUICK)
    with pytest.raises(OptionError, match=r"labels of 4 \(int32\) do not fit"):
        fxprune.prune(tiny(), [(x, y.int()) for x, y in pairs()], None, **QUICK)


def test_batches_that_the_model_or_the_metric_cannot_take() -> None:
    later = [*pairs(), (torch.randn(4, 1, 9, 9), torch.zeros(4).long())]
    with pytest.raises(DataError, match="batch 3 of train does not fit the model, the teacher or the loss"):
        fxprune.prune(tiny(), later, None, **QUICK)
    with pytest.raises(DataError, match="batch 0 of val does not fit the model or metric_fn: TypeError"):
        fxprune.prune(tiny(), pairs(), [({"picture": torch.zeros(1)}, torch.zeros(1).long())], **QUICK)
    with pytest.raises(DataError, match="batch 0 of val does not fit the model or metric_fn"):
        fxprune.prune(tiny(), pairs(), pairs(), metric_fn=lambda output, target: None, **QUICK)


def test_what_is_no_model() -> None:
    for given in (3, nn.Conv2d):
        with pytest.raises(fxprune.FxPruneError, match=r"expected a torch.nn.Module"):
            fxprune.prune(given, pairs(), None, **QUICK)  # type: ignore[arg-type]


def test_a_mistake_before_the_first_step_leaves_the_folder_free(tmp_path: Path) -> None:
    wrong: Options = {"loss": lambda output, target: output}
    with pytest.raises(OptionError):
        fxprune.prune(tiny(), pairs(), None, run=tmp_path, seed=1, **wrong, **QUICK)
    made = fxprune.prune(tiny(), pairs(), None, run=tmp_path, seed=2, **QUICK)
    assert made.report["settings"]["seed"] == 2


class Own(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_a_net_that_no_folder_can_keep_is_refused_before_it_is_trained(tmp_path: Path) -> None:
    net = nn.Sequential(Own(), tiny())
    with pytest.raises(RunError, match=r"keeps its nets as source .*test_prune\.Own"):
        fxprune.prune(net, pairs(), None, run=tmp_path / "run", leaf=[Own], **QUICK)
    assert not (tmp_path / "run").exists()
    assert fxprune.prune(net, pairs(), None, leaf=[Own], **QUICK).slim is not None


def test_numbers_of_numpy(tmp_path: Path) -> None:
    given = {"alpha": np.float64(0.5), "method": "lzr", "method_options": {"strength": np.float32(1)}}
    made = fxprune.prune(tiny(), pairs(), None, run=tmp_path / "run", **QUICK, **given)
    assert made.report["settings"]["alpha"] == 0.5


def test_a_folder_that_cannot_be_written() -> None:
    for folder in ("/proc/none", 3):
        with pytest.raises(fxprune.FxPruneError, match=r"cannot be written|run=3 is no path"):
            fxprune.prune(tiny(), pairs(), None, run=folder, **QUICK)  # type: ignore[arg-type]


def test_an_optimizer_whose_state_cannot_be_kept(tmp_path: Path) -> None:
    class Odd(torch.optim.SGD):
        def state_dict(self) -> Any:
            return {**super().state_dict(), "started": Path("now")}

    with pytest.raises(fxprune.FxPruneError, match=r"\['optimizer'\]\['started'\] is of type pathlib"):
        small_run(tmp_path, teacher=None, optimizer=lambda groups: Odd(groups, lr=0.1))
