"""The certificate: hardened and slim net compute the same, on the example and on another batch size."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

from fxprune.errors import ExportError

TOLERANCE = 1e-9  # in float64: max|difference| / max|output|


def verify(
    hardened: nn.Module, slim: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[float, list[int]]:
    """The largest relative difference found and the batch sizes tried; raises if it is above the tolerance."""
    one, other = hardened.eval(), slim.eval()
    device = next((parameter.device for parameter in one.parameters()), torch.device("cpu"))
    worst, tried = 0.0, []
    first = _batch(args, kwargs)
    for size in dict.fromkeys((first, first + 1)):
        example = tree_map(lambda leaf, size=size: _resized(leaf, first, size, device), (args, kwargs))
        try:
            with torch.no_grad():
                expected = _tensors(one(*example[0], **example[1]))
        except Exception:
            if size == first:
                raise
            continue  # the model takes this batch size only
        with torch.no_grad():
            found = _tensors(other(*example[0], **example[1]))
        tried.append(size)
        worst = max([worst, *(_difference(a, b) for a, b in zip(expected, found, strict=True))])
    if not worst <= TOLERANCE:
        raise ExportError(
            f"the slim net differs from the hardened one by {worst:.1e} of the largest output",
            fix="please report this model: every difference above rounding is a bug; verify=False skips the check",
        )
    return worst, tried


def _batch(args: Any, kwargs: Any) -> int:
    sizes = [leaf.shape[0] for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor) and leaf.ndim]
    return int(sizes[0]) if sizes else 1


def _resized(leaf: Any, first: int, size: int, device: torch.device) -> Any:
    """Noise in the example's place (an example of zeros proves nothing), with ``size`` samples."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    shape = list(leaf.shape)
    if shape and shape[0] == first:
        shape[0] = size
    if not leaf.is_floating_point():
        return leaf.new_zeros(shape) if shape != list(leaf.shape) else leaf
    generator = torch.Generator().manual_seed(size)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device)


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.shape != other.shape:
        return float("inf")
    if not one.is_floating_point():
        return float((one != other).any()) if one.numel() else 0.0
    scale = one.abs().max().clamp(min=1e-30) if one.numel() else torch.ones(())
    return float((one - other).abs().max() / scale) if one.numel() else 0.0


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [tensor for entry in tree.values() for tensor in _tensors(entry)]
    if isinstance(tree, (tuple, list)):
        return [tensor for entry in tree for tensor in _tensors(entry)]
    return _tensors(vars(tree)) if hasattr(tree, "__dict__") else []
