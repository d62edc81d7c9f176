"""A zoo of small hand-written nets, one per way in which real ones move channels around.

``ZOO`` maps a name to a function without arguments that returns ``(model, example_inputs, other_inputs)``: a float64
model in eval mode with every parameter and buffer randomised, a tuple (or dict) of inputs, and a list of the same at
other batch and image sizes. Everything lives at module level, so that it can be pickled.
"""

from importlib import import_module

from tests.models.case import ZOO, Case, leaves, randomise

SECTIONS = (
    "chains", "residual", "concatenation", "attention", "groups", "norms", "resolution", "sharing", "python", "linear",
    "parts", "contraction", "words",
)  # fmt: skip
for _section in SECTIONS:
    import_module(f"tests.models.{_section}")  # registers its nets

# Nets that differ in structure, for tests that take too long for all of them: each of these has something of its own.
DIFFERENT = (
    "vgg", "odd_activations", "one_dimension", "resnet", "preactivation", "option_a", "joins", "densenet", "unet",
    "grouped_transposed", "squeeze_excite", "split_attention", "multi_head", "mobilenet", "resnext", "shufflenet_v1",
    "shufflenet_v2", "res2net", "octave", "glu", "group_norm_residual", "convnext", "pixel_shuffle", "fpn", "tied",
    "recurrent", "dynamic_filter", "untraceable", "windows", "layers_with_parts",
)  # fmt: skip
assert set(DIFFERENT) <= set(ZOO)

__all__ = ["DIFFERENT", "ZOO", "Case", "leaves", "randomise"]
