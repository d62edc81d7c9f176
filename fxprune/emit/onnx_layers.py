"""The layers of an ONNX file: which of its nodes are calls of convolutions and linear layers, and with what weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import prod
from typing import Any

from fxprune.count import Call, positions

_CONVOLUTIONS, _LINEAR = ("Conv", "ConvTranspose"), ("Gemm", "MatMul")


@dataclass(frozen=True)
class LayerCall:
    """A node whose weight is stored in the file: one that is computed is no layer."""

    kind: str
    key: Any  # of its weight
    x: str
    y: str
    weight: int
    bias: int

    def cost(self, shapes: dict[str, tuple[int, ...]], batch: int) -> Call:
        """``shapes`` of all that it reads and writes."""
        x, y = shapes[self.x], shapes[self.y]
        axis = 1 if self.kind in _CONVOLUTIONS else len(y) - 1
        area = positions(y, axis, batch)
        sites = positions(x, axis, batch) if self.kind == "ConvTranspose" else area
        return Call(self.weight, self.bias, y[axis], area, sites, self.kind in _CONVOLUTIONS or area > 1)


def layer_calls(graph: Any) -> list[LayerCall]:
    """In the order of the file."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    turned = {
        node.output[0]: stored[node.input[0]]
        for node in graph.node
        if node.op_type == "Transpose" and node.input[0] in stored
    }
    found = []
    for node in graph.node:
        if node.op_type in _CONVOLUTIONS and node.input[1] in stored:
            bias = node.input[2] if len(node.input) > 2 else ""
            found.append(_call(node, node.input[1], stored, node.input[1], bias))
        elif node.op_type in _LINEAR and (node.input[1] in stored or node.input[1] in turned):
            bias = _added(node, graph, stored) if node.op_type == "MatMul" else (*node.input, "")[2]
            weight = turned[node.input[1]] if node.input[1] in turned else stored[node.input[1]]
            rows_first = (node.input[1] in turned) != any(at.name == "transB" and at.i for at in node.attribute)
            # A layer that is called twice may lie in the file twice, the other way around: the values tell.
            found.append(_call(node, weight.name, stored, (_digest(weight, rows_first), bias), bias))
    return found


def _call(node: Any, weight: str, stored: dict[str, Any], key: Any, bias: str) -> LayerCall:
    size = prod(stored[bias].dims) if bias in stored else 0
    return LayerCall(node.op_type, key, node.input[0], node.output[0], prod(stored[weight].dims), size)


def _added(node: Any, graph: Any, stored: dict[str, Any]) -> str:
    """The bias of a product of matrices: what alone is done to it is to add a stored vector."""
    readers = [reader for reader in graph.node if node.output[0] in reader.input]
    if len(readers) != 1 or readers[0].op_type != "Add":
        return ""
    return next((name for name in readers[0].input if name in stored and len(stored[name].dims) == 1), "")


def _digest(weight: Any, rows_first: bool) -> str:
    from onnx import numpy_helper

    values = numpy_helper.to_array(weight)
    return hashlib.sha256((values if rows_first else values.T).tobytes()).hexdigest()
