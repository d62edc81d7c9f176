"""Two nets compute the same: the wrapped net what the model computes, the slim net what the hardened one computes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import fx, nn

from fxprune.count import batch_size
from fxprune.errors import ExportError, FxPruneError, TraceError, first_line
from fxprune.modules import evaluating
from fxprune.torch_private import map_tensors, tree_map
from fxprune.trace.tracer import has_hooks
from fxprune.trace.values import in_double

Net = TypeVar("Net", bound=fx.GraphModule)
Example = tuple[tuple[Any, ...], dict[str, Any]]
TOLERANCE = 1e-9  # in float64: max|difference| / max|output|


@contextmanager
def comparing() -> Iterator[None]:
    """Some nets run in one precision only: then the comparison failed, not the export, and the error says so."""
    try:
        yield
    except FxPruneError:
        raise
    except Exception as error:
        raise ExportError(
            f"the hardened net and the slim one cannot be compared, which is done in float64: {error}",
            fix="write export(..., verify=False), and compare them on data of your own",
        ) from error


def in_float64(net: Net) -> Net:
    """``net`` itself, with all tensors in double precision, and the casts in its code too."""
    map_tensors(net, _in_double)
    changed = False
    for node in net.graph.nodes:
        wide = in_double(node)
        if wide != (node.target, node.args, node.kwargs):
            (node.target, node.args, node.kwargs), changed = wide, True
    if changed:
        net.recompile()
    return net


def _in_double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double() if _is_float(tensor) else tensor


def verify(
    hardened: nn.Module, slim: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[float, list[int]]:
    """The largest relative difference found and the batch sizes tried; raises if it is above the tolerance."""
    one, other = hardened.eval(), slim.eval()
    device = next((parameter.device for parameter in one.parameters()), torch.device("cpu"))
    worst, tried = 0.0, []
    first = batch_size(args, kwargs)
    for size in dict.fromkeys((first, first + 1)):
        example = noise(args, kwargs, size, device)
        try:
            expected = tensors(run(one, *example))
            if not are_numbers(expected):
                example = positive(example)
                expected = tensors(run(one, *example))
        except Exception:
            if size == first:
                raise
            continue  # the model takes this batch size only
        if not are_numbers(expected):
            raise ExportError(
                "the output of the hardened net is NaN or infinite on noise: nothing can be compared with it",
                fix="look for NaN in its weights and for variances that are not positive; verify=False skips the check",
            )
        answer = tensors(run(other, *example))
        tried.append(size)
        worst = max([worst, *(difference(a, b) for a, b in zip(expected, answer, strict=True))])
    if not worst <= TOLERANCE:
        raise ExportError(
            f"the slim net differs from the hardened one by {worst:.1e} of the largest output",
            fix="please report this model: every difference above rounding is a bug; verify=False skips the check",
        )
    return worst, tried


def run(net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A net that draws random numbers draws the same ones each time."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(0)
        if devices:
            torch.cuda.manual_seed_all(0)
        return net(*args, **kwargs)


def noise(
    args: Any, kwargs: Any, size: int, device: torch.device, dtype: torch.dtype | None = torch.float64
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Noise in the shape of the example (an example of zeros proves nothing), with ``size`` samples; in the example's
    own dtype if none is given."""
    first, generator = batch_size(args, kwargs), torch.Generator().manual_seed(size)

    def resized(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        shape = list(leaf.shape)
        if shape and shape[0] == first:
            shape[0] = size
        if leaf.is_complex():
            drawn = torch.randn(shape, generator=generator, dtype=torch.complex128, device="cpu")
            return drawn.to(device, leaf.dtype if dtype is None else torch.complex128)
        if not leaf.is_floating_point():
            return leaf.new_zeros(shape) if shape != list(leaf.shape) else leaf
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        return drawn.to(device, dtype or leaf.dtype)

    drawn_inputs: tuple[tuple[Any, ...], dict[str, Any]] = tree_map(resized, (args, kwargs))
    return drawn_inputs


def positive(example: Any) -> Any:
    """A model may take the logarithm of its input."""
    return tree_map(lambda leaf: leaf.abs() if _is_float(leaf) else leaf, example)


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def are_numbers(outputs: list[torch.Tensor]) -> bool:
    """Two tensors without a finite entry agree whatever was computed: that proves nothing."""
    return all(bool(out.isfinite().any()) for out in outputs if out.numel())


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """max|one - other| / max|one|; infinite where the shapes differ or only one of them is a number.

    >>> difference(torch.tensor([4.0, 2.0]), torch.tensor([4.0, 1.0]))
    0.25
    >>> nan = torch.tensor([float("nan"), 1.0])
    >>> difference(nan, nan), difference(nan, torch.ones(2))
    (0.0, inf)
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if one.is_complex():
        return difference(torch.view_as_real(one), torch.view_as_real(other))
    if not one.is_floating_point():
        return float((one != other).any()) if one.numel() else 0.0
    unequal = (one != other) & ~(one.isnan() & other.isnan())
    if not bool(unequal.any()):
        return 0.0
    size = one[one.isfinite()].abs().max() if bool(one.isfinite().any()) else one.new_zeros(())
    far = float((one - other)[unequal].abs().max() / size.clamp(min=1e-30))
    return far if math.isfinite(far) else float("inf")  # a NaN would lose every comparison


def tensors(tree: Any) -> list[torch.Tensor]:
    """All tensors of an output, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [tensor for entry in tree.values() for tensor in tensors(entry)]
    if isinstance(tree, (tuple, list)):
        return [tensor for entry in tree for tensor in tensors(entry)]
    return tensors(vars(tree)) if hasattr(tree, "__dict__") else []


def check_agreement(model: nn.Module, wrapped: fx.GraphModule, example: Example) -> None:
    """Raise if they differ. ``model`` is a copy that may be changed; ``wrapped`` is left as it was.

    Nothing is compared if a call has side effects (the user's hooks), if there are no numbers (meta tensors), or if two
    calls of the model itself differ.
    """
    held = [*model.parameters(), *model.buffers()]
    if any(has_hooks(module) for module in model.modules()) or any(tensor.is_meta for tensor in held):
        return
    kept = [(buffer, buffer.clone()) for buffer in wrapped.buffers()]
    with evaluating(model), evaluating(wrapped):
        for given, expected in _computed(model, example, next((t.device for t in held), torch.device("cpu"))):
            try:
                answer = _outputs(wrapped, given)
            except Exception as error:  # what the model takes
                raise _told(f"fails on what the model takes: {first_line(error)}") from error
            if _differ(expected, answer) and not _differ(expected, _outputs(model, given)):
                since, where = _first_difference(model, wrapped, given)
                raise _told(f"computes something else than the model, {since}", where)
            break
    for buffer, before in kept:
        buffer.copy_(before)


def _computed(
    model: nn.Module, example: Example, device: torch.device
) -> Iterator[tuple[Example, list[torch.Tensor]]]:
    """Inputs for which the model returns finite numbers, and these numbers: noise if possible, else the example."""
    drawn = noise(*example, batch_size(*example), device, None)
    for given in (drawn, positive(drawn), example):
        try:
            outputs = _outputs(model, given)
            usable = are_numbers(outputs)
        except Exception:  # whatever the user's code raises
            continue
        if usable:
            yield given, outputs


def _differ(expected: list[torch.Tensor], answer: list[torch.Tensor]) -> bool:
    """By more than rounding, on which whole numbers may depend as well."""
    if len(expected) != len(answer):
        return True
    floats = [(a, b) for a, b in zip(expected, answer, strict=True) if a.is_floating_point() or a.is_complex()]
    return any(difference(a, b) > torch.finfo(a.dtype).eps ** 0.5 for a, b in floats)


def _outputs(net: nn.Module, given: Example) -> list[torch.Tensor]:
    """What a net returns; it may write to its inputs, so these are copies."""
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
    outputs: dict[str, list[torch.Tensor]] = {}

    def note(name: str, output: Any) -> None:
        outputs.setdefault(name, [each.clone() for each in tensors(output)])

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
    return outputs
