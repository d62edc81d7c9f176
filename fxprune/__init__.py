"""Structured pruning of any PyTorch CNN to a budget, exactly.

>>> import fxprune
"""

from fxprune.analysis.inspection import Inspection
from fxprune.api import export, inspect, load, prune, save, wrap
from fxprune.cost.model import Cost
from fxprune.errors import FxPruneError
from fxprune.train.loop import Pruned
from fxprune.train.loss import distillation_loss
from fxprune.train.teacher import CachedTeacher
from fxprune.wrapped import Wrapped

__all__ = [
    "CachedTeacher", "Cost", "FxPruneError", "Inspection", "Pruned", "Wrapped", "distillation_loss", "export",
    "inspect", "load", "prune", "save", "wrap",
]  # fmt: skip
__version__ = "0.1.0"
