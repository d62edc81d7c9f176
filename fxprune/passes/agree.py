"""A freshly wrapped net computes what the model computes: compared on noise before anything is trained.

Tracing follows values and shapes. Code that asks for something else (``type(x) is torch.Tensor``) may go another way
with what a tracer hands it than with a tensor, and nothing in the graph could tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx, nn

from fxprune.count import batch_size
from fxprune.errors import TraceError
from fxprune.passes.verify import are_numbers, difference, noise, positive, run, tensors
from fxprune.tracing.copies import evaluating
from fxprune.tracing.tracer import has_hooks

Example = tuple[tuple[Any, ...], dict[str, Any]]


def check_agreement(model: nn.Module, wrapped: fx.GraphModule, example: Example) -> None:
    """Raise if they differ. ``model`` is a copy that may be scribbled on, ``wrapped`` comes out as it went in.

    Nothing is compared where a call would be more than computing (hooks of the user's), where there are no numbers
    (meta tensors, noise that the model refuses), and for a model that differs from itself.
    """
    held = [*model.parameters(), *model.buffers()]
    if any(has_hooks(module) for module in model.modules()) or any(tensor.is_meta for tensor in held):
        return
    kept = [(buffer, buffer.clone()) for buffer in wrapped.buffers()]
    with evaluating(model), evaluating(wrapped):
        for given, expected in _computed(model, example, next((t.device for t in held), torch.device("cpu"))):
            if _differ(expected, tensors(run(wrapped, *given))) and not _differ(expected, tensors(run(model, *given))):
                raise _told(model, wrapped, given)
            break
    for buffer, before in kept:
        buffer.copy_(before)


def _computed(
    model: nn.Module, example: Example, device: torch.device
) -> Iterator[tuple[Example, list[torch.Tensor]]]:
    """Noise of which the model makes numbers, and these."""
    drawn = noise(*example, batch_size(*example), device, None)
    for given in (drawn, positive(drawn)):
        try:
            outputs = tensors(run(model, *given))
        except Exception:  # whatever the user's code raises
            continue
        if are_numbers(outputs):
            yield given, outputs


def _differ(expected: list[torch.Tensor], found: list[torch.Tensor]) -> bool:
    """By more than rounding; whole numbers may hang on that, too."""
    if len(expected) != len(found):
        return True
    floats = [(a, b) for a, b in zip(expected, found, strict=True) if a.is_floating_point()]
    return any(difference(a, b) > torch.finfo(a.dtype).eps ** 0.5 for a, b in floats)


def _told(model: nn.Module, wrapped: fx.GraphModule, given: Example) -> TraceError:
    one, other = _outputs(model, wrapped, given), _outputs(wrapped, wrapped, given)
    calls = [node for node in wrapped.graph.nodes if node.op == "call_module" and str(node.target) in one]
    first = next((node for node in calls if _differ(one[str(node.target)], other.get(str(node.target), []))), None)
    since = "behind all of its layers" if first is None else f"from {str(first.target)!r} on"
    return TraceError(
        f"the graph of the model computes something else than the model, {since}",
        where=first.meta.get("source") if first is not None else None,
        fix="forward() asks for more than values and shapes of tensors, such as type(x): take that out, or keep the "
        "submodule whole that does so, wrap(..., leaf=['its.name']); verify=False skips the comparison",
    )


def _outputs(net: nn.Module, graph: fx.GraphModule, given: Example) -> dict[str, list[torch.Tensor]]:
    """Of the first call of each layer of the graph."""
    found: dict[str, list[torch.Tensor]] = {}
    names = {str(node.target) for node in graph.graph.nodes if node.op == "call_module"}

    def note(name: str, output: Any) -> None:
        found.setdefault(name, [each.clone() for each in tensors(output)])

    handles = [
        module.register_forward_hook(lambda _, __, output, name=name: note(name, output))
        for name, module in net.named_modules()
        if name in names
    ]
    try:
        run(net, *given)
    finally:
        for handle in handles:
            handle.remove()
    return found
