"""An example for a model that came without one: shapes only, tried out on the meta device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from fxprune.channels.facts import Trace
from fxprune.errors import FxPruneError, TraceError
from fxprune.torch_private import AnyConv
from fxprune.trace import trace

_SIZES = (224, 32, 64, 128, 256, 96, 299, 28, 512, 16)
_FIX = "pass example_inputs, for example wrap(model, budget, example_inputs=torch.zeros(1, 3, 224, 224))"


def trace_without_example(model: nn.Module, *, leaf: Callable[[str, nn.Module], bool]) -> Trace:
    """Trace for a made-up input of the first layer's width; its image size must not matter to the model's code."""
    first = next((m for m in model.modules() if isinstance(m, (AnyConv, nn.Linear))), None)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    problem: FxPruneError | None = None
    for size in _SIZES if first is not None else ():
        if isinstance(first, nn.Linear):
            shape: tuple[int, ...] = (1, first.in_features)
        else:
            assert isinstance(first, AnyConv)
            shape = (1, first.in_channels, *(size,) * len(first.kernel_size))
        try:
            made = trace(model, torch.empty(shape, dtype=first.weight.dtype, device="meta"), leaf=leaf, device=device)
        except FxPruneError as error:
            problem = problem or error
            continue
        consumed = [s for s in made.specialisations if s.kind != "training"]
        if consumed:
            raise TraceError("the model's code looks at the size of its input", where=consumed[0].source, fix=_FIX)
        return made
    raise TraceError(
        f"no example was given and none could be made up{f': {problem.cause}' if problem else ''}", fix=_FIX
    )
