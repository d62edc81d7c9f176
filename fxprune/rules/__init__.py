"""What each op does to channels. Importing this package registers every rule."""

from fxprune.rules import (
    attention,
    contraction,
    custom,
    elementwise,
    joins,
    lookup,
    mixing,
    movement,
    norms,
    reductions,
    sizes,
    spatial,
)
from fxprune.rules.operands import same_op
from fxprune.rules.registry import RULES, Flow, NoChannels, Notes, Op, constant_flow, find_rule, rule

__all__ = [
    "RULES", "Flow", "NoChannels", "Notes", "Op", "attention", "constant_flow", "contraction", "custom", "elementwise",
    "find_rule", "joins", "lookup", "mixing", "movement", "norms", "reductions", "rule", "same_op", "sizes", "spatial",
]  # fmt: skip
