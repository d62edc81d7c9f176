"""A slim net is an ordinary module: whatever torch can do with a network, it can do with this one."""

from __future__ import annotations

import copy
import importlib.util
import io
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.export import Dim

import fxprune
from tests.exactness import TOLERANCE, call, error
from tests.models import ZOO, randomise
from tests.save.artefact_nets import hardened, slim_of

NETS = ("resnet", "preactivation", "squeeze_excite", "shufflenet_v2", "unet", "convnext")
# Torch's exporters take seconds per net: one that multiplies maps, one that moves channels and one with norms over them
# in each run, the others with -m fuzz.
EXPORTED = ("squeeze_excite", "shufflenet_v2", "convnext")
exported = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in EXPORTED else pytest.mark.fuzz) for name in NETS], indirect=True
)
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's compilers warn about themselves


@pytest.fixture(params=NETS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pruned(name: str) -> tuple[fx.GraphModule, tuple[torch.Tensor, ...], list[Any]]:
    """At 40 % of the channels; the seed leaves something of every branch."""
    slim, example, others = slim_of(name, 0.4, seed=2)
    assert slim.report.after["volume"] < 0.8 * slim.report.before["volume"]
    return slim.eval(), example, others


@pytest.fixture(params=["slim", "saved"])
def net(request: pytest.FixtureRequest, name: str, tmp_path: Path) -> nn.Module:
    """The slim net itself, and what comes back after saving it as source."""
    slim = pruned(name)[0]
    return slim if request.param == "slim" else fxprune.load(fxprune.save(slim, tmp_path / "slim"))


def resized(example: tuple[torch.Tensor, ...], batch: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(batch)
    return tuple(torch.randn(batch, *x.shape[1:], generator=generator, dtype=x.dtype) for x in example)


# -------------------------------------------------------------------- compilers


def _check_compiled(net: nn.Module, inputs: list[Any]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    for given in inputs:
        assert error(call(compiled, given), call(net, given)) <= TOLERANCE


def test_compile(name: str) -> None:
    """One graph without breaks."""
    slim, example, _ = pruned(name)
    _check_compiled(slim, [example])


def test_compile_saved_at_other_sizes(tmp_path: Path) -> None:
    slim, example, others = pruned("squeeze_excite")
    _check_compiled(fxprune.load(fxprune.save(slim, tmp_path / "slim")), [example, *others])


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="inductor needs a C++ compiler")
def test_compile_with_inductor() -> None:
    slim, example, _ = pruned("squeeze_excite")
    torch._dynamo.reset()
    # On some processors torch 2.13 expects strides that its own change of layouts does not give, in unpruned nets, too.
    with torch._inductor.config.patch(layout_optimization=False):
        assert error(call(torch.compile(slim, fullgraph=True), example), call(slim, example)) <= TOLERANCE


@exported
def test_export(name: str, net: nn.Module) -> None:
    """Batch and image size stay free."""
    _, example, others = pruned(name)
    free = tuple(dict.fromkeys((0, 2, 3), Dim.DYNAMIC) for _ in example)
    exported = torch.export.export(net, example, dynamic_shapes=free).module()
    for given in [example, *others, resized(example, 7)]:
        assert error(call(exported, given), call(net, given)) <= TOLERANCE


@exported
def test_export_with_a_named_batch(name: str) -> None:
    """``Dim("batch")`` raises if anything pins the batch size down."""
    slim, example, _ = pruned(name)
    program = torch.export.export(slim, example, dynamic_shapes=tuple({0: Dim("batch")} for _ in example))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    for batch in (1, 5):
        given = resized(example, batch)
        assert error(call(again, given), call(slim, given)) <= TOLERANCE


def _onnx(net: nn.Module, example: tuple[torch.Tensor, ...]) -> Any:
    import onnxruntime

    batch = tuple({0: Dim("batch")} for _ in example)
    program = torch.onnx.export(net, example, dynamo=True, dynamic_shapes=batch, verbose=False)
    assert program is not None
    file = io.BytesIO()
    program.save(file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])


@exported
@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("onnx", "onnxruntime", "onnxscript"))),
    reason="ONNX is not installed",
)
def test_onnx(name: str) -> None:
    slim, example, _ = pruned(name)
    single, given = copy.deepcopy(slim).float(), tuple(x.float() for x in example)
    session = _onnx(single, given)
    for batch in (1, 5):
        inputs = resized(given, batch)
        found = session.run(None, {at.name: x.numpy() for at, x in zip(session.get_inputs(), inputs, strict=True)})
        assert error(torch.from_numpy(found[0]), call(single, inputs)) <= 1e-5


# -------------------------------------------------------------------- number formats


def test_channels_last(name: str, net: nn.Module) -> None:
    _, example, others = pruned(name)
    expected = [call(net, given) for given in [example, *others]]
    net.to(memory_format=torch.channels_last)
    for given, value in zip([example, *others], expected, strict=True):
        moved = tuple(x.to(memory_format=torch.channels_last) for x in given)
        assert error(call(net, moved), value) <= TOLERANCE


def test_bfloat16(name: str, net: nn.Module) -> None:
    """Runs through in bfloat16, and is as far from float64 as bfloat16 makes it."""
    _, example, _ = pruned(name)
    expected = call(net, example)
    found = call(net.bfloat16(), tuple(x.bfloat16() for x in example))
    assert found.dtype is torch.bfloat16
    assert error(found.double(), expected) <= 0.15


def _autocast(name: str, seed: int) -> None:
    slim, example, _ = slim_of(name, 0.5, seed)
    single, given = slim.eval().float(), tuple(x.float() for x in example)
    expected = call(single, given)
    with torch.autocast("cpu", torch.bfloat16):
        assert error(call(single, given).float(), expected) <= 0.15


def test_autocast(name: str) -> None:
    _autocast(name, seed=2)


def test_autocast_where_channels_are_scattered() -> None:
    _autocast("convnext", seed=1)


# -------------------------------------------------------------------- copies

_PROGRAM = """
    import sys

    class Forbidden:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("fxprune", "tests"):
                raise ImportError(f"{name} was imported")

    sys.meta_path.insert(0, Forbidden())
    import torch

    torch.set_num_threads(1)
    for file in sys.argv[1:]:
        slim, inputs, expected = torch.load(file, weights_only=False)
        with torch.no_grad():
            assert torch.allclose(slim(*inputs), expected, rtol=1e-12, atol=1e-12), file
    print("done")
"""


def test_pickled_without_fxprune(tmp_path: Path) -> None:
    """``torch.save(slim)`` loads where fxprune cannot be imported."""
    files = []
    for name in NETS:
        slim, example, _ = pruned(name)
        files.append(str(tmp_path / f"{name}.pt"))
        torch.save((slim, example, call(slim, example)), files[-1])
    command = [sys.executable, "-I", "-c", textwrap.dedent(_PROGRAM), *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "done", done.stderr[-2000:]


def test_training_step(name: str, net: nn.Module) -> None:
    """Every parameter gets a gradient, and a small step against it makes the loss smaller."""
    _, example, _ = pruned(name)
    target = torch.randn_like(call(net, example))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    losses = []
    for _ in range(2):
        loss = (net(*example) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        losses.append(float(loss))
        for path, parameter in net.named_parameters():
            assert parameter.grad is not None, f"{path} gets no gradient"
            assert parameter.grad.isfinite().all()
        optimizer.step()
    assert losses[1] < losses[0]
    net.train()
    net(*example).sum().backward()


def test_state_dict_moves_between_copies(name: str) -> None:
    slim, example, _ = pruned(name)
    other = randomise(copy.deepcopy(slim), torch.Generator().manual_seed(3))
    assert error(call(other, example), call(slim, example)) > 1e-6
    other.load_state_dict(slim.state_dict())
    assert error(call(other, example), call(slim, example)) == 0


def test_checkpoints_of_the_original_load_into_the_wrapped_net(name: str) -> None:
    wrapped, _, _ = hardened(name)
    assert not wrapped.load_state_dict(ZOO[name](seed=9)[0].state_dict(), strict=False).unexpected_keys
