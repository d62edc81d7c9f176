"""ONNX: write a net to a file; run a file in ONNX Runtime, and count its costs."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import logging
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from fxprune.count import Call, Count, Writers, batch_size, positions, written_by
from fxprune.errors import ExportError, FxPruneError, OptionError, named
from fxprune.torch_private import tensors_in, tree_map

_CONVOLUTIONS, _LINEAR = ("Conv", "ConvTranspose"), ("Gemm", "MatMul")


@dataclass(frozen=True)
class LayerCall:
    """A node with a weight that is stored in the file; one whose weight is computed is no layer."""

    kind: str
    key: Any  # of its weight
    x: str
    y: str
    weight: int
    bias: int

    def cost(self, shapes: dict[str, tuple[int, ...]], batch: int) -> Call:
        """``shapes`` are those of what it reads and writes."""
        x, y = shapes[self.x], shapes[self.y]
        axis = 1 if self.kind in _CONVOLUTIONS else len(y) - 1
        area = positions(y, axis, batch)
        sites = positions(x, axis, batch) if self.kind == "ConvTranspose" else area
        return Call(self.weight, self.bias, y[axis], area, sites, self.kind in _CONVOLUTIONS)


def layer_calls(graph: Any) -> list[LayerCall]:
    """In the order of the file."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    turned = {
        node.output[0]: stored[node.input[0]]
        for node in graph.node
        if node.op_type == "Transpose" and node.input[0] in stored
    }
    calls = []
    for node in graph.node:
        if node.op_type in _CONVOLUTIONS and node.input[1] in stored:
            weight, bias = stored[node.input[1]], (*node.input, "")[2]
            key = weight.name
        elif node.op_type in _LINEAR and (node.input[1] in stored or node.input[1] in turned):
            is_turned = node.input[1] in turned
            weight, bias = (turned if is_turned else stored)[node.input[1]], (*node.input, "")[2]
            if node.op_type == "MatMul":
                bias = _added(node, graph, stored)
            rows_first = is_turned != any(at.name == "transB" and at.i for at in node.attribute)
            # The weight of a layer that is called twice may be in the file twice, once transposed: compare the values.
            key = _digest(weight, rows_first), bias
        else:
            continue
        biases = prod(stored[bias].dims) if bias in stored else 0
        calls.append(LayerCall(node.op_type, key, node.input[0], node.output[0], prod(weight.dims), biases))
    return calls


def _added(node: Any, graph: Any, stored: dict[str, Any]) -> str:
    """The bias of a product of matrices: the stored vector, if all that the file does with the product is to add it."""
    readers = [reader for reader in graph.node if node.output[0] in reader.input]
    if len(readers) != 1 or readers[0].op_type != "Add":
        return ""
    return next((name for name in readers[0].input if name in stored and len(stored[name].dims) == 1), "")


def _digest(weight: Any, rows_first: bool) -> str:
    from onnx import numpy_helper

    values = numpy_helper.to_array(weight)
    return hashlib.sha256((values if rows_first else values.T).tobytes()).hexdigest()


def _products(graph: Any, calls: list[LayerCall]) -> list[tuple[str, str]]:
    """What products of two matrices read and write, none of which is a layer's weight."""
    layers = {call.y for call in calls}
    return [(n.input[0], n.output[0]) for n in graph.node if n.op_type in _LINEAR and n.output[0] not in layers]


def _params(graph: Any) -> int:
    """All tensors of the file but statistics of batch norms, and indices and numbers that come from code."""
    statistics = {name for node in graph.node if node.op_type == "BatchNormalization" for name in node.input[3:]}
    sizes: dict[Any, int] = {}
    for tensor in graph.initializer:
        if tensor.name not in statistics and tensor.data_type in _NUMBERS and prod(tensor.dims) > 1:
            both_ways = frozenset([_digest(tensor, True), _digest(tensor, False)])  # see layer_calls
            sizes[both_ways if len(tensor.dims) == 2 else tensor.name] = prod(tensor.dims)
    return sum(sizes.values())


def _logits(graph: Any, calls: list[LayerCall]) -> set[Any]:
    """Linear layers that alone write a result."""
    layers = {call.y: call for call in calls}
    writers: dict[str, frozenset[Writers]] = {}
    for node in graph.node:
        own = layers.get(node.output[0])
        operands = [writers.get(name, frozenset()) for name in node.input]
        mixed = written_by(operands, node.op_type == "Concat")
        written = mixed if own is None else frozenset([frozenset([own.key])])
        writers.update(dict.fromkeys(node.output, written))
    results = frozenset().union(*(writers.get(value.name, frozenset()) for value in graph.output))
    return {call.key for call in calls if frozenset([call.key]) in results and call.kind not in _CONVOLUTIONS}


_NUMBERS = (1, 10, 11)  # float, half, double
_FLOATS = {"tensor(float)": torch.float32, "tensor(double)": torch.float64, "tensor(float16)": torch.float16}


def installed(*names: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in names)


def require(what: str, *names: str) -> None:
    missing = [name for name in names if not installed(name)]
    if missing:
        raise OptionError(f"{what} needs {' and '.join(missing)}", fix=f"pip install {' '.join(missing)}")


def to_onnx(net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """The contents of an ONNX file whose batch size is free."""
    bound = inspect.signature(net.forward).bind(*args, **kwargs)
    first, batch = batch_size(args, kwargs), Dim("batch")

    def free(leaf: Any) -> Any:
        return {0: batch} if isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[0] == first else None

    shapes = {name: tree_map(free, value) for name, value in bound.arguments.items()}
    try:
        with _quiet():
            program = torch.onnx.export(
                net, bound.args, kwargs=bound.kwargs, dynamo=True, dynamic_shapes=shapes, verbose=False
            )
    except Exception as error:
        raise ExportError(
            f"torch cannot export this net to ONNX: {_cause(error)}",
            fix="what ONNX has no word for must go from the model; --source writes any net",
        ) from error
    assert program is not None
    data: bytes = program.model_proto.SerializeToString()
    return data


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep quiet what torch's exporter logs, warns of and prints."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _cause(error: BaseException) -> str:
    """The innermost error: torch wraps it into long advice on how to debug the exporter."""
    while error.__cause__ is not None:
        error = error.__cause__
    return named(error)


class OnnxNet:
    """A file in ONNX Runtime, called with the arguments of the torch net."""

    def __init__(self, data: bytes, name: str) -> None:
        self.data, self.name = data, name
        self.session = _session(data, name, optimise=True)

    @classmethod
    def load(cls, file: Path) -> OnnxNet:
        import onnx

        try:
            model = onnx.load(str(file))  # with weights that lie beside it
            return cls(model.SerializeToString(), str(file))
        except FxPruneError:
            raise
        except Exception as error:
            raise FxPruneError(f"{file} is damaged: {_cause(error)}", fix="export the net again") from error

    def __call__(self, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        return [torch.from_numpy(value) for value in self.session.run(None, self._feed(args, kwargs))]

    def _feed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Inputs by name; positional ones take the names that are left, in the order of the file."""
        inputs, given = self.session.get_inputs(), tensors_in(args)
        named = {name: value for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
        if len(inputs) != len(given) + len(named) or not set(named) <= {at.name for at in inputs}:
            raise FxPruneError(
                f"{self.name} takes other inputs than the run's net: {', '.join(at.name for at in inputs)}",
                fix="check a file that was exported from a net of this run",
            )
        rest = iter(given)
        values = {at.name: named[at.name] if at.name in named else next(rest) for at in inputs}
        return {at.name: values[at.name].to(_FLOATS.get(at.type, values[at.name].dtype)).numpy() for at in inputs}

    def count(self, *args: Any, **kwargs: Any) -> Count:
        """What its convolutions cost: run it with what they read and write as outputs, and look at the shapes."""
        import onnx

        model = onnx.load_from_string(self.data)
        calls = layer_calls(model.graph)
        known = {value.name for value in (*model.graph.input, *model.graph.output)}
        products = _products(model.graph, calls)
        asked = dict.fromkeys(name for call in calls for name in (call.x, call.y))
        asked |= dict.fromkeys(name for product in products for name in product)
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in asked if name not in known)
        session = _session(model.SerializeToString(), self.name, optimise=False)
        feed, names = self._feed(args, kwargs), [value.name for value in session.get_outputs()]
        shapes = {name: value.shape for name, value in zip(names, session.run(None, feed), strict=True)}
        shapes.update({name: value.shape for name, value in feed.items()})
        total = Count()
        for call in calls:
            total.add(call.key, call.cost(shapes, batch_size(args, kwargs)))
        graph = onnx.load_from_string(self.data).graph
        total.logits, total.params = _logits(graph, calls), _params(graph)
        batch = batch_size(args, kwargs)
        flops = [2 * call.weight * call.cost(shapes, batch).sites for call in calls]
        total.flops = sum(flops) + sum(2 * prod(shapes[y]) * shapes[x][-1] // max(batch, 1) for x, y in products)
        return total


def _session(data: bytes, name: str, *, optimise: bool) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise FxPruneError(f"ONNX Runtime does not take {name}: {_cause(error)}", fix="export the net again") from error
