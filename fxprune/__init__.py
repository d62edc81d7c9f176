"""Structured pruning of any PyTorch CNN to a budget, exactly.

>>> import fxprune
"""

from fxprune.api import export, inspect, load, save, wrap
from fxprune.budget.cost import Cost
from fxprune.errors import FxPruneError
from fxprune.inspection import Inspection
from fxprune.wrapped import Wrapped

__all__ = ["Cost", "FxPruneError", "Inspection", "Wrapped", "export", "inspect", "load", "save", "wrap"]
__version__ = "0.1.0"
