"""Random networks: small programs of parts, drawn by hypothesis and interpreted by a plain module.

A ``Program`` is a tuple of frozen parts; part number ``n`` reads earlier values by their index (value 0 is the image)
and appends one value, or several. Its repr is Python: a failing example can be pasted into ``tests/regressions.py``.
"""

from tests.programs.drawing import programs
from tests.programs.program import Program, check

__all__ = ["Program", "check", "programs"]
