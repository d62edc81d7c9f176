"""Everything known about a model before it is touched: the one analysis under wrap, export and inspect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fxprune.budget.cost import Cost, CostModel
from fxprune.core import Channels
from fxprune.errors import ModelError, OptionError
from fxprune.passes.channels import relate
from fxprune.passes.gates import Layer, gate_count, place_gates
from fxprune.passes.graph import layer_graph
from fxprune.passes.guards import Guard, Requirement, keep_alive, prices, requirements, spine
from fxprune.tracing import trace
from fxprune.tracing.guess import trace_without_example


@dataclass(frozen=True, eq=False)
class Analysis:
    """Channels, gates, guards and costs of one model."""

    channels: Channels
    layers: tuple[Layer, ...]
    guards: tuple[Guard, ...]
    costs: CostModel

    @property
    def variables(self) -> int:
        return gate_count(self.layers)

    @cached_property
    def graph(self) -> nx.DiGraph:
        return layer_graph(self.channels)

    @cached_property
    def full_cost(self) -> Cost:
        return self.costs.exact(np.ones(self.variables, dtype=bool))

    @cached_property
    def smallest(self) -> npt.NDArray[np.bool_]:
        """The fewest gates that leave a working network."""
        return self.keep_alive(np.zeros(self.variables, dtype=bool), np.zeros(self.variables))

    @cached_property
    def requirements(self) -> tuple[Requirement, ...]:
        return requirements(self.channels, self.layers)

    def works(self, opened: npt.NDArray[np.bool_]) -> bool:
        """Whether everything lives that must."""
        alive = self.costs.logic.alive(opened[:, None])[:, 0]
        return all(requirement.met(alive) for requirement in self.requirements)

    def keep_alive(self, opened: npt.NDArray[np.bool_], scores: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """``opened`` and as few gates more as the network needs, on guarded layers first, best scores first."""
        if self.works(opened):  # nearly always, and quickly seen
            return np.array(opened)
        rows = np.zeros(self.channels.table.size)
        price = prices(self.layers, self.guards, scores)
        return keep_alive(self.channels.table, self.requirements, opened, price, rows)

    def keep_cheap(self, opened: npt.NDArray[np.bool_], rows: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """``opened`` and what else the network needs, where a channel costs ``rows`` (per id)."""
        return keep_alive(self.channels.table, self.requirements, opened, np.zeros(self.variables), rows)


def analyse(
    model: nn.Module, example: Any, *, ignore: tuple[str, ...] = (), leaf: tuple[str | type, ...] = ()
) -> Analysis:
    """Trace ``model`` and find out what can be pruned; without an example everything but the areas is known."""
    check_model(model)
    is_leaf = _leaf_test(model, leaf)
    traced = trace_without_example(model, leaf=is_leaf) if example is None else trace(model, example, leaf=is_leaf)
    channels = relate(traced)
    layers = place_gates(channels, ignore)
    sliced = {mixer.name: mixer for mixer in channels.mixers}
    counted = sum(mixer.ids.size * (mixer.inputs.shape[1] * mixer.kernel + mixer.bias) for mixer in sliced.values())
    counted += sum(
        affine.ids.size * affine.count for affine in {affine.name: affine for affine in channels.affines}.values()
    )
    total = sum(parameter.numel() for parameter in model.parameters())
    return Analysis(channels, layers, spine(channels, layers), CostModel(channels, max(total - counted, 0)))


def check_model(model: nn.Module) -> None:
    """Refuse what cannot be pruned sensibly, before any work is done."""
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"expected a torch.nn.Module, got {type(model).__name__}",
            fix="pass the model itself, or a function that returns one on the command line",
        )
    if hasattr(model, "_fxprune_wrapped"):
        raise ModelError(
            "the model is wrapped already", fix="use it as it is, or model.unwrap() to get the original back"
        )
    if torch.is_inference_mode_enabled():
        raise ModelError(
            "the model cannot be traced inside torch.inference_mode()",
            fix="leave inference_mode: a wrapped model is trained; where no gradient is needed use torch.no_grad()",
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("the model is scripted: its Python code is gone", fix="pass the original model")
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod"):
            raise ModelError(
                f"{name or 'the model'} is compiled by torch.compile",
                fix="pass the original model, and compile the slim one that export returns",
            )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise ModelError(
                f"{name} has no shape yet: its layer is a lazy one", fix="run one batch through the model first"
            )
    check_finite(model)


def check_finite(model: nn.Module) -> None:
    """Refuse NaN: nothing can be compared with it."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and not tensor.is_meta and not _is_finite(tensor.detach()):
            raise ModelError(
                f"{name} holds NaN or infinite values",
                fix="load weights that are finite: a cost or a criterion computed from these would mean nothing",
            )


def _is_finite(tensor: torch.Tensor) -> bool:
    """A finite sum settles it, ten times faster; a sum may also overflow."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _leaf_test(model: nn.Module, leaf: tuple[str | type, ...]) -> Callable[[str, nn.Module], bool]:
    def test(path: str, module: nn.Module) -> bool:
        return any(_leaf_matches(pattern, path, module) for pattern in leaf)

    for pattern in leaf:
        if not any(_leaf_matches(pattern, name, module) for name, module in model.named_modules()):
            raise OptionError(
                f"leaf={pattern!r} matches no submodule", fix="use a name of model.named_modules() or a class"
            )
    return test


def _leaf_matches(pattern: str | type, path: str, module: nn.Module) -> bool:
    return isinstance(module, pattern) if isinstance(pattern, type) else fnmatchcase(path, pattern)
