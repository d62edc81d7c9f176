"""Structured pruning of any PyTorch CNN to a budget, exactly.

>>> import fxprune
"""

from fxprune.api import inspect
from fxprune.budget.cost import Cost
from fxprune.errors import FxPruneError
from fxprune.inspection import Inspection

__all__ = ["Cost", "FxPruneError", "Inspection", "inspect"]
__version__ = "0.1.0"
