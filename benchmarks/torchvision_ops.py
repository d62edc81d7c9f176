"""Make torchvision importable beside a torch build that its compiled extension does not match.

A torchvision wheel built for CUDA cannot load its extension next to a CPU torch. Its models need none of the compiled
operators, but importing the package registers shape functions for two of them, which fails if they were never declared.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch

_OPS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_library: torch.library.Library | None = None  # the declarations last only as long as this object


def declare_torchvision_ops() -> bool:
    """Declare the operators ``import torchvision`` expects, unless torchvision brings them itself.

    Call it before importing torchvision. Returns whether anything had to be declared.
    """
    global _library
    if "torchvision" in sys.modules or _extension_loads():
        return False
    missing = [op for op in _OPS if not hasattr(torch.ops.torchvision, op)]
    if missing:
        _library = torch.library.Library("torchvision", "FRAGMENT")
        for op in missing:
            _library.define(op + _SIGNATURE)
    return bool(missing)


def _extension_loads() -> bool:
    """Whether torchvision is installed with a compiled extension that loads into this torch."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    for path in Path(spec.origin).parent.glob("_C.*"):
        try:
            torch.ops.load_library(path)
        except OSError:
            continue
        return True
    return False


declare_torchvision_ops()  # importing this file is enough, also for fxprune inspect --preload
