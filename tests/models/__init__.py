"""A zoo of small hand-written nets, one per way in which real ones move channels around.

``ZOO`` maps a name to a function without arguments that returns ``(model, example_inputs, other_inputs)``: a float64
model in eval mode with every parameter and buffer randomised, a tuple (or dict) of inputs, and a list of the same at
other batch and image sizes. Everything lives at module level, so that it can be pickled.
"""

from importlib import import_module

from tests.models.case import ZOO, Case, leaves, randomise

SECTIONS = (
    "chains", "residual", "concatenation", "attention", "groups", "norms", "resolution", "sharing", "python", "linear",
    "parts", "contraction",
)  # fmt: skip
for _section in SECTIONS:
    import_module(f"tests.models.{_section}")  # registers its nets

__all__ = ["ZOO", "Case", "leaves", "randomise"]
