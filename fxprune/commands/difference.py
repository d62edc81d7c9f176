"""How far a net's outputs are from those of the nets of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fxprune.commands.failures import told
from fxprune.count import Count, count
from fxprune.emit.folder import read
from fxprune.emit.onnx import OnnxNet, require
from fxprune.errors import FxPruneError, RunError
from fxprune.passes.verify import difference, tensors
from fxprune.run import HARDENED, SLIM, STAGES, Run


@dataclass(frozen=True)
class Candidate:
    """A saved folder or an ONNX file: what it computes, and what its convolutions cost."""

    call: Callable[..., Any]
    count: Callable[..., Count]


@dataclass(frozen=True)
class Comparison:
    """Differences by net, as fractions of the largest output; None: the other net failed, ``problem`` says how."""

    differences: dict[str, float | None]
    batches: list[int]
    problem: str | None


def load_references(run: Run) -> tuple[dict[str, nn.Module], torch.dtype | None]:
    """The run's nets in float64, where only rounding of the weights is left to differ; as they are where casts in
    their code forbid that (then the type is None)."""
    nets = {SLIM: run.slim()} if run.stage == STAGES[-1] else {}
    nets[HARDENED] = run.hardened()
    try:
        for net in nets.values():
            _outputs(net.double(), run, run.batch, torch.float64)
    except Exception:  # whatever it is, it is told when the nets as they are fail, too
        nets = {name: read(run.folder / name, "cpu") for name in nets}
        return nets, None
    return nets, torch.float64


def load_candidate(path: Path, dtype: torch.dtype | None) -> Candidate:
    if path.suffix == ".onnx":
        if not path.is_file():
            raise FxPruneError(f"there is no file {path}", fix="name an ONNX file, or a folder that fxprune.save wrote")
        require(f"checking {path}", "onnx", "onnxruntime")
        net = OnnxNet.load(path)
        return Candidate(net, net.count)
    made = read(path, "cpu")
    if dtype is not None:
        made.to(dtype)
    return Candidate(made, lambda *args, **kwargs: count(made, args, kwargs))


def compare(other: Callable[..., Any], nets: dict[str, nn.Module], run: Run, dtype: torch.dtype | None) -> Comparison:
    """At the batch size that the net was pruned with and at another one, if the run's nets take it."""
    worst, tried = dict.fromkeys(nets, 0.0), []
    for batch in (run.batch, run.batch + 1):
        try:
            expected = {name: _outputs(net, run, batch, dtype) for name, net in nets.items()}
        except Exception as error:
            if batch == run.batch:
                raise RunError(
                    f"a net of {run.folder} fails on inputs of the run's own shapes: {told(error)}",
                    fix="its files do not belong together: restore the folder",
                ) from error
            continue  # the net takes the batch size of its example only
        tried.append(batch)
        try:
            found = _outputs(other, run, batch, dtype)
        except FxPruneError:
            raise
        except Exception as error:
            return Comparison(dict.fromkeys(nets), tried, f"it fails at batch size {batch}: {told(error)}")
        for name, values in expected.items():
            worst[name] = max(worst[name], _distance(values, found))
    return Comparison({**worst}, tried, None)


def _outputs(net: Callable[..., Any], run: Run, batch: int, dtype: torch.dtype | None) -> list[torch.Tensor]:
    args, kwargs = run.example(batch, dtype)  # anew each time: a net may write into its inputs
    with torch.no_grad():
        found = tensors(net(*args, **kwargs))
    return [value.double() if value.is_floating_point() else value for value in found]


def _distance(expected: list[torch.Tensor], found: list[torch.Tensor]) -> float:
    if len(expected) != len(found):
        return float("inf")
    return max((difference(one, other) for one, other in zip(expected, found, strict=True)), default=0.0)
