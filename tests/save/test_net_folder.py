"""The folder of a saved net is whole or absent, and whatever is wrong with it is said plainly."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import fxprune
from fxprune import FxPruneError
from fxprune.errors import ExportError
from tests.save.artefact_nets import hardened, slim_of


@pytest.fixture
def slim() -> fx.GraphModule:
    return slim_of("chain")[0]


def test_an_older_one_is_replaced(slim: fx.GraphModule, tmp_path: Path) -> None:
    folder = fxprune.save(slim, tmp_path / "slim")
    (folder / "__pycache__").mkdir()
    before = (folder / "model.py").read_text()
    other, _, _ = slim_of("resnet")
    assert fxprune.save(other, str(folder)) == folder
    assert (folder / "model.py").read_text() != before
    assert sorted(entry.name for entry in folder.iterdir()) == ["model.py", "weights.pt"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["slim"]


def test_an_empty_folder_is_used_and_parents_are_made(slim: fx.GraphModule, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "new" / "deeper"):
        loaded = fxprune.load(fxprune.save(slim, folder)).state_dict()
        assert loaded.keys() == slim.state_dict().keys()
        assert all(torch.equal(loaded[name], value) for name, value in slim.state_dict().items())


def test_a_link_is_followed(slim: fx.GraphModule, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    fxprune.save(slim, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "model.py").is_file()


@pytest.mark.parametrize("files", [["notes.txt"], ["model.py"], ["weights.pt"], ["model.py", "weights.pt"]])
def test_a_foreign_folder_is_left_alone(slim: fx.GraphModule, files: list[str], tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).write_text("precious")
    with pytest.raises(FxPruneError, match="did not write") as caught:
        fxprune.save(slim, tmp_path)
    assert files[0] in str(caught.value) and "fix:" in str(caught.value)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == files
    assert all((tmp_path / name).read_text() == "precious" for name in files)


def test_files_beside_ours_are_not_lost(slim: fx.GraphModule, tmp_path: Path) -> None:
    folder = fxprune.save(slim, tmp_path / "slim")
    (folder / "labels.txt").write_text("cat")
    with pytest.raises(ExportError, match=r"labels\.txt"):
        fxprune.save(slim, folder)
    assert (folder / "labels.txt").read_text() == "cat"


def test_a_file_is_not_replaced(slim: fx.GraphModule, tmp_path: Path) -> None:
    (tmp_path / "slim").write_text("precious")
    with pytest.raises(ExportError, match="is a file"):
        fxprune.save(slim, tmp_path / "slim")
    assert (tmp_path / "slim").read_text() == "precious"


@pytest.mark.parametrize("moment", ["weights", "rename"])
def test_what_fails_halfway_changes_nothing(
    slim: fx.GraphModule, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fxprune.save(slim, tmp_path / "slim")
    before = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    other, _, _ = slim_of("resnet")

    def full(*_: Any) -> None:
        raise OSError("no space left")

    renames = []

    def rename(source: Any, target: Any, really: Any = os.replace) -> None:
        renames.append(source)
        if len(renames) == 2:
            raise OSError("no space left")
        really(source, target)

    with monkeypatch.context() as patch, pytest.raises(ExportError, match="cannot be written: no space"):
        patch.setattr(*((torch, "save", full) if moment == "weights" else (os, "replace", rename)))
        fxprune.save(other, folder)
    assert {entry.name: entry.read_bytes() for entry in folder.iterdir()} == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["slim"]


# -------------------------------------------------------------------- loading


def test_missing(slim: fx.GraphModule, tmp_path: Path) -> None:
    with pytest.raises(FxPruneError, match="there is no folder"):
        fxprune.load(tmp_path / "nothing")
    for name in ("model.py", "weights.pt"):
        folder = fxprune.save(slim, tmp_path / name.partition(".")[0])
        (folder / name).unlink()
        with pytest.raises(FxPruneError, match=f"has no {name}"):
            fxprune.load(folder)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_truncated(slim: fx.GraphModule, share: float, tmp_path: Path) -> None:
    for name in ("weights.pt", "model.py"):
        folder = fxprune.save(slim, tmp_path / name.partition(".")[0])
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(FxPruneError, match=r"is damaged|was not written by fxprune") as caught:
            fxprune.load(folder)
        assert name in str(caught.value)


def test_flipped_bits(slim: fx.GraphModule, tmp_path: Path) -> None:
    """In the tensors themselves, where torch does not look."""
    folder = fxprune.save(slim, tmp_path / "slim")
    content = bytearray((folder / "weights.pt").read_bytes())
    weight = slim.get_parameter("0.weight").detach().numpy().tobytes()
    content[content.index(weight)] ^= 1
    (folder / "weights.pt").write_bytes(content)
    with pytest.raises(FxPruneError, match="checksum"):
        fxprune.load(folder)


def test_weights_of_another_net(slim: fx.GraphModule, tmp_path: Path) -> None:
    folder = fxprune.save(slim, tmp_path / "slim")
    torch.save({"0.weight": torch.zeros(1)}, folder / "weights.pt")
    with pytest.raises(FxPruneError, match="does not belong"):
        fxprune.load(folder)


def test_new_weights_may_take_the_place_of_the_old(slim: fx.GraphModule, tmp_path: Path) -> None:
    folder = fxprune.save(slim, tmp_path / "slim")
    with torch.no_grad():
        slim.get_parameter("0.weight").add_(1)
    torch.save(slim.state_dict(), folder / "weights.pt")
    assert torch.equal(fxprune.load(folder).get_parameter("0.weight"), slim.get_parameter("0.weight"))


def test_other_peoples_code_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("raise SystemExit(3)")
    torch.save({}, tmp_path / "weights.pt")
    with pytest.raises(FxPruneError, match="not written by fxprune, so it is not run"):
        fxprune.load(tmp_path)


# -------------------------------------------------------------------- what cannot be written


@pytest.mark.parametrize(
    ("name", "named"), [("untraceable", "'2' is a tests.models.python.Data"), ("wrapped_function", "odd_function")]
)
def test_code_that_is_not_torchs(name: str, named: str, tmp_path: Path) -> None:
    slim, _, _ = slim_of(name)
    with pytest.raises(ExportError, match=named) as caught:
        fxprune.save(slim, tmp_path / "slim")
    assert "torch.save(slim" in str(caught.value)
    assert not list(tmp_path.iterdir())


class Subclass(nn.Conv2d):
    """Adds nothing but a way to be made."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, 3, padding=1)


class Changed(nn.Conv2d):
    def _conv_forward(self, *args: Any) -> torch.Tensor:
        return 2 * super()._conv_forward(*args)


def test_subclasses_of_torchs_modules(tmp_path: Path) -> None:
    leaves = fx.Tracer
    for layer, fits in ((Subclass(3), True), (Changed(3, 3, 1), False)):
        net = nn.Sequential(layer)
        tracer = leaves()
        tracer.is_leaf_module = lambda *_: True  # type: ignore[method-assign]
        slim = fx.GraphModule(net, tracer.trace(net))
        if fits:
            assert "nn.Conv2d(3, 3, 3, padding=1)" in (fxprune.save(slim, tmp_path / "slim") / "model.py").read_text()
        else:
            with pytest.raises(ExportError, match="Changed"):
                fxprune.save(slim, tmp_path / "slim")


def test_leaves_made_of_torchs_modules(tmp_path: Path) -> None:
    named = nn.Sequential(OrderedDict(a=nn.Conv2d(8, 8, 1), b=nn.Sequential(nn.ReLU(), nn.Dropout(0.1))))
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1), named).eval()
    picture = torch.randn(2, 3, 4, 4)
    slim = fxprune.export(fxprune.wrap(model, 0.8, example_inputs=picture, leaf=["3"])).eval()
    assert any(node.target == "3" for node in slim.graph.nodes)
    folder = fxprune.save(slim, tmp_path / "slim")
    with torch.no_grad():
        assert torch.equal(fxprune.load(folder)(picture), slim(picture))


def test_hooks(slim: fx.GraphModule, tmp_path: Path) -> None:
    hook = slim.register_forward_hook(lambda *_: None)
    with pytest.raises(ExportError, match="hooks"):
        fxprune.save(slim, tmp_path / "slim")
    hook.remove()
    slim.get_submodule("0").register_forward_hook(lambda *_: None)
    with pytest.raises(ExportError, match=r"'0'.*hooks"):
        fxprune.save(slim, tmp_path / "slim")


def test_inputs_that_hide_torch(tmp_path: Path) -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(torch.sin, (graph.placeholder("torch"),)))
    with pytest.raises(ExportError, match="'torch'"):
        fxprune.save(fx.GraphModule(nn.Module(), graph), tmp_path / "slim")


def test_what_is_no_slim_net(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="wrapped"):
        fxprune.save(hardened("chain")[0], tmp_path / "slim")
    with pytest.raises(ExportError, match="export returns"):
        fxprune.save(nn.Linear(1, 1), tmp_path / "slim")
