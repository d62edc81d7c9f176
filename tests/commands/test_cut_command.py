"""``fxprune cut``: a folder of pictures or samples of the user's, weights from files, and what is said and written."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import fxprune
from fxprune.commands import cut as command
from fxprune.commands.pictures import default, preprocessing
from fxprune.commands.weights import load_weights
from fxprune.errors import OptionError
from tests.command_line import ROOT, Shell

Image = pytest.importorskip("PIL.Image")
CODE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def net(classes=5, width=8):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes),
    )

def deep():
    torch.manual_seed(0)
    layers = [nn.Conv2d(4, 4, 3, padding=1) for _ in range(24)]
    for layer in layers:
        layer.weight.data = nn.init.dirac_(layer.weight.data) + layer.weight.data.new_tensor(0.01)
    return nn.Sequential(nn.Conv2d(3, 4, 3), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(3, 8, 1), nn.Conv2d(2, 8, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x, y):
        return self.head(torch.relu(self.one(x) + self.two(y)))

torch.manual_seed(1)
samples = torch.randn(64, 3, 10, 10)
labels = torch.arange(64) % 5
def loaders():
    data = TensorDataset(samples, labels)
    return DataLoader(data, 16), DataLoader(data, 16)
def pairs():
    return samples, torch.randn(64, 2, 10, 10)
grey = torch.randn(64, 1, 10, 10)
def strange():
    return 3
def fails():
    raise RuntimeError("no samples today")
def needs(count):
    return samples
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a model and some pictures, in two folders."""
    (tmp_path / "code.py").write_text(CODE)
    generator = np.random.default_rng(0)
    for number in range(24):
        inside = tmp_path / "photos" / ("cats", "dogs")[number % 2]
        inside.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(generator.integers(0, 255, (4, 5, 3), dtype=np.uint8))
        coarse.resize((20, 16)).save(inside / f"{number}.{('png', 'jpg')[number % 3 == 0]}")
    (tmp_path / "photos" / "notes.txt").write_text("no picture")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "_fxprune_file_code", raising=False)
    return tmp_path


@pytest.fixture
def shell(shell: Shell) -> Shell:
    return partial(shell, "cut")


NET = ("code.py:net", "--pictures", "photos", "--size", "12", "--budget", "1/2")


def test_golden(shell: Shell, golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "in_turns", lambda *_: [[0.002], [0.001]])
    code, out, err = shell(*NET, "--out", "slim")
    assert code == 0, err
    assert "24 of 24 pictures in photos: shorter side to 12, middle 12x12, mean 0.485 0.456 0.406" in err
    assert "(by --size; the rest: the default, ImageNet's; --size, --mean and --std change that)" in err
    golden("cut.txt", re.sub(r"[\d.]+(?= s on|, choose|, refit|, export|\))", "#", out))
    assert fxprune.load("slim")(torch.zeros(1, 3, 12, 12)).shape == (1, 5)


def test_json_is_all_that_is_printed(shell: Shell) -> None:
    code, out, err = shell(*NET, "--metric", "flops", "--seed", "3", "--samples", "20", "--out", "slim", "--json")
    assert code == 0, err
    said: dict[str, Any] = json.loads(out)
    assert said["schema"] == "fxprune.cut/1" and said["budget"] == {"flops": 0.5} and said["seed"] == 3
    assert said["cost"]["flops"]["after"] <= said["cost"]["flops"]["before"] / 2
    assert (said["samples"]["count"], said["samples"]["held_back"], said["samples"]["skipped"]) == (20, 2, {})
    assert said["samples"]["preprocessing"]["size"] == [12, 12]
    layers = {layer["name"]: layer for layer in said["layers"]}
    assert list(layers) == ["0", "3", "7"] and layers["0"]["width"][0] == 8 and layers["7"]["width"] == [5, 5]
    assert all(layer["missed"][1] <= layer["missed"][0] for layer in layers.values())
    assert said["files"] == {"folder": "slim", "onnx": None, "onnx_error": None} and said["error"] < 1e-9


def test_every_json_key_is_documented(shell: Shell) -> None:
    said = json.loads(shell(*NET, "--out", "slim", "--json")[1])
    page = (ROOT / "docs/reference/json.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`([a-z_]+)`", page.partition("## fxprune cut\n")[2].partition("\n## ")[0]))
    keys = {*said, *said["samples"], *said["samples"]["preprocessing"], *said["layers"][0], *said["files"]}
    assert keys <= documented, keys - documented


def test_the_same_call_gives_the_same_net(shell: Shell) -> None:
    for out in ("one", "other"):
        assert shell(*NET, "--samples", "20", "--out", out)[0] == 0
    one, other = (torch.load(f"{out}/weights.pt", weights_only=True) for out in ("one", "other"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_onnx_lies_beside_the_folder_and_both_can_be_written_again(shell: Shell) -> None:
    pytest.importorskip("onnxscript")
    for _ in range(2):
        code, out, err = shell(*NET, "--out", "nets/slim/", "--onnx")
        assert code == 0, err
    assert sorted(path.name for path in Path("nets").iterdir()) == ["slim", "slim.onnx"]
    assert "wrote nets/slim.onnx: ONNX, in ONNX Runtime" in out


def test_latency(shell: Shell) -> None:
    code, out, err = shell(*NET[:-1], "9/10", "--arg", "width=64", "--metric", "latency", "--out", "slim", "--json")
    assert code == 0, err
    cost = json.loads(out)["cost"]["latency"]
    assert cost["after"] <= 0.9 * cost["before"]


def test_a_long_net_shows_the_worst_layers(shell: Shell) -> None:
    code, out, err = shell("code.py:deep", *NET[1:-1], "3/4", "--scores", "random", "--out", "slim")
    assert code == 0, err
    table = out.partition("layer ")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(table) == command.ROWS
    assert "6 more layers with less than these" in out


# ------------------------------------------------------------------ pictures


def test_a_damaged_picture_is_told_and_skipped(shell: Shell) -> None:
    Path("photos/broken.jpg").write_bytes(b"this is no picture")
    whole = Path("photos/cats/0.jpg").read_bytes()
    Path("photos/half.jpg").write_bytes(whole[: len(whole) // 2])
    code, out, err = shell(*NET, "--out", "slim", "--json")
    assert code == 0
    assert "skipped photos/broken.jpg: it is no picture, or a damaged one" in err
    assert "skipped photos/half.jpg: OSError" in err
    samples = json.loads(out)["samples"]
    assert set(samples["skipped"]) == {"photos/broken.jpg", "photos/half.jpg"} and samples["count"] == 24


def test_pictures_become_what_the_net_sees() -> None:
    prepared = default(3)
    picture = Image.fromarray(np.full((300, 400, 3), (255, 0, 51), dtype=np.uint8))
    x = prepared(picture)
    assert x.shape == (3, 224, 224)
    wanted = (torch.tensor([1.0, 0.0, 0.2]) - torch.tensor(prepared.mean)) / torch.tensor(prepared.std)
    assert_close(x, wanted[:, None, None].expand(x.shape))
    assert default(1)(picture.convert("RGBA")).shape == (1, 224, 224)


def test_the_middle_is_cut_out() -> None:
    pixels = np.zeros((256, 512), dtype=np.uint8)
    pixels[:, 144:368] = 255  # the middle 224 of 512
    x = default(1)(Image.fromarray(pixels))
    assert float(x.min()) == float(x.max()) > 0


def options(**given: Any) -> Any:
    return SimpleNamespace(**{"size": None, "mean": None, "std": None, **given})


@pytest.mark.parametrize("name", ["pretrained_cfg", "default_cfg"])
@pytest.mark.parametrize("kind", [dict, SimpleNamespace])
def test_what_timm_says_of_a_model(name: str, kind: Any) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1))
    config = {"input_size": (3, 240, 240), "mean": (0.5,) * 3, "std": (0.25,) * 3, "crop_pct": 0.8}
    setattr(net, name, kind(**config, interpolation="random"))
    prepared = preprocessing(net, None, {}, options())
    assert (prepared.size, prepared.resized, prepared.mean, prepared.std) == ((240, 240), 300, (0.5,) * 3, (0.25,) * 3)
    assert prepared.interpolation == "bilinear" and prepared.source == f"the model's {name}"
    smaller = preprocessing(net, None, {}, options(size=(32, 32), mean=[0.1]))
    assert (smaller.size, smaller.resized, smaller.mean, smaller.std) == ((32, 32), 32, (0.1,) * 3, (0.25,) * 3)


def test_what_torchvision_says_of_weights() -> None:
    models = pytest.importorskip("torchvision.models")
    net = nn.Sequential(nn.Conv2d(3, 4, 1))
    first = preprocessing(net, models.resnet50, {"weights": "IMAGENET1K_V1"}, options())
    second = preprocessing(net, models.resnet50, {"weights": "ResNet50_Weights.IMAGENET1K_V2"}, options())
    assert (first.size, first.resized, second.resized) == ((224, 224), 256, 232)
    assert first.source == "torchvision's ResNet50_Weights.IMAGENET1K_V1"
    assert preprocessing(net, models.resnet50, {}, options()) == second
    assert preprocessing(net, models.segmentation.fcn_resnet50, {}, options()).size == (520, 520)
    assert preprocessing(net, models.ResNet, {}, options()) == default(3)


def test_mean_and_deviation_fit_the_channels() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 1))
    assert preprocessing(net, None, {}, options(mean=[0.5], std=[0.5])).mean == (0.5,)
    with pytest.raises(OptionError, match="--mean has 3 numbers, and the model reads 1 channel"):
        preprocessing(net, None, {}, options(mean=[0.5, 0.5, 0.5]))
    with pytest.raises(OptionError, match="--std 0 is not above 0"):
        preprocessing(net, None, {}, options(std=[0.0]))
    with pytest.raises(OptionError, match="reads 4 channels"):
        preprocessing(nn.Conv2d(4, 4, 1), None, {}, options())


# ------------------------------------------------------------------ samples of the user's


@pytest.mark.parametrize(("name", "model"), [("samples", "net"), ("loaders", "net"), ("pairs", "Pair")])
def test_data(shell: Shell, name: str, model: str) -> None:
    arguments = (f"code.py:{model}", "--data", f"code.py:{name}", "--budget", "3/4", "--out", "slim", "--json")
    code, out, err = shell(*arguments, "--samples", "48")
    assert code == 0, err
    samples = json.loads(out)["samples"]
    assert samples["count"] == 48 and samples["preprocessing"] is None and samples["source"] == f"code.py:{name}"


# ------------------------------------------------------------------ weights


def trained() -> nn.Module:
    names: dict[str, Any] = {}
    exec(CODE, names)
    net: nn.Module = names["net"]()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1)
    return net


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("net.pth", lambda state: state),
        ("net.pt", lambda state: {"epoch": 3, "state_dict": state}),
        ("net.ckpt", lambda state: {"model": {"state_dict": {f"module.{name}": t for name, t in state.items()}}}),
        ("old.pth", lambda state: {name: t for name, t in state.items() if "num_batches" not in name}),
    ],
)
def test_weights(shell: Shell, name: str, content: Any) -> None:
    net = trained()
    torch.save(content(net.state_dict()), name)
    code, _, err = shell(*NET[:-1], "1", "--weights", name, "--out", "slim")
    assert code == 0, err
    x = torch.randn(2, 3, 12, 12)
    assert_close(fxprune.load("slim")(x), net.eval()(x))


def test_safetensors(monkeypatch: pytest.MonkeyPatch) -> None:
    net, other = trained(), trained()
    nn.init.zeros_(other[0].weight)  # type: ignore[index, arg-type]
    pytest.importorskip("safetensors.torch").save_file(net.state_dict(), "net.safetensors")
    load_weights(other, "net.safetensors", "net")
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), other.state_dict().values(), strict=True))
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(fxprune.errors.TargetError, match="safetensors is missing\n  fix: pip install safetensors"):
        load_weights(other, "net.safetensors", "net")


def test_tied_weights_may_be_in_the_file_once() -> None:
    net = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)])
    net[1].weight = net[0].weight
    torch.save({"0.weight": torch.ones(2, 2)}, "net.pth")
    load_weights(net, "net.pth", "net")
    assert_close(net[1].weight.data, torch.ones(2, 2))


# ------------------------------------------------------------------ misuse

MISUSE: dict[str, tuple[tuple[str, ...], str, str]] = {
    # name: (arguments, what the message says, and its fix); OWN stands for a model and a budget
    "no such folder": ((*NET, "--pictures", "nowhere"), "nowhere is not there", "--pictures"),
    "a file for a folder": ((*NET, "--pictures", "code.py"), "code.py is a file", "--pictures"),
    "no pictures": ((*NET, "--pictures", "empty"), "there are no pictures in empty", "--data"),
    "none that can be read": ((*NET, "--pictures", "bad"), "can be read: bad/x.png", "other programs"),
    "one picture": ((*NET, "--pictures", "single"), "1 sample", "at least 64"),
    "unknown model": (("code.py:nett", *NET[1:]), "no attribute 'nett'", "did you mean net?"),
    "argument that the model has not": ((*NET, "--arg", "clases=3"), "'clases'", "did you mean classes?"),
    "no such weights": ((*NET, "--weights", "no.pth"), "No such file", "torch.save(model.state_dict(), file)"),
    "weights that lack some": ((*NET, "--weights", "lacks.pth"), "it has no 0.weight", "make the model as it was"),
    "weights of others": ((*NET, "--weights", "more.pth"), "the model has no 9.weight", "make the model as it was"),
    "weights of another size": (
        (*NET, "--weights", "sizes.pth"), "7.weight is 3x8 in the file and 5x8 in the model", "number of classes",
    ),
    "a whole model": ((*NET, "--weights", "pickled.pth"), "could run code", "state_dict()"),
    "a checkpoint without weights": ((*NET, "--weights", "epoch.pth"), "it holds epoch", "torch.save"),
    "text for weights": ((*NET, "--weights", "code.py"), "cannot be loaded into code.py:net", "torch.save"),
    "damaged safetensors": ((*NET, "--weights", "bad.safetensors"), "cannot be loaded", "torch.save"),
    "a budget that cannot be met": ((*NET, "--budget", "1/1000"), "the smallest that can be reached", "larger budget"),
    "a budget that is no number": ((*NET, "--budget", "half"), "--budget 'half' is not a number", "--budget 1/8"),
    "a size that is none": ((*NET, "--size", "big"), "--size 'big' is no size", "--size 224"),
    "a size that does not fit": ((*NET, "--size", "3"), "rejects pictures of 3x3x3", "--size as in training"),
    "means of other channels": ((*NET, "--mean", "0.5", "0.5"), "--mean has 2 numbers", "--mean 0.485 0.456 0.406"),
    "few samples": ((*NET, "--samples", "1"), "--samples 1 is too few", "--samples 2"),
    "multiple of nothing": ((*NET, "--multiple-of", "0"), "--multiple-of 0 is too few", "--multiple-of 1"),
    "a layer that is not there": ((*NET, "--ignore", "layer9"), "'layer9' matches no", "inspect lists"),
    "size of no pictures": (("OWN", "--data", "code.py:samples", "--size", "3"), "--size is about pictures", "leave"),
    "no such data": (("OWN", "--data", "code.py:sample"), "no attribute 'sample'", "did you mean samples?"),
    "data that are none": (("OWN", "--data", "code.py:strange"), "int, which holds no samples", "give a tensor"),
    "data that fail": (("OWN", "--data", "code.py:fails"), "no samples today", "correct"),
    "data that need arguments": (("OWN", "--data", "code.py:needs"), "needs arguments: count", "default"),
    "data of another shape": (("OWN", "--data", "code.py:grey"), "rejects the calibration samples", "model(samples)"),
    "labels": (("OWN", "--data", "code.py:labels"), "labels where inputs are expected", "inputs first"),
    "a folder of another's": ((*NET, "--out", "photos"), "files that fxprune did not write", "does not exist yet"),
}  # fmt: skip


@pytest.fixture
def bad_files() -> None:
    state = trained().state_dict()
    torch.save({name: t for name, t in state.items() if name != "0.weight"}, "lacks.pth")
    torch.save({**state, "9.weight": torch.zeros(2)}, "more.pth")
    torch.save({**state, "7.weight": torch.zeros(3, 8)}, "sizes.pth")
    torch.save(nn.ReLU(), "pickled.pth")
    torch.save({"epoch": 3}, "epoch.pth")
    Path("bad.safetensors").write_bytes(b"nothing of that kind")
    for name in ("empty", "bad", "single"):
        Path(name).mkdir()
    Path("bad/x.png").write_bytes(b"no")
    Image.new("RGB", (20, 20)).save("single/x.png")


@pytest.mark.usefixtures("bad_files")
@pytest.mark.parametrize("case", MISUSE)
def test_misuse(shell: Shell, case: str) -> None:
    arguments, said, fix = MISUSE[case]
    if arguments[0] == "OWN":
        arguments = ("code.py:net", "--budget", "1/2", *arguments[1:])
    code, out, err = shell(*(() if "--out" in arguments else ("--out", "slim")), *arguments)
    assert (code, out) == (2, "") and "Traceback" not in err
    cause, mark, line = err.partition("error: ")[2].partition("\n  fix: ")
    assert mark and said in cause and fix in line, err
    assert not Path("slim").exists()


def test_missing_pillow_is_told(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    code, _, err = shell(*NET, "--out", "slim")
    assert code == 2 and "needs Pillow, which is missing\n  fix: pip install pillow" in err


@pytest.mark.parametrize("where", ["read_pictures", "in_turns", "to_onnx", "write_atomically"])
def test_ctrl_c_leaves_nothing_half_written(shell: Shell, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    pytest.importorskip("onnxscript")

    def interrupted(*args: Any, **keywords: Any) -> Any:
        raise KeyboardInterrupt  # what Python makes of the signal, which a shell's background jobs ignore

    monkeypatch.setattr(command, where, interrupted)
    code, out, err = shell(*NET, "--out", "slim", "--onnx")
    assert (code, out) == (130, "") and "Traceback" not in err
    written = sorted(path.name for path in Path().iterdir() if "slim" in path.name)
    assert written == (["slim"] if where == "write_atomically" else [])  # that whole, and no ONNX file
