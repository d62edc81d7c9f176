"""What benchmarks/zoo.py measures of one model.

Every parameter and buffer is randomised and everything runs in float64, so that a traced graph that computes what the
model computes is no coincidence.
"""

from __future__ import annotations

import copy
import math
import re
import sys
import time
import traceback
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

sys.path.insert(0, str(Path(__file__).parents[1]))
import fxprune
from fxprune.errors import FxPruneError, ModelError
from fxprune.trace import graph_module, trace
from zoo_models import Model

Record = dict[str, Any]
TOLERANCE = 1e-9


def randomise(model: nn.Module) -> None:
    """Random numbers in every floating parameter and buffer, of a size that neither explodes nor vanishes."""
    norms = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if name == "weight" and (isinstance(module, norms) or parameter.ndim == 0):
                    parameter.uniform_(0.5, 1.5)
                elif isinstance(module, nn.PReLU):
                    parameter.uniform_(0.1, 0.4)
                elif parameter.ndim < 2:
                    parameter.normal_(0, 0.3)
                else:
                    parameter.normal_(0, 1 / math.sqrt(_fan_in(module, parameter)))
            for name, buffer in module.named_buffers(recurse=False):
                if not buffer.is_floating_point():
                    continue
                if name == "running_mean":
                    buffer.normal_(0, 0.3)
                elif name == "running_var":
                    buffer.uniform_(0.5, 1.5)
                else:
                    buffer.add_(torch.randn_like(buffer), alpha=0.3)


def _fan_in(module: nn.Module, parameter: torch.Tensor) -> int:
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return max(parameter.shape[0] // module.groups * parameter[0, 0].numel() // math.prod(module.stride), 1)
    return max(parameter.numel() // parameter.shape[0], 1)


class ConvVolume(TorchFunctionMode):
    """Counts what convolutions and linear layers write per sample, in total and while one of ``leaves`` runs."""

    def __init__(self, model: nn.Module, batch: int, leaves: Iterable[str] = ()) -> None:
        super().__init__()
        self.batch = batch
        self.total = self.inside = self.depth = 0
        self.handles = []
        for path in leaves:
            module = model.get_submodule(path)
            self.handles += [module.register_forward_pre_hook(self._enter), module.register_forward_hook(self._leave)]

    def _enter(self, *_: Any) -> None:
        self.depth += 1

    def _leave(self, *_: Any) -> None:
        self.depth -= 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name == "linear" or re.fullmatch(r"conv(_transpose)?[123]d", name):
            volume = result.numel() // (self.batch if result.numel() % self.batch == 0 else result.shape[0])
            self.total += volume
            self.inside += volume if self.depth else 0
        return result

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self.handles:
            handle.remove()


def tensors(tree: Any) -> list[torch.Tensor]:
    if hasattr(tree, "__dataclass_fields__"):
        tree = vars(tree)
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def difference(one: Any, other: Any) -> float:
    """The largest max|a - b| / max|a| over the tensors of two nested outputs; infinite where they do not match."""
    left, right = tensors(one), tensors(other)
    if [(t.shape, t.dtype) for t in left] != [(t.shape, t.dtype) for t in right]:
        return math.inf
    return max((_relative(a, b) for a, b in zip(left, right, strict=True)), default=math.inf)


def _relative(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.numel() == 0:
        return 0.0
    a, b = one.double(), other.double()
    largest = ((a - b).abs().max() / a.abs().max().clamp_min(1e-300)).item()
    return math.inf if math.isnan(largest) else largest


def finite(tree: Any) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors(tree) if tensor.is_floating_point())


def place(source: str | None) -> str | None:
    """``site-packages/torchvision/models/x.py:1`` without what comes before the package."""
    if source is None:
        return None
    path = source.replace("\\", "/")
    return path.rpartition("site-packages/")[2] if "site-packages/" in path else "/".join(path.split("/")[-2:])


def one_line(error: BaseException, limit: int = 300) -> str:
    if isinstance(error, FxPruneError):
        where = f" at {place(error.where)}" if error.where else ""
        return f"{error.cause}{where}"[:limit]
    text = re.sub(r"/\S*/site-packages/", "", str(error)).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:limit]


@contextmanager
def precision(entry: Model) -> Iterator[None]:
    """Some models make float32 tensors in forward(), whatever they are given: let these be float64 too."""
    if not entry.makes_floats:
        yield
        return
    single, default = torch.Tensor.float, torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.Tensor.float = single  # type: ignore[method-assign]
        torch.set_default_dtype(default)


def prepared(entry: Model) -> nn.Module:
    torch.manual_seed(zlib.crc32(entry.key.encode()))
    model = entry.build().double().eval()
    randomise(model)
    return model


def check(entry: Model) -> Record:
    """Everything that is measured of one model."""
    record: Record = {
        "suite": entry.suite, "family": entry.family, "name": entry.name, "input": entry.input, "status": "ok",
        "reason": "",
    }  # fmt: skip
    started = time.perf_counter()
    with warnings.catch_warnings(), torch.no_grad(), precision(entry):
        warnings.simplefilter("ignore")
        try:
            _check(entry, record)
        except Exception as error:
            if record["status"] == "ok":
                record["status"] = "error"
            record["reason"] = one_line(error)
            record["traceback"] = traceback.format_exc()[-3000:]
    record["seconds"] = round(time.perf_counter() - started, 2)
    return record


@contextmanager
def stage(record: Record, status: str) -> Iterator[None]:
    """An error inside gets this status."""
    record["status"] = status
    yield
    record["status"] = "ok"


def _check(entry: Model, record: Record) -> None:
    with stage(record, "model cannot be built"):
        model = prepared(entry)
    example, other_batch = entry.example(entry.batches[0]), entry.example(entry.batches[1])
    with stage(record, "model itself fails"):
        expected = model(*example)
    with stage(record, "trace fails"):
        begin = time.perf_counter()
        traced = trace(model, example)
        record["trace_seconds"] = round(time.perf_counter() - begin, 3)
    record["nodes"] = len(traced.graph.nodes)
    record["specialisations"] = len(traced.specialisations)
    record["leaves"] = [{**asdict(leaf), "source": place(leaf.source)} for leaf in traced.leaves]
    opaque = [leaf.path for leaf in traced.leaves if leaf.type != "function"]
    with ConvVolume(model, entry.batches[0], opaque) as counted:
        varied = model(*entry.example(entry.batches[0]))
    record["conv_volume"] = counted.total
    record["leaf_share"] = counted.inside / max(counted.total, 1)
    with stage(record, "inspect fails"):
        try:
            begin = time.perf_counter()
            seen = fxprune.inspect(model, example)
            record["inspect_seconds"] = round(time.perf_counter() - begin, 3)
        except ModelError as error:
            record["note"] = error.cause
        else:
            record["volume"] = seen.cost["volume"]
            record["prunable"] = seen.prunable
            record["smallest_budget"] = seen.smallest_budget
            record["freezes"] = [
                {
                    "op": freeze.op, "why": freeze.why, "source": place(freeze.source),
                    "volume_share": freeze.volume_share, "layers": len(freeze.layers),
                }
                for freeze in seen.freezes
            ]  # fmt: skip
            record["ungated"] = _ungated(seen)
    record["outputs"] = len(tensors(expected))
    record["variation"] = difference(expected, varied)
    with stage(record, "graph cannot be built or run"):
        graph = graph_module(traced, model)
        record["difference"] = difference(expected, graph(*example))
    del traced
    if not finite(expected):
        record.update(status="not finite", reason="the randomised model's output is not finite")
        return
    if record["variation"] < 1e-6:
        record.update(status="constant", reason=f"the output hardly depends on the input ({record['variation']:.1e})")
    if not record["difference"] <= TOLERANCE:
        reason = f"relative difference {record['difference']:.1e} at batch {entry.batches[0]}"
        record.update(status="differs", reason=reason)
        return
    if record.get("prunable"):
        _check_export(model, example, record)
    with stage(record, "model itself fails at another batch size"):
        expected = model(*other_batch)
    with stage(record, "graph fails at another batch size"):
        record["difference_other_batch"] = difference(expected, graph(*other_batch))
    if not record["difference_other_batch"] <= TOLERANCE:
        reason = f"relative difference {record['difference_other_batch']:.1e} at batch {entry.batches[1]}"
        record.update(status="differs at another batch size", reason=reason)
    if not record.get("export_difference", 0.0) <= TOLERANCE:
        reason = f"relative difference {record['export_difference']:.1e} of the slim net under random masks"
        record.update(status="slim net differs", reason=reason)


REMOVED = (0.5, 0.9)  # shares of the gates that are closed, at random


def _check_export(model: nn.Module, example: Any, record: Record) -> None:
    """Under random masks the slim net must compute what the gated one computes."""
    with stage(record, "wrap or export fails"):
        begin = time.perf_counter()
        wrapped = fxprune.wrap(model, 1.0, example_inputs=example)
        generator = torch.Generator().manual_seed(0)
        counts = {name: len(gate) for name, gate in wrapped.gates.items()}
        differences = []
        for share in REMOVED:
            wrapped.set_masks({name: torch.rand(count, generator=generator) >= share for name, count in counts.items()})
            slim = fxprune.export(wrapped, verify=False)
            differences.append(difference(wrapped(*example), slim(*example)))
        record["export_seconds"] = round(time.perf_counter() - begin, 3)
        record["export_difference"] = max(differences)


def _ungated(seen: Any) -> dict[str, float]:
    """Share of the volume that cannot be pruned, by reason; what dies with something else can be."""
    shares: dict[str, float] = {}
    for layer in seen.layers:
        if layer.prunable < 1:
            reason = layer.ungated or "?"
            shares[reason] = shares.get(reason, 0.0) + layer.volume_share * (1 - layer.prunable)
    return dict(sorted(shares.items(), key=lambda entry: -entry[1])[:8])


def compare_torch_pruning(entry: Model) -> Record:
    """Does Torch-Pruning build its dependency graph?"""
    import torch_pruning

    model = copy.deepcopy(prepared(entry)).float()
    example = entry.example(entry.batches[0])
    example = tuple(t.float() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in example)
    begin = time.perf_counter()
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        try:
            torch_pruning.DependencyGraph().build_dependency(model, example_inputs=example)
        except Exception as error:
            return {"ok": False, "reason": one_line(error)}
    return {"ok": True, "seconds": round(time.perf_counter() - begin, 3)}
