"""What a test declares of a net's gates: the ops that freeze, and the layers that have not one gate per channel."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from fxprune.analysis import Analysis
from fxprune.analysis.gates import Layer
from fxprune.channels import Zeros

LAYERS = (nn.modules.conv._ConvNd, nn.Linear, nn.Embedding)
OUTPUT, DEPTHWISE, SCALES = "writes a model output", "depthwise", "scales other channels"
# Of a layer: how many it has, how many of which kind in attention, or why it has none (as it is told, up to the colon).
Gates = Mapping[str, "int | str"]


def check_gates(model: nn.Module, analysis: Analysis, frozen: tuple[str, ...] = (), gates: Gates | None = None) -> None:
    """The ops named ``frozen`` freeze, no other does; what ``gates`` leaves out is a layer with all its gates.

    That is one per channel, one per group if it is grouped; none if it is depthwise, or comes last. A layer that is no
    module (a weight that a function is called with, a kernel that is computed) is to be declared.
    """
    channels, layers = analysis.channels, analysis.layers
    found = tuple(freeze.op for freeze in channels.freezes)
    assert found == frozen, f"freezes: {found}, declared: {frozen}"
    unknown = {node.name for node, became in channels.zeros.items() if became is Zeros.UNKNOWN}
    unknown -= {freeze.node for freeze in channels.freezes}
    assert not unknown, f"not understood, though nothing prunable reaches it: {unknown}"
    called = [f"{node.target}." for node in channels.trace.graph.nodes if node.op in ("call_module", "get_attr")]
    expected: dict[str, int | str] = {
        name: _expected(module)
        for name, module in model.named_modules()
        if isinstance(module, LAYERS) and any(path.startswith(f"{name}.") for path in called)
    }
    output = last(model)
    if isinstance(expected.get(output), int):
        expected[output] = OUTPUT
    expected |= gates or {}
    told = {layer.name: told_of(layer) for layer in layers}
    wrong = [
        f"{name}: {told.get(name, 'not found')}, declared: {expected.get(name)}"
        for name in {**expected, **told}
        if told.get(name) != expected.get(name)
    ]
    assert not wrong, f"gates of {'; '.join(wrong)}"


def told_of(layer: Layer) -> int | str:
    """How many gates, or why none; of an attention layer how many of which kind: "queries 4, heads 2, values 4"."""
    if [unit.name for unit in layer.units] == [layer.name]:
        return layer.variables
    kinds = [f"{unit.name.removeprefix(layer.name).lstrip('.') or 'others'} {unit.variables}" for unit in layer.units]
    return ", ".join(kinds) or str(layer.why).partition(":")[0]


def last(model: nn.Module) -> str:
    """What comes last in a net: what is called so, in a sequence the last entry."""
    path, module = [], model
    while True:
        called = str(len(module) - 1) if isinstance(module, nn.Sequential) else ""
        name = next((name for name in (called, "head", "fc", "classifier") if hasattr(module, name)), None)
        if name is None:
            return ".".join(path)
        path, module = [*path, name], getattr(module, name)


def _expected(layer: nn.modules.conv._ConvNd | nn.Linear | nn.Embedding) -> int | str:
    if isinstance(layer, nn.Embedding):
        return layer.embedding_dim
    if isinstance(layer, nn.Linear):
        return layer.out_features
    if 1 < layer.groups == layer.in_channels:
        return DEPTHWISE
    return layer.groups if layer.groups > 1 else layer.out_channels
