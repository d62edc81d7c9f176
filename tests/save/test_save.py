"""A saved net computes what the slim one computes, bit by bit, where there is torch and nothing else."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import fxprune
from tests.exactness import call, error
from tests.models import ZOO, leaves
from tests.save.artefact_nets import FOREIGN, RECORDS, hardened, slim_of

ALONE = ("resnet", "preactivation", "unet", "shufflenet_v2", "convnext", "outputs_nested", "outputs_named", "siamese",
         "keyword_inputs", "functional_norm", "stochastic_depth", "densenet")  # fmt: skip


@pytest.mark.parametrize("name", [name for name in ZOO if name not in FOREIGN])
def test_same_outputs(name: str, tmp_path: Path) -> None:
    slim, example, others = slim_of(name)
    loaded = fxprune.load(fxprune.save(slim, tmp_path / "slim"))
    assert not loaded.training
    assert list(loaded.state_dict()) == list(slim.state_dict())
    for key, tensor in slim.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], tensor)
        assert loaded.state_dict()[key].dtype is tensor.dtype
    for given in [example, *others]:
        expected, outputs = call(slim, given), call(loaded, given)
        if name in RECORDS:
            assert type(outputs).__name__ == type(expected).__name__
            assert all(torch.equal(a, b) for a, b in zip(leaves(outputs), leaves(expected), strict=True))
        else:
            assert error(outputs, expected) == 0


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All nets of ALONE, each with the inputs and outputs of one call."""
    root = tmp_path_factory.mktemp("saved")
    for name in ALONE:
        slim, example, _ = slim_of(name)
        fxprune.save(slim, root / name)
        torch.save({"inputs": example, "outputs": leaves(call(slim, example))}, root / f"{name}.call.pt")
    return root


_PROGRAM = """
    import importlib.util, sys
    from pathlib import Path

    class Forbidden:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("fxprune", "tests", "networkx", "rich"):
                raise ImportError(f"{name} was imported")

    sys.meta_path.insert(0, Forbidden())
    import torch

    def leaves(tree):
        if isinstance(tree, torch.Tensor):
            return [tree]
        entries = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
        return [leaf for entry in entries for leaf in leaves(entry)]

    torch.set_num_threads(1)
    for number, folder in enumerate(sys.argv[1:]):
        spec = importlib.util.spec_from_file_location(f"model{number}", Path(folder) / "model.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        net = module.load()
        assert not net.training
        seen = torch.load(folder + ".call.pt", weights_only=True)
        with torch.no_grad():
            inputs = seen["inputs"]
            outputs = leaves(net(**inputs) if isinstance(inputs, dict) else net(*inputs))
        assert len(outputs) == len(seen["outputs"]) > 0
        for one, other in zip(outputs, seen["outputs"]):
            assert torch.allclose(one, other, rtol=1e-12, atol=1e-12), folder
    assert "fxprune" not in {name.partition(".")[0] for name in sys.modules}
    print("done")
"""


def test_the_folder_is_enough(saved: Path, tmp_path: Path) -> None:
    """Moved elsewhere and run from yet another place, by a Python in which importing fxprune is an error."""
    moved = tmp_path / "elsewhere"
    shutil.copytree(saved, moved)
    command = [sys.executable, "-I", "-c", textwrap.dedent(_PROGRAM), *(str(moved / name) for name in ALONE)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "done", done.stderr[-2000:]


def test_the_source_is_formatted(saved: Path) -> None:
    for name in ALONE:
        text = (saved / name / "model.py").read_text()
        assert max(map(len, text.splitlines())) <= 120
        assert " = None" not in text and "getattr(getattr" not in text and "import fxprune" not in text
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is not installed")
    for what in (["format", "--diff"], ["check", "--select", "E,F,W,I"]):
        done = subprocess.run(
            [ruff, *what, "--isolated", "--line-length", "120", str(saved)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_the_source_tells_what_was_saved(saved: Path) -> None:
    head = (saved / "resnet" / "model.py").read_text().partition("from pathlib")[0]
    assert all(line.startswith("#") for line in head.strip().splitlines())
    slim, _, _ = slim_of("resnet")
    assert fxprune.__version__ in head
    for metric in ("volume", "flops", "params"):
        assert f"{slim.report.before[metric]:,}" in head
        assert f"{slim.report.after[metric]:,}" in head
    assert "DropPath" in (saved / "stochastic_depth" / "model.py").read_text().partition("from pathlib")[0]


def test_weights_load_without_pickle(saved: Path) -> None:
    for name in ALONE:
        weights = torch.load(saved / name / "weights.pt", weights_only=True)
        assert type(weights) is dict
        assert all(isinstance(key, str) and type(value) is torch.Tensor for key, value in weights.items())


def test_a_loaded_net_is_pruned_again(tmp_path: Path) -> None:
    for name in ("resnet", "unet", "siamese"):
        slim, example, others = slim_of(name, density=0.7)
        loaded = fxprune.load(fxprune.save(slim, tmp_path / name))
        again = fxprune.wrap(loaded, 0.7, example_inputs=example)
        smaller = fxprune.export(again.harden())
        assert smaller.report.before["volume"] == slim.report.after["volume"] > smaller.report.after["volume"]
        twice = fxprune.load(fxprune.save(smaller, tmp_path / f"{name}_again"))
        for given in [example, *others]:
            assert error(call(twice, given), call(smaller, given)) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types_are_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    slim, _, _ = slim_of("parameters")
    loaded = fxprune.load(fxprune.save(slim.to(dtype), tmp_path / "slim"))
    dtypes = {name: tensor.dtype for name, tensor in loaded.state_dict().items()}
    assert dtypes == {name: tensor.dtype for name, tensor in slim.state_dict().items()}
    assert dtype in dtypes.values()


def test_training_goes_on(tmp_path: Path) -> None:
    """Same gradients, and what was frozen stays frozen."""
    slim, (picture,), _ = slim_of("resnet")
    frozen = next(name for name, _ in slim.named_parameters())
    slim.get_parameter(frozen).requires_grad_(False)
    loaded = fxprune.load(fxprune.save(slim, tmp_path / "slim"))
    for net in (slim.train(), loaded.train()):
        net(picture).square().sum().backward()
    for (name, one), (_, other) in zip(slim.named_parameters(), loaded.named_parameters(), strict=True):
        assert one.requires_grad == other.requires_grad == (name != frozen)
        assert (one.grad is None and other.grad is None) or torch.equal(one.grad, other.grad)
    for (name, one), (_, other) in zip(slim.named_buffers(), loaded.named_buffers(), strict=True):
        assert torch.equal(one, other), name


def test_fused(tmp_path: Path) -> None:
    wrapped, example, _ = hardened("resnet")
    slim = fxprune.export(wrapped, fuse=True)
    assert slim.report.fused
    folder = fxprune.save(slim, tmp_path / "slim")
    assert "BatchNorm" not in (folder / "model.py").read_text()
    assert error(call(fxprune.load(folder), example), call(slim, example)) == 0


class Tokens(nn.Module):
    """A linear layer over the last axis, and a norm over the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mix, self.norm = nn.Conv1d(3, 8, 1), nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.mix(self.conv(x)))


class Flat(Tokens):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.mix(self.conv(x).mean(-1)))


@pytest.mark.parametrize(("kind", "fused"), [(Tokens, 0), (Flat, 1)])
def test_a_norm_is_folded_where_it_is_over_the_features(kind: type[nn.Module], fused: int) -> None:
    net = kind().double().eval()
    net.norm.running_mean.normal_()
    net.norm.running_var.uniform_(0.5, 2)
    x = torch.randn(4, 3, 8, dtype=torch.float64)
    slim = fxprune.export(fxprune.wrap(net, 1.0, example_inputs=x), fuse=True)
    assert slim.report.fused == fused
    torch.testing.assert_close(slim(x), net(x), rtol=0, atol=1e-12)


# -------------------------------------------------------------------- graphs that are not from the zoo


def _saved(model: nn.Module, folder: Path) -> nn.Module:
    return fxprune.load(fxprune.save(fx.symbolic_trace(model), folder))


class Not(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x > 0) == False  # noqa: E712


def test_a_comparison_with_false_is_elementwise(tmp_path: Path) -> None:
    assert _saved(Not(), tmp_path / "slim")(torch.tensor([-1.0, 1.0])).tolist() == [True, False]


def test_arguments(tmp_path: Path) -> None:
    graph = fx.Graph()
    x, scale = graph.placeholder("x"), graph.placeholder("scale", default_value=0.5)
    mode = graph.placeholder("mode", default_value="it's")
    rest, more = graph.placeholder("*rest"), graph.placeholder("**more")
    graph.output({"y": graph.call_function(torch.mul, (x, scale)), "rest": rest, "more": [more], "mode": (mode,)})
    net = fxprune.load(fxprune.save(fx.GraphModule(nn.Module(), graph), tmp_path / "slim"))
    one = torch.ones(2)
    outputs = net(one)
    assert torch.equal(outputs["y"], one / 2)
    assert (outputs["rest"], outputs["more"], outputs["mode"]) == ((), [{}], ("it's",))
    outputs = net(one, 3.0, "m", 4, more=5)
    assert torch.equal(outputs["y"], 3 * one)
    assert (outputs["rest"], outputs["more"], outputs["mode"]) == ((4,), [{"more": 5}], ("m",))
    assert torch.equal(net(x=one, scale=2.0)["y"], 2 * one)


class Odd(nn.Module):
    """Names and values that need care."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("1st", nn.Conv2d(3, 4, 1))
        self.add_module("a-b", nn.Sequential(nn.Identity(), nn.PReLU(4)))
        self.scales = nn.ParameterList([nn.Parameter(torch.rand(4, 1, 1)), nn.Parameter(torch.rand(()))])
        self.register_buffer("offset", torch.rand(4, 1, 1), persistent=False)
        self.register_buffer("steps", torch.tensor([2, 0, 1, 3]))

    def forward(self, torch_: Any, self_: Any) -> Any:
        x = self.get_submodule("1st")(torch_).clamp(max=float("inf"))
        x = self.get_submodule("a-b")(x) * self.scales[0] + self.offset * self.scales[1]
        x = x[:, self.steps, ..., None].sum(-1, dtype=torch.float64)
        x = x.masked_fill(x > 1e5, float("-inf")).to(torch.float32, memory_format=torch.channels_last)
        return -x ** 2 + (-2) ** self_.round(), x.new_zeros((1,), device=torch.device("cpu"))


def test_odd_names_and_values(tmp_path: Path) -> None:
    model = Odd().eval()
    loaded = _saved(model, tmp_path / "slim")
    given = torch.randn(2, 3, 5, 4), torch.rand(2, 4, 5, 4)
    assert error(call(loaded, given), call(model, given)) == 0
    assert list(loaded.state_dict()) == list(fx.symbolic_trace(model).state_dict())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


def test_tied_parameters_stay_tied(tmp_path: Path) -> None:
    model = Tied().eval()
    loaded = _saved(model, tmp_path / "slim")
    assert loaded.a.weight is loaded.b.weight
    assert len(list(loaded.parameters())) == 3
    assert error(call(loaded, (torch.ones(1, 3),)), call(model, (torch.ones(1, 3),))) == 0


class Chain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = torch.sin(x) + 1
        return x


def test_tensors_are_freed_when_nobody_needs_them(tmp_path: Path) -> None:
    loaded = _saved(Chain(), tmp_path / "slim")
    living: list[weakref.ref[torch.Tensor]] = []
    most = 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal most
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                living.append(weakref.ref(result))
            most = max(most, sum(reference() is not None for reference in living))
            return result

    ones = torch.ones(3)
    with torch.no_grad(), Watch():
        loaded(ones)
    assert len(living) == 40
    assert most <= 3


def test_long_concatenations(tmp_path: Path) -> None:
    class Many(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x + number for number in range(80)], 1)

    loaded = _saved(Many(), tmp_path / "slim")
    assert max(map(len, (tmp_path / "slim" / "model.py").read_text().splitlines())) <= 120
    assert torch.equal(loaded(torch.ones(1, 2)), Many()(torch.ones(1, 2)))


def test_two_nets_at_once(tmp_path: Path) -> None:
    """Each folder has its own module, also after it was replaced."""
    one, example, _ = slim_of("resnet", seed=1)
    other, _, _ = slim_of("resnet", seed=2)
    first = fxprune.load(fxprune.save(one, tmp_path / "slim"))
    second = fxprune.load(fxprune.save(other, tmp_path / "slim"))
    assert type(first) is not type(second)
    assert error(call(first, example), call(one, example)) == 0
    assert error(call(second, example), call(other, example)) == 0
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    assert not (tmp_path / "slim" / "__pycache__").exists()


def test_a_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(fxprune.errors.ExportError, match="file is a file"):
        fxprune.save(slim_of("chain")[0], tmp_path / "file" / "x" / "y")
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("device", ["foo", "cuda:77"])
def test_a_device_that_is_not_there(tmp_path: Path, device: str) -> None:
    folder = fxprune.save(slim_of("chain")[0], tmp_path / "net")
    with pytest.raises(fxprune.errors.OptionError, match=f"the device '{device}' cannot be used"):
        fxprune.load(folder, device)
