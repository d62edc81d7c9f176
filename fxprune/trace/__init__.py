"""From any ``nn.Module`` to a graph whose nodes know their shapes and the user's line of code."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from fxprune.errors import FxPruneError, InputError, TraceError, first_line
from fxprune.modules import copy_module, meta_copy
from fxprune.torch_private import AnyConv, tensors_in, tree_map
from fxprune.trace.source_lines import error_line
from fxprune.trace.tracer import Leaf, Specialisation, Tracer


@dataclass(frozen=True)
class Trace:
    """A model as a graph over a copy without data (``root``).

    Every node's ``meta`` holds ``value`` (a meta tensor, a size ...), ``source`` (file:line) and ``module``.
    """

    graph: fx.Graph
    root: nn.Module
    model: nn.Module = field(repr=False)  # the user's, for the values of constants
    specialisations: tuple[Specialisation, ...] = ()
    leaves: tuple[Leaf, ...] = ()
    example: tuple[tuple[Any, ...], dict[str, Any]] = field(default=((), {}), repr=False)  # without data


def example_arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A tensor, a tuple of positional arguments or a dict of keyword arguments, as ``(args, kwargs)``."""
    if isinstance(example, dict):
        return (), example
    return (tuple(example), {}) if isinstance(example, tuple) else ((example,), {})


def trace(
    model: nn.Module,
    example: Any,
    *,
    leaf: Callable[[str, nn.Module], bool] = lambda path, module: False,
    device: torch.device | None = None,
) -> Trace:
    """Trace a copy of ``model`` in eval mode for ``example``; the model itself is not touched.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))
    >>> traced = trace(net, torch.zeros(1, 3, 8, 8))
    >>> [node.name for node in traced.graph.nodes]
    ['input_1', '_0', '_1', '_2', '_3', 'output']
    """
    args, kwargs = example_arguments(example)
    root = meta_copy(model)
    devices = [tensor.device for tensor in (*tensors_in((args, kwargs)), *model.parameters()) if not tensor.is_meta]
    tracer = Tracer(model, device or (devices[0] if devices else torch.device("cpu")), leaf)
    # What draws random numbers here must not change those of the user; and only the model's own no_grad counts.
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        try:
            graph = tracer.trace_example(root, args, kwargs)
        except Exception as error:
            raise _explained(model, args, kwargs, error) from error
    without_data = tree_map(
        lambda t: t.to("meta") if isinstance(t, torch.Tensor) and t.is_floating_point() else t, (args, kwargs)
    )
    return Trace(graph, root, model, tuple(tracer.specialisations), tuple(tracer.leaves), without_data)


_SIZES = (224, 32, 64, 128, 256, 96, 299, 28, 512, 16)
_FIX = "pass example_inputs, for example wrap(model, budget, example_inputs=torch.zeros(1, 3, 224, 224))"


def trace_without_example(model: nn.Module, *, leaf: Callable[[str, nn.Module], bool]) -> Trace:
    """Trace for an invented input as wide as the first layer; the model's code must not depend on its image size."""
    first: Any = next((m for m in model.modules() if isinstance(m, (AnyConv, nn.Linear))), None)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    shapes: list[tuple[int, ...]] = []
    if isinstance(first, nn.Linear):
        shapes = [(1, first.in_features)]
    elif first is not None:
        shapes = [(1, first.in_channels, *(size,) * len(first.kernel_size)) for size in _SIZES]
    causes = []
    for shape in shapes:
        try:
            traced = trace(model, torch.empty(shape, dtype=first.weight.dtype, device="meta"), leaf=leaf, device=device)
        except FxPruneError as error:
            causes.append(f": {error.cause}")
            continue
        consumed = [s for s in traced.specialisations if s.kind != "training"]
        if consumed:
            raise TraceError("the model's code looks at the size of its input", where=consumed[0].source, fix=_FIX)
        return traced
    raise TraceError("".join(["no example was given and none could be made up", *causes[:1]]), fix=_FIX)


def real_root(traced: Trace, model: nn.Module) -> nn.Module:
    """A copy of the user's model with everything that the graph refers to."""
    copied = copy_module(model)
    read = {str(node.target).partition(".")[0] for node in traced.graph.nodes if node.op in ("call_module", "get_attr")}
    own = dict(copied.named_modules())
    memo = {id(module): own[path] for path, module in traced.root.named_modules() if path in own}
    for name, child in traced.root.named_children():  # made inside forward(), perhaps of parts of the model
        if name not in copied._modules and name in read:
            copied.add_module(name, copy_module(child, memo))
    for node in traced.graph.nodes:  # tensors made inside forward()
        if node.op == "get_attr" and "." not in node.target and not hasattr(copied, node.target):
            copied.register_buffer(node.target, getattr(traced.root, node.target), persistent=False)
    for module in copied.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]  # the graph reads some of these operands again
    return copied


def graph_module(traced: Trace, model: nn.Module) -> fx.GraphModule:
    """The traced graph with a copy of the user's weights: computes what ``model`` computes."""
    copied = fx.GraphModule(real_root(traced, model), copy.deepcopy(traced.graph), type(model).__name__)
    return copied.train(model.training)


def _explained(model: nn.Module, args: Any, kwargs: Any, error: Exception) -> Exception:
    """The error for the user: the model may reject the example by itself, or only be impossible to trace."""
    if any(tensor.is_meta for tensor in tensors_in((args, kwargs))):
        return TraceError(f"the model cannot be traced: {first_line(error)}", where=error_line(error))
    clone = copy_module(model).eval()
    try:
        with torch.no_grad():
            clone(*args, **kwargs)
    except Exception as own:
        cause = f"the model rejects the example inputs: {first_line(own)}"
        return InputError(cause, where=error_line(own), fix=_what_to_pass(args, own))
    return TraceError(
        f"the model's forward cannot be traced: {first_line(error)}",
        where=error_line(error),
        fix="move the offending lines into a submodule: what cannot be traced is then kept as a leaf" + _part(model),
    )


def _what_to_pass(args: Any, error: Exception) -> str:
    if args and not isinstance(args[0], torch.Tensor):
        return "give example_inputs as a tensor, a tuple of positional or a dict of keyword arguments"
    if isinstance(error, TypeError) and "forward()" in str(error):
        return "give example_inputs for all that forward() takes (--input NAME=SHAPE on the command line)"
    if isinstance(error, (AttributeError, NameError, ImportError)):
        return "mend that line, or give all inputs that forward() needs (--input NAME=SHAPE on the command line)"
    if "dtype" in str(error) or "type (" in str(error):
        return "pass example_inputs of the dtype that the model has (--dtype on the command line)"
    return "pass example_inputs (--input on the command line) of the shape that the model expects"


_MOST = 0.7  # of the convolutions' weights: a part that holds less is one block among others


def _part(model: nn.Module) -> str:
    """Advice to wrap the submodule with most of the convolutions, such as the backbone of a detector."""
    weights = {
        name: sum(conv.weight.numel() for conv in child.modules() if isinstance(conv, AnyConv))
        for name, child in model.named_children()
    }
    name = max(weights, key=lambda name: weights[name], default="")
    if len(weights) < 2 or weights[name] <= _MOST * sum(weights.values()):
        return ""
    return f"; or wrap the part with the convolutions alone: model.{name} = fxprune.wrap(model.{name}, ...)"
