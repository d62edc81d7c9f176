"""The folder of a pruning run, and what training keeps in it."""

from fxprune.run.folder import Run

__all__ = ["Run"]
