"""Everything known about a model before it is touched: the one analysis under wrap, export and inspect."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn

from fxprune.analysis.gates import Layer, Unit, units_of
from fxprune.analysis.guards import Guards, Sure
from fxprune.analysis.streams import layer_graph
from fxprune.channels import Channels
from fxprune.cost.model import Cost, CostModel
from fxprune.errors import ModelError, OptionError
from fxprune.torch_private import COMPILED, QUANTISED, backward_hooks
from fxprune.trace import Trace
from fxprune.trace.tracer import has_hooks

_EXPORTED = {
    overload
    for rank in "123"
    for operator in (getattr(torch.ops.aten, f"conv{rank}d"), torch.ops.aten.convolution)
    for overload in map(operator.__getattr__, operator.overloads())
}


@dataclass(frozen=True, eq=False)
class Analysis:
    """Channels, gates, guards and costs of one model."""

    channels: Channels
    layers: tuple[Layer, ...]
    guards: Guards
    costs: CostModel

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        return units_of(self.layers)

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """Gates of places inside of attention heads: which channel of each head a place is, the strongest first. That
        is decided by the weights as they are at ``wrap``, and stays."""
        return {unit.name: unit.rows.tolist() for unit in self.units if unit.grain == "width"}

    @property
    def variables(self) -> int:
        return sum(unit.variables for unit in self.units)

    @cached_property
    def sure(self) -> Sure:
        return Sure.by(self.guards, self.channels.table, self.variables)

    @cached_property
    def graph(self) -> nx.DiGraph:
        return layer_graph(self.channels)

    @cached_property
    def full_cost(self) -> Cost:
        return self.costs.full(self.variables)

    @cached_property
    def smallest(self) -> npt.NDArray[np.bool_]:
        """The fewest gates that leave a working network."""
        return self.guards.hold(np.zeros(self.variables, dtype=bool), np.zeros(self.variables))


def logits(layers: tuple[Layer, ...]) -> frozenset[str]:
    """Linear layers that alone write a model output: the volume leaves them out."""
    return frozenset(layer.name for layer in layers if layer.writes_output and not layer.calls[0].is_conv)


def warn_of_hooks(model: nn.Module, traced: Trace) -> None:
    """Modules that the graph looks into are not called any more, nor are their hooks."""
    kept = tuple(f"{node.target}." for node in traced.graph.nodes if node.op == "call_module")
    silent = [
        name or "the model"
        for name, module in model.named_modules()
        if (has_hooks(module) or backward_hooks(module)) and not f"{name}.".startswith(kept)
    ]
    if silent:
        warnings.warn(
            f"hooks of {', '.join(silent)} are not called by the wrapped and the slim net, though what forward hooks "
            "compute is part of them; register hooks that observe on those nets",
            stacklevel=4,
        )


def check_model(model: nn.Module) -> None:
    """Refuse what cannot be pruned sensibly, before any work is done."""
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"expected a torch.nn.Module, got {type(model).__name__}",
            fix=f"pass an instance: {model.__name__}()"
            if isinstance(model, type)
            else "pass the model itself, or a function that returns one on the command line",
        )
    if torch.is_inference_mode_enabled():
        raise ModelError(
            "the model cannot be traced inside torch.inference_mode()",
            fix="leave inference_mode: a wrapped model is trained; where no gradient is needed use torch.no_grad()",
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("the model is scripted: its Python code is gone", fix="pass the original model")
    for name, module in model.named_modules():
        if hasattr(module, "_fxprune_wrapped"):
            raise ModelError(
                f"{name or 'the model'} is wrapped already",
                fix="use it as it is, or its unwrap() to get the original back",
            )
        if hasattr(module, COMPILED):
            raise ModelError(
                f"{name or 'the model'} is compiled by torch.compile",
                fix="pass the original model, and compile the slim one that export returns",
            )
        if isinstance(module, fx.GraphModule) and any(node.target in _EXPORTED for node in module.graph.nodes):
            raise ModelError(
                f"{name or 'the model'} is made of torch's inner operators, as torch.export leaves them",
                fix="pass the original model, and export the slim one",
            )
        if hasattr(module, QUANTISED):
            raise ModelError(
                f"{name or 'the model'} is quantised: its weights cannot be cut any more",
                fix="wrap the model as it was before that, and quantise the slim one that export returns",
            )
    for name, tensor in named_tensors(model):
        if nn.parameter.is_lazy(tensor):
            raise ModelError(
                f"{name} has no shape yet: its layer is a lazy one", fix="run one batch through the model first"
            )
    check_finite(model)


def named_tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """All parameters and buffers."""
    return [*model.named_parameters(), *model.named_buffers()]


def check_data(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Refuse the meta device where numbers are needed."""
    for name, tensor in tensors:
        if tensor.is_meta:
            raise ModelError(
                f"{name} is on the meta device: there are no numbers to work with",
                fix="load the weights first: model.to_empty(device=...), then model.load_state_dict(...), then wrap it",
            )


def numbers(tensor: torch.Tensor, name: str) -> npt.NDArray[Any]:
    """A tensor as an array."""
    check_data([(name, tensor)])
    found: npt.NDArray[Any] = tensor.detach().cpu().numpy()
    return found


def check_finite(model: nn.Module) -> None:
    """Refuse NaN: nothing can be compared with it. Buffers may be infinite: masks of attention are."""
    for name, tensor in named_tensors(model):
        numbers = tensor.is_floating_point() or tensor.is_complex()
        if numbers and not tensor.is_meta and not _is_fine(tensor.detach(), isinstance(tensor, nn.Parameter)):
            raise ModelError(
                f"{name} holds NaN or infinite values",
                fix="load weights that are finite: a cost or a criterion computed from these would mean nothing",
            )


def _is_fine(tensor: torch.Tensor, finite: bool) -> bool:
    """A finite sum settles it, ten times faster; a sum may also overflow."""
    if bool(torch.isfinite(tensor.sum())):
        return True
    return bool(torch.isfinite(tensor).all()) if finite else not bool(torch.isnan(tensor).any())


def leaf_test(model: nn.Module, leaf: tuple[str | type, ...]) -> Callable[[str, nn.Module], bool]:
    """Which submodules are not looked into."""

    def test(path: str, module: nn.Module) -> bool:
        return any(_leaf_matches(pattern, path, module) for pattern in leaf)

    for pattern in leaf:
        if not any(_leaf_matches(pattern, name, module) for name, module in model.named_modules()):
            raise OptionError(
                f"leaf: {pattern!r} matches no submodule",
                fix="use a name of model.named_modules(), such as "
                f"{next((name for name, _ in model.named_modules() if name), '')!r}, a pattern, or in Python a class",
            )
    return test


def _leaf_matches(pattern: str | type, path: str, module: nn.Module) -> bool:
    return isinstance(module, pattern) if isinstance(pattern, type) else fnmatchcase(path, pattern)
