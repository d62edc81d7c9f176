"""Writes the slim net: ops into a graph, modules and tensors into the module that will run it."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import fx, nn

from fxprune.ids import Ids
from fxprune.tracing.copies import copy_module
from fxprune.tracing.values import attribute, has_attribute

_CHANNELS_LAST, _CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


class Writer:
    """A graph and the modules and tensors that it calls, under the names that they have in ``model``."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.graph, self.root = model, fx.Graph(), nn.Module()
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.buffers: dict[tuple[str, bytes], str] = {}  # kind and content of an index -> its name

    # ------------------------------------------------------------ ops whose form depends on how channels lie

    def pad(self, node: fx.Node, axis: int, ndim: int, count: int) -> fx.Node:
        widths = [0, 0] * (ndim - 1 - axis) + [0, count]
        return self.graph.call_function(torch.nn.functional.pad, (node, widths))

    def scatter_add(self, base: fx.Node, axis: int, index: Ids, part: fx.Node, ndim: int) -> fx.Node:
        """``part`` is added to these positions of ``base``, in place; in the form that is fast for how channels lie.

        ``index_add_`` goes channel by channel: ten times slower than ``scatter_add_`` where channels lie side by side.
        """
        call, at = self.graph.call_method, self.buffer("index", torch.from_numpy(index))
        part = call("type_as", (part, base))  # autocast may have made them differ
        if self.side_by_side(axis, ndim):
            base, part = self._channels_at_end(base), self._channels_at_end(part)
            total = call("scatter_add_", (base, 3, call("expand_as", (at, part)), part))
            return call("permute", (total, *_CHANNELS_FIRST))
        if axis == ndim - 1:
            return call("scatter_add_", (base, axis, call("expand_as", (at, part)), part))
        return call("index_add_", (base, axis, at, part))

    def concat(self, parts: list[fx.Node], axis: int, ndim: int) -> fx.Node:
        """One after the other; in the form whose result keeps how channels lie, also in a net that is compiled."""
        if self.side_by_side(axis, ndim):
            total = self.graph.call_function(torch.cat, ([self._channels_at_end(part) for part in parts], 3))
            return self.graph.call_method("permute", (total, *_CHANNELS_FIRST))
        return self.graph.call_function(torch.cat, (parts, axis))

    def one_channel_last(self, node: fx.Node) -> fx.Node:
        """The same map of one channel, with strides that say channels-last: norms leave strides that say contiguous,
        and a convolution, whose filters of one channel may say either, would be slower and hand that on."""
        call = self.graph.call_method
        return call("permute", (call("unsqueeze", (call("squeeze", (node, 1)), 3)), *_CHANNELS_FIRST))

    def _channels_at_end(self, node: fx.Node) -> fx.Node:
        if node.target == "permute" and node.args[1:] == _CHANNELS_FIRST:  # they were, before
            before = node.args[0]
            assert isinstance(before, fx.Node)
            return before
        return self.graph.call_method("permute", (node, *_CHANNELS_LAST))

    def side_by_side(self, axis: int, ndim: int) -> bool:
        return ndim == 4 and axis == 1 and self.channels_last

    @cached_property
    def channels_last(self) -> bool:
        """Is that how the model's filters lie in memory?"""
        maps = [parameter for parameter in self.model.parameters() if parameter.ndim == 4]
        return any(p.is_contiguous(memory_format=torch.channels_last) and not p.is_contiguous() for p in maps)

    # ------------------------------------------------------------ modules and tensors

    def attribute(self, path: str, value: torch.Tensor, *, grad: bool | None = None) -> fx.Node:
        """A parameter (``grad`` given) or buffer of the slim net; a path taken by another value gets a number."""
        value = value.to(self.device)
        name, number = path, 0
        while has_attribute(self.root, name):
            held = attribute(self.root, name)
            if isinstance(held, torch.Tensor) and held.shape == value.shape and torch.equal(held, value):
                return self.graph.get_attr(name)
            number += 1
            name = f"{path}_{number}"
        leaf, parent = name.rpartition(".")[2], self._parent(name)
        if grad is not None and value.is_floating_point():
            parent.register_parameter(leaf, nn.Parameter(value, grad))
        else:
            parent.register_buffer(leaf, value)
        return self.graph.get_attr(name)

    def buffer(self, stem: str, value: torch.Tensor) -> fx.Node:
        """An index; equal ones are shared."""
        key = stem, value.numpy().tobytes()
        if key in self.buffers:
            return self.graph.get_attr(self.buffers[key])
        made = self.attribute(f"{stem}_{len(self.buffers)}", value)
        self.buffers[key] = str(made.target)
        return made

    def module(self, path: str, made: nn.Module | None = None) -> str:
        """Install a module under its original name (a copy of the original unless ``made`` is given)."""
        held = attribute(self.root, path) if has_attribute(self.root, path) else None
        if held is None or type(held) is nn.Module:  # a mere place, made for a part of a layer that comes before it
            made = copy_module(self.model.get_submodule(path)) if made is None else made
            for name, child in held.named_children() if held is not None else ():
                made.add_module(name, child)
            self._add(path, made)
        return path

    def _add(self, path: str, module: nn.Module) -> None:
        self._parent(path).add_module(path.rpartition(".")[2], module)

    def _parent(self, path: str) -> nn.Module:
        parent = self.root
        for atom in path.split(".")[:-1]:
            if atom not in parent._modules:
                parent.add_module(atom, nn.Module())
            parent = parent.get_submodule(atom)
        return parent

    def training_flag(self, path: str) -> fx.Node:
        """``self.training`` passed to a function."""
        owner, _, _ = path.rpartition(".")
        if owner and not has_attribute(self.root, owner):
            self._add(owner, nn.Module())
        return self.graph.get_attr(path)
