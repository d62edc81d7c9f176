"""What a test declares of a net's gates: the ops that freeze, and the layers that have not one gate per channel."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from fxprune.analysis import Analysis

OUTPUT, DEPTHWISE, SCALES = "writes a model output", "depthwise", "scales other channels"
Gates = Mapping[str, "int | str"]  # of a layer: how many it has, or why it has none (as it is told, up to the colon)


def check_gates(model: nn.Module, analysis: Analysis, frozen: tuple[str, ...] = (), gates: Gates | None = None) -> None:
    """The ops named ``frozen`` freeze, no other does; what ``gates`` leaves out is a convolution with all its gates.

    That is one per channel, one per group if it is grouped; none if it is depthwise, or comes last. A layer that is no
    such module (a linear layer on a map, a kernel that is computed) is to be declared.
    """
    channels, layers = analysis.channels, analysis.layers
    found = tuple(freeze.op for freeze in channels.freezes)
    assert found == frozen, f"freezes: {found}, declared: {frozen}"
    opaque = {node.name for node in channels.opaque} - {freeze.node for freeze in channels.freezes}
    assert not opaque, f"not understood, though nothing prunable reaches it: {opaque}"
    called = [f"{node.target}." for node in channels.trace.graph.nodes if node.op in ("call_module", "get_attr")]
    expected: dict[str, int | str] = {
        name: _expected(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.conv._ConvNd) and any(path.startswith(f"{name}.") for path in called)
    }
    output = last(model)
    if isinstance(expected.get(output), int):
        expected[output] = OUTPUT
    expected |= gates or {}
    told = {layer.name: layer.variables or str(layer.why).partition(":")[0] for layer in layers}
    wrong = [
        f"{name}: {told.get(name, 'not found')}, declared: {expected.get(name)}"
        for name in {**expected, **told}
        if told.get(name) != expected.get(name)
    ]
    assert not wrong, f"gates of {'; '.join(wrong)}"


def last(model: nn.Module) -> str:
    """What comes last in a net: its ``head``, in a sequence the last entry."""
    path, module = [], model
    while True:
        name = str(len(module) - 1) if isinstance(module, nn.Sequential) else "head"
        if not hasattr(module, name):
            return ".".join(path)
        path, module = [*path, name], getattr(module, name)


def _expected(conv: nn.modules.conv._ConvNd) -> int | str:
    if 1 < conv.groups == conv.in_channels:
        return DEPTHWISE
    return conv.groups if conv.groups > 1 else conv.out_channels
