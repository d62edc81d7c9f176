"""What the tests of saving share."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx

from fxprune.api import export
from fxprune.gated.wrapped import Wrapped
from tests.exactness import prepared, random_gates, random_masks
from tests.models import ZOO

FOREIGN = ("wrapped_function", "untraceable")  # nets that call code which is not torch's
RECORDS = ("outputs_named", "outputs_dataclass")  # nets whose outputs are of a class of their own


def hardened(name: str, density: float = 0.4, seed: int = 1) -> tuple[Wrapped, Any, list[Any]]:
    """A net of the zoo with random masks, its example, and inputs of other sizes that it takes."""
    _, fresh, example, others = prepared(name)
    generator = torch.Generator().manual_seed(seed)
    wrapped = copy.deepcopy(fresh)
    random_gates(wrapped, generator)
    wrapped.set_masks(random_masks(wrapped, density, generator))
    return wrapped, example, [] if ZOO[name].branches else others


def slim_of(name: str, density: float = 0.4, seed: int = 1) -> tuple[fx.GraphModule, Any, list[Any]]:
    wrapped, example, others = hardened(name, density, seed)
    return export(wrapped, verify=False), example, others
