"""What a slim net holds: a table of modules and tensors by their paths."""

from __future__ import annotations

import keyword
from dataclasses import dataclass, field

import torch
from torch import fx, nn

from fxprune.save.layout import Doc, group, quoted
from fxprune.save.modules import constructor, without
from fxprune.torch_private import AnyConv, unsaved_buffers


@dataclass
class Contents:
    """Everything under a net's names, as expressions, in the order of its state dict."""

    table: dict[str, Doc] = field(default_factory=dict)
    unsaved: dict[str, Doc] = field(default_factory=dict)  # buffers that are not part of the state dict
    frozen: list[str] = field(default_factory=list)
    ties: list[tuple[str, str]] = field(default_factory=list)  # (another name, the first name) of one parameter


def contents(slim: fx.GraphModule, graph: fx.Graph) -> Contents:
    """Modules that ``graph`` calls as what makes them; all others only hold what is inside them."""
    found = Contents()
    called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    flags = {str(node.target).rpartition(".")[0] for node in graph.nodes if str(node.target).endswith(".training")}
    _walk(slim, "", called, found)
    for path in sorted(flags):
        if not any(other == path or other.startswith(f"{path}.") for other in (*found.table, *found.unsaved)):
            found.table[path] = "Part()"
    first: dict[int, str] = {}
    for path, parameter in slim.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            found.ties.append((path, first[id(parameter)]))
        elif not parameter.requires_grad:
            found.frozen.append(path)
        first.setdefault(id(parameter), path)
    return found


def _walk(module: nn.Module, path: str, called: set[str], found: Contents) -> None:
    prefix = f"{path}." if path else ""
    if path in called:
        apart = _apart(module, prefix, called)
        found.table[path] = constructor(without(module, apart), path)
        for name in apart:
            _walk(module.get_submodule(name), prefix + name, called, found)
        return
    for name, parameter in module._parameters.items():
        if parameter is not None:
            found.table[prefix + name] = group("nn.Parameter(", _parameter(parameter), ")", call=True)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            place = found.unsaved if name in unsaved_buffers(module) else found.table
            place[prefix + name] = _empty(buffer)
    for name, child in module._modules.items():
        if child is not None:
            _walk(child, prefix + name, called, found)


def _apart(layer: nn.Module, prefix: str, called: set[str]) -> list[str]:
    """Parts of a layer that are called on their own, such as the padding before a convolution."""
    if not isinstance(layer, (AnyConv, nn.Linear)):  # these have none that torch knows of
        return []
    return [name for name, _ in layer.named_children() if any(f"{c}.".startswith(f"{prefix}{name}.") for c in called)]


def _parameter(parameter: torch.Tensor) -> list[Doc]:
    return [_empty(parameter)] if parameter.is_floating_point() else [_empty(parameter), "requires_grad=False"]


def _empty(tensor: torch.Tensor) -> Doc:
    sizes: list[Doc] = [str(size) for size in tensor.shape] or ["()"]
    kind: list[Doc] = [] if tensor.dtype is torch.float32 else [f"dtype={tensor.dtype}"]
    return group("torch.empty(", sizes + kind, ")", call=True)


def access(path: str, owner: str = "self") -> str:
    """
    >>> access("layer1.0.conv1"), access("stem.in")
    ('self.layer1[0].conv1', 'self.stem["in"]')
    """
    for name in path.split("."):
        if name.isidentifier() and not keyword.iskeyword(name):
            owner += f".{name}"
        elif name.isdecimal() and str(int(name)) == name:
            owner += f"[{name}]"
        else:
            owner += f"[{quoted(name)}]"
    return owner
