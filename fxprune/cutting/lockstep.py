"""Graphs run node by node for all calibration samples, so that a layer can be changed before anything behind it runs.

Values live as long as somebody still reads them: what is kept is the frontier, not the activations of the whole net.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import fx, nn

from fxprune.count import batch_size
from fxprune.cutting.samples import Samples
from fxprune.slim.verify import Example
from fxprune.torch_private import tensors_in
from fxprune.trace import Trace

ALIVE = 2 << 30  # bytes that two nets hold between two layers; where they would hold more, fewer samples take part
Values = dict[fx.Node, Any]


class Advancing:
    """A net that advances over several chunks of samples. Values of ``pinned`` nodes are kept until they are dropped.

    >>> net = fx.symbolic_trace(nn.Sequential(nn.ReLU(), nn.Tanh()))
    >>> run = Advancing(net, [((torch.tensor([-1.0, 2.0]),), {})], pinned=())
    >>> run.advance(0, run.place["_1"])
    >>> [node.name for node in run.values[0]], run.value(0, "_0").tolist()
    (['_0'], [0.0, 2.0])
    """

    def __init__(self, net: fx.GraphModule, chunks: Sequence[Example], pinned: Collection[str]) -> None:
        self.net, self.pinned = net, set(pinned)
        self.nodes = list(net.graph.nodes)
        self.place = {node.name: place for place, node in enumerate(self.nodes)}
        self.last = {node: max((self.place[user.name] for user in node.users), default=-1) for node in self.nodes}
        self.inputs = [_bound(net, *chunk) for chunk in chunks]
        self.values: list[Values] = [{} for _ in chunks]
        self.done = [0] * len(chunks)

    def value(self, chunk: int, name: str) -> Any:
        return self.values[chunk][self.nodes[self.place[name]]]

    def advance(self, chunk: int, place: int) -> None:
        """Run all nodes in front of ``place`` that have not been run yet."""
        if place > self.done[chunk]:
            self._run(chunk, self.values[chunk], place)
            self.done[chunk] = place

    def ahead(self, chunk: int, place: int, wanted: Collection[str]) -> dict[str, Any]:
        """The values of some nodes in front of ``place``, with the net as it is now, which stays where it stands."""
        values = dict(self.values[chunk])
        noted = {name: self.nodes[self.place[name]] for name in wanted}
        self._run(chunk, values, place, set(noted))
        return {name: values[node] for name, node in noted.items()}

    def drop(self, names: Collection[str]) -> None:
        """Of pinned nodes: nobody reads them any more beside the net itself."""
        self.pinned -= set(names)
        for values, done in zip(self.values, self.done, strict=True):
            for name in names:
                node = self.nodes[self.place[name]]
                if self.last[node] < done:
                    values.pop(node, None)

    def forget(self, chunk: int) -> None:
        """What this chunk was made into; it starts anew when it advances again."""
        self.values[chunk], self.done[chunk] = {}, 0

    def _run(self, chunk: int, values: Values, end: int, kept: Collection[str] = ()) -> None:
        with torch.no_grad():
            for place in range(self.done[chunk], end):
                node = self.nodes[place]
                values[node] = self._computed(node, values, self.inputs[chunk])
                for source in {node, *node.all_input_nodes}:
                    if self.last[source] <= place and source.name not in self.pinned and source.name not in kept:
                        values.pop(source, None)

    def _computed(self, node: fx.Node, values: Values, inputs: dict[str, Any]) -> Any:
        if node.op == "placeholder":
            return inputs[str(node.target).lstrip("*")]
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        target: Any = node.target
        if node.op == "call_module":
            return self.net.get_submodule(target)(*args, **kwargs)
        if node.op == "get_attr":
            return _attribute(self.net, target)
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs) if node.op == "call_function" else args[0]


def bounded(samples: Samples, traced: Trace) -> Samples:
    """In chunks that are small beside what two nets may hold of all samples."""
    return samples.in_smaller_chunks(ALIVE // (16 * max(frontiers(traced))))


def frontiers(traced: Trace) -> list[int]:
    """The bytes that are alive while each node runs, per sample."""
    graph, batch = traced.graph, batch_size(*traced.example)
    place = {node: number for number, node in enumerate(graph.nodes)}
    changes = [0] * (len(place) + 1)
    for node in graph.nodes:
        size = sum(leaf.numel() * leaf.element_size() for leaf in tensors_in(node.meta.get("value")))
        if node.op not in ("get_attr", "output"):
            changes[place[node]] += size
            changes[max((place[user] for user in node.users), default=place[node]) + 1] -= size
    return [size // max(batch, 1) for size in accumulate(changes)][:-1]


def _bound(net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What ``forward`` gets, by the names of its parameters."""
    bound = inspect.signature(net.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _attribute(net: nn.Module, path: str) -> Any:
    *owners, name = path.split(".")
    return getattr(net.get_submodule(".".join(owners)), name)
