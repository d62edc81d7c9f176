"""The regular residual block, for comparison: whoever meets at an add computes the union of their channels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fxprune.core import Channels
from fxprune.ids import Join


def regular_blocks(channels: Channels, present: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Every operand of an add gets the channels of the sum, unless nothing of it lives: a dead block stays away."""
    present = present.copy()
    for block in reversed(channels.table.blocks):
        if not isinstance(block, Join):
            continue
        for operand in block.operands:
            if present[operand].any():
                present[operand[present[block.out]]] = True
    present[:2] = (True, False)
    return present
