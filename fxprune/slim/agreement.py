"""A freshly wrapped net computes what the model computes: compared before anything is trained.

Tracing follows values and shapes. Code that asks for something else (``type(x) is torch.Tensor``) may go another way
with what a tracer hands it than with a tensor, and nothing in the graph could tell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import fx, nn

from fxprune.count import batch_size
from fxprune.errors import TraceError, first_line
from fxprune.modules import evaluating
from fxprune.slim.verify import are_numbers, difference, noise, positive, run, tensors
from fxprune.torch_private import tree_map
from fxprune.trace.tracer import has_hooks

Example = tuple[tuple[Any, ...], dict[str, Any]]


def check_agreement(model: nn.Module, wrapped: fx.GraphModule, example: Example) -> None:
    """Raise if they differ. ``model`` is a copy that may be scribbled on, ``wrapped`` comes out as it went in.

    Nothing is compared where a call would be more than computing (hooks of the user's), where there are no numbers
    (meta tensors), and for a model that differs from itself.
    """
    held = [*model.parameters(), *model.buffers()]
    if any(has_hooks(module) for module in model.modules()) or any(tensor.is_meta for tensor in held):
        return
    kept = [(buffer, buffer.clone()) for buffer in wrapped.buffers()]
    with evaluating(model), evaluating(wrapped):
        for given, expected in _computed(model, example, next((t.device for t in held), torch.device("cpu"))):
            try:
                found = _outputs(wrapped, given)
            except Exception as error:  # what the model takes
                raise _told(f"fails on what the model takes: {first_line(error)}") from error
            if _differ(expected, found) and not _differ(expected, _outputs(model, given)):
                since, where = _first_difference(model, wrapped, given)
                raise _told(f"computes something else than the model, {since}", where)
            break
    for buffer, before in kept:
        buffer.copy_(before)


def _computed(
    model: nn.Module, example: Example, device: torch.device
) -> Iterator[tuple[Example, list[torch.Tensor]]]:
    """Inputs of which the model makes numbers, and these: noise if it takes that, else the example."""
    drawn = noise(*example, batch_size(*example), device, None)
    for given in (drawn, positive(drawn), example):
        try:
            outputs = _outputs(model, given)
            usable = are_numbers(outputs)
        except Exception:  # whatever the user's code raises
            continue
        if usable:
            yield given, outputs


def _differ(expected: list[torch.Tensor], found: list[torch.Tensor]) -> bool:
    """By more than rounding; whole numbers may hang on that, too."""
    if len(expected) != len(found):
        return True
    floats = [(a, b) for a, b in zip(expected, found, strict=True) if a.is_floating_point() or a.is_complex()]
    return any(difference(a, b) > torch.finfo(a.dtype).eps ** 0.5 for a, b in floats)


def _outputs(net: nn.Module, given: Example) -> list[torch.Tensor]:
    """Of inputs that it may write to."""
    args, kwargs = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, given)
    return tensors(run(net, args, kwargs))


def _told(what: str, where: str | None = None) -> TraceError:
    return TraceError(
        f"the graph of the model {what}",
        where=where,
        fix="forward() asks for more than values and shapes of tensors, such as type(x): take that out, or keep the "
        "submodule whole that does so, leaf=['its.name'] (wrap(..., verify=False) does not compare)",
    )


def _first_difference(model: nn.Module, wrapped: fx.GraphModule, given: Example) -> tuple[str, str | None]:
    """The first layer, in words, and the line that calls it."""
    calls = {str(node.target): node for node in reversed(wrapped.graph.nodes) if node.op == "call_module"}
    one, other = (_of_layers(net, calls, given) for net in (model, wrapped))
    for name, node in reversed(calls.items()):
        if name in one and _differ(one[name], other.get(name, [])):
            return f"from {name!r} on", node.meta.get("source")
    return "behind all of its layers", None


def _of_layers(net: nn.Module, names: Collection[str], given: Example) -> dict[str, list[torch.Tensor]]:
    """What each layer returns when it is called for the first time."""
    found: dict[str, list[torch.Tensor]] = {}

    def note(name: str, output: Any) -> None:
        found.setdefault(name, [each.clone() for each in tensors(output)])

    handles = [
        module.register_forward_hook(lambda _, __, output, name=name: note(name, output))
        for name, module in net.named_modules()
        if name in names
    ]
    try:
        _outputs(net, given)
    finally:
        for handle in handles:
            handle.remove()
    return found
