"""Structured pruning of any PyTorch CNN to a budget, exactly.

>>> import fxprune
"""

__version__ = "0.1.0"

from fxprune.analysis.inspection import Inspection
from fxprune.api import cut, export, inspect, load, prune, refit, save, wrap
from fxprune.cost.model import Cost
from fxprune.errors import FxPruneError
from fxprune.gated.wrapped import Wrapped
from fxprune.train.loop import Pruned
from fxprune.train.loss import distillation_loss
from fxprune.train.teacher import CachedTeacher

__all__ = [
    "CachedTeacher", "Cost", "FxPruneError", "Inspection", "Pruned", "Wrapped", "cut", "distillation_loss",
    "export", "inspect", "load", "prune", "refit", "save", "wrap",
]  # fmt: skip
