"""Files with code in them, paths that are none, and what the system does not allow."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import fxprune
from fxprune.cli import main
from fxprune.errors import RunError
from fxprune.run.folder import Run
from tests.robustness.runs import X, net, pruned, told

# ------------------------------------------------------------ other people's code


class Payload:
    """Unpickled, it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("plain", [False, True], ids=["torch.save", "pickle"])
def test_a_payload_is_not_run(runs: Path, folder: Path, tmp_path: Path, plain: bool) -> None:
    harm = tmp_path / "harm"

    def write(file: Path) -> None:
        if plain:
            file.write_bytes(pickle.dumps({"weights": Payload(harm)}))
        else:
            torch.save({"weights": Payload(harm)}, file)

    shutil.copytree(runs / "finished" / "slim", tmp_path / "slim")
    write(tmp_path / "slim" / "weights.pt")
    told(lambda: fxprune.load(tmp_path / "slim"), "weights.pt")
    write(folder / "checkpoint.pt")
    told(lambda: pruned(folder), "checkpoint.pt cannot be read")
    write(tmp_path / "logits.pt")
    data = TensorDataset(X, torch.tensor([0, 1]))
    told(lambda: fxprune.CachedTeacher(net(), data, tmp_path / "logits.pt"), "logits.pt cannot be read")
    assert not harm.exists()


def test_source_is_run_only_if_the_folder_is_whole(runs: Path, tmp_path: Path) -> None:
    """What docs/how-to/deploy.md promises: only what fxprune wrote, and nothing of a folder that is damaged."""
    harm, slim = tmp_path / "harm", tmp_path / "slim"
    shutil.copytree(runs / "finished" / "slim", slim)
    text = (slim / "model.py").read_text()
    attack = f"import pathlib; pathlib.Path({str(harm)!r}).touch()\n"
    told_of = {
        attack + text: "was not written by fxprune, so it is not run",
        text.replace("import torch\n", f"import torch\n{attack}", 1): "it is not what was written",
        text + attack: "it is not what was written",
    }
    for forged, said in told_of.items():
        (slim / "model.py").write_text(forged)
        told(lambda: fxprune.load(slim), "model.py", said)
    mine = text.replace("import torch\n", f"import torch\n{attack}", 1).rstrip().rpartition("\n")[0]
    (slim / "model.py").write_text(mine)  # changed on purpose
    weights = (slim / "weights.pt").read_bytes()
    (slim / "weights.pt").write_bytes(weights[:-100])
    told(lambda: fxprune.load(slim), "weights.pt is damaged")
    assert not harm.exists()
    (slim / "weights.pt").write_bytes(weights)
    fxprune.load(slim)
    assert harm.exists()


# ------------------------------------------------------------ what the system does not allow

PATHS: dict[str, tuple[Any, str]] = {
    "a number": (3, "is no path"),
    "nothing": (None, "is no path"),
    "bytes": (b"run", "is no path"),
    "a zero byte": ("a\0b", "is no path"),
    "a name too long": ("x" * 300, "File name too long"),
}


@pytest.mark.parametrize("case", PATHS)
def test_what_is_no_path(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.chdir(tmp_path)
    path, said = PATHS[case]
    slim = fxprune.load(runs / "finished" / "slim")
    graph = fxprune.export(fxprune.wrap(slim, 1.0, example_inputs=X), verify=False)
    wrapped = fxprune.wrap(net(), 1 / 2, example_inputs=X)
    calls: dict[str, Callable[[], Any]] = {
        "load": lambda: fxprune.load(path),
        "save": lambda: fxprune.save(graph, path),
        "Run": lambda: Run(path),
        "Run.create": lambda: Run.create(path, wrapped),
        "CachedTeacher": lambda: fxprune.CachedTeacher(net(), TensorDataset(X, torch.tensor([0, 1])), path),
        "prune": lambda: pruned(path),
    }
    for name, call in calls.items():
        if name != "prune" or path is not None:  # which keeps nothing
            told(call, said)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def as_somebody() -> Iterator[Path]:
    """A folder of root's, seen by somebody who is not: what is forbidden to others is forbidden."""
    if not hasattr(os, "geteuid"):
        pytest.skip("permissions are those of POSIX")
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    me = os.geteuid()
    yield root
    os.seteuid(me) if me == 0 else None
    for path in root.rglob("*"):
        path.chmod(0o755)
    shutil.rmtree(root)


def test_what_must_not_be_read_or_written(runs: Path, as_somebody: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs / "cut", as_somebody / "run")
    shutil.copytree(runs / "finished", as_somebody / "finished")
    shutil.copytree(runs / "finished" / "slim", as_somebody / "closed")
    for path in as_somebody.rglob("*"):
        path.chmod(0o755)
    files = ["run/checkpoint.pt", "run/run.json", "finished/run.json", "finished/slim/model.py", "closed"]
    for name in files:
        (as_somebody / name).chmod(0)
    graph = fxprune.export(fxprune.wrap(net(), 1 / 2, example_inputs=X), verify=False)
    if os.geteuid() == 0:
        os.seteuid(65534)
    else:
        as_somebody.chmod(0o555)
    told(lambda: fxprune.load(as_somebody / "closed"), "Permission denied")
    told(lambda: fxprune.load(as_somebody / "finished" / "slim"), "Permission denied")
    told(lambda: Run(as_somebody / "finished"), "Permission denied")
    told(lambda: pruned(as_somebody / "run"), "Permission denied")
    told(lambda: pruned(as_somebody / "new"), "Permission denied")
    told(lambda: fxprune.save(graph, as_somebody / "new"), "Permission denied")
    code = main(["export", str(as_somebody / "finished"), "--source", str(as_somebody / "new")])
    assert code == 2 and "Permission denied" in capsys.readouterr().err


def test_modules_of_a_broken_source_are_forgotten(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "finished" / "slim", tmp_path / "slim")
    (tmp_path / "slim" / "weights.pt").write_bytes(b"")
    before = set(sys.modules)
    told(lambda: fxprune.load(tmp_path / "slim"), "weights.pt is damaged")
    assert set(sys.modules) == before


def test_an_error_is_a_run_error(folder: Path) -> None:
    (folder / "checkpoint.pt").write_bytes(b"")
    with pytest.raises(RunError):
        pruned(folder)
