"""Numbers that a user gives for gate variables, layer by layer: masks and scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fxprune.errors import OptionError
from fxprune.passes.gates import Layer

ArrayLike = torch.Tensor | np.ndarray[Any, Any] | Sequence[Any]


def per_gate(
    call: str, given: Mapping[str, ArrayLike], layers: Sequence[Layer]
) -> Iterator[tuple[str, slice, npt.NDArray[np.float64]]]:
    """Layer name, its gate variables and the number given for each of them; ``call`` is who asks."""
    if not isinstance(given, Mapping):
        raise OptionError(f"{call}: a {type(given).__name__} names no layers", fix="give {layer name: numbers}")
    gated = {layer.name: layer for layer in layers if layer.gated}
    for name, entries in given.items():
        if name not in gated:
            raise OptionError(
                f"{call}: {name!r} has no gate", fix=f"use names of .gates, such as {next(iter(gated), None)!r}"
            )
        try:
            flat = torch.as_tensor(entries).detach().double().cpu().reshape(-1).numpy()
        except (TypeError, ValueError, RuntimeError) as error:
            raise OptionError(
                f"{call}: {name!r} is given a {type(entries).__name__} that is no array of numbers",
                fix="give a tensor, an array or a list with one number per gate variable",
            ) from error
        start, count = gated[name].start, gated[name].variables
        if flat.size != count:
            raise OptionError(
                f"{call}: {name!r} is given {flat.size} numbers, its gate has {count} variables",
                fix="give one per gate variable: len(wrapped.gates[name])",
            )
        yield name, slice(start, start + count), flat
