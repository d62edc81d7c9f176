"""Structured pruning of any PyTorch CNN to a budget, exactly.

>>> import fxprune
"""

from fxprune.api import export, inspect, load, prune, save, wrap
from fxprune.budget.cost import Cost
from fxprune.errors import FxPruneError
from fxprune.inspection import Inspection
from fxprune.train.cached import CachedTeacher
from fxprune.train.distillation import distillation_loss
from fxprune.train.loop import Pruned
from fxprune.wrapped import Wrapped

__all__ = [
    "CachedTeacher", "Cost", "FxPruneError", "Inspection", "Pruned", "Wrapped", "distillation_loss", "export",
    "inspect", "load", "prune", "save", "wrap",
]  # fmt: skip
__version__ = "0.1.0"
