"""What is left of a network, layer by layer and join by join, as plain data that a report can keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fxprune.passes.analysis import Analysis
from fxprune.passes.graph import node_kind
from fxprune.rules.registry import Flow

JOINS = ("add", "mul", "cat")


def survivors(analysis: Analysis, present: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """``layers``: per convolution the ``mask`` of its channels (a text of 0 and 1) and its ``volume``, ``flops`` and
    ``params``. ``joins``: per add, multiply and concat (by its name in the graph) the mask of the channels it makes.
    """
    costs = analysis.costs.counter.by_layer(present)
    layers = {}
    for layer in analysis.layers:
        living = np.logical_or.reduce([present[call.ids.reshape(-1)] for call in layer.calls])
        volume, flops, params = costs[layer.name]
        layers[layer.name] = {"mask": _text(living), "volume": volume, "flops": flops, "params": params}
    channels = analysis.channels
    mixers = {mixer.node: mixer for mixer in channels.mixers}
    joins = {}
    for node, flow in channels.flows.items():
        if isinstance(flow, Flow) and flow.axis is not None and node_kind(node, channels, mixers) in JOINS:
            joins[node.name] = _text(present[flow.ids.reshape(-1)])
    return {"layers": layers, "joins": joins}


def _text(living: npt.NDArray[np.bool_]) -> str:
    """
    >>> _text(np.array([True, False, True]))
    '101'
    """
    return "".join("1" if alive else "0" for alive in living.tolist())
