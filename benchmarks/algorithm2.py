"""A pruned residual net as the paper's Algorithm 2 computes it: streams stay as wide as they were.

Every layer gathers the living ones of its input channels, and what it adds to a stream is first spread over zeros of
the stream's full width by an indexed add. (The algorithm's line ``x_out <= i_in`` is a misprint for x_in.)
"""

from __future__ import annotations

import copy
import operator
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from fxprune.gated.wrapped import Wrapped

Positions = Any  # an array of channel numbers, or None: all of them


def spread(x: torch.Tensor, index: torch.Tensor, channels: int) -> torch.Tensor:
    """``x`` at these channels of a tensor of zeros."""
    zeros = x.new_zeros(x.shape[0], channels, *x.shape[2:])
    if x.is_contiguous(memory_format=torch.channels_last):
        zeros = zeros.contiguous(memory_format=torch.channels_last)
    return zeros.index_add_(1, index, x)


def algorithm2(wrapped: Wrapped) -> fx.GraphModule:
    """A net of plain layers (convolutions, batch norms, activations, poolings, adds, one linear layer) that computes
    what the hardened ``wrapped`` computes."""
    model, table = wrapped.unwrap().eval(), wrapped.analysis.channels.table
    channels = wrapped.analysis.channels
    alive = wrapped.analysis.costs.logic.present(wrapped.masks()[:, None])[:, 0]
    rows = {mixer.name: alive[mixer.ids.reshape(-1)] for mixer in channels.mixers}
    columns = {mixer.name: alive[mixer.inputs.reshape(-1)] for mixer in channels.mixers}
    traced = fx.GraphModule(model, copy.deepcopy(channels.trace.graph))
    assert table.size
    graph, layout = traced.graph, {}
    for node in list(graph.nodes):
        source = next((argument for argument in node.args if isinstance(argument, fx.Node)), None)
        here: Positions = layout.get(source)
        module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            kept, written = np.flatnonzero(columns[str(node.target)]), np.flatnonzero(rows[str(node.target)])
            if here is None and kept.size < columns[str(node.target)].size:
                with graph.inserting_before(node):
                    index = _index(traced, graph, kept)
                    node.args = (graph.call_method("index_select", (source, 1, index)),)
            traced.set_submodule(str(node.target), _cut(module, written, kept))
            layout[node] = written if isinstance(module, nn.Conv2d) and written.size < module.out_channels else None
        elif isinstance(module, nn.BatchNorm2d) and here is not None:
            traced.set_submodule(str(node.target), _cut_norm(module, here))
            layout[node] = here
        elif node.target in (operator.add, operator.iadd, torch.add):
            width = node.meta["value"].shape[1]
            living = [argument for argument in node.args if layout.get(argument) is None or layout[argument].size]
            with graph.inserting_before(node):
                operands = tuple(
                    argument if layout.get(argument) is None
                    else graph.call_function(spread, (argument, _index(traced, graph, layout[argument]), width))
                    for argument in living
                )  # fmt: skip
            layout[node] = None
            if len(operands) > 1:
                node.args = operands
            else:  # the other side is dead: there is nothing to add
                layout[operands[0]] = None
                node.replace_all_uses_with(operands[0])
        else:
            layout[node] = here
    graph.eliminate_dead_code()
    graph.lint()
    traced.recompile()
    return traced


def _index(root: nn.Module, graph: fx.Graph, positions: Positions) -> fx.Node:
    name = f"positions_{sum(1 for _ in root.buffers())}"
    root.register_buffer(name, torch.from_numpy(positions))
    return graph.get_attr(name)


def _cut(layer: Any, rows: Positions, columns: Positions) -> nn.Module:
    smaller = copy.deepcopy(layer)
    smaller.weight = nn.Parameter(layer.weight.detach()[rows][:, columns].clone())
    if layer.bias is not None:
        smaller.bias = nn.Parameter(layer.bias.detach()[rows].clone())
    if isinstance(smaller, nn.Conv2d):
        smaller.out_channels, smaller.in_channels = len(rows), len(columns)
    return smaller


def _cut_norm(norm: nn.BatchNorm2d, rows: Positions) -> nn.Module:
    smaller = nn.BatchNorm2d(len(rows), norm.eps).eval()
    for name in ("weight", "bias", "running_mean", "running_var"):
        getattr(smaller, name).data = getattr(norm, name).detach()[rows].clone()
    return smaller
