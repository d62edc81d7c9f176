"""Names in a wrapped net: it keeps those of its original, in its checkpoints too, and needs some for itself."""

from __future__ import annotations

from collections.abc import Collection
from keyword import iskeyword

from torch import fx, nn

from fxprune.errors import ModelError
from fxprune.torch_private import unsaved_buffers

OWN = "fxprune_"  # what a wrapped net has beyond the original starts like this
BANK = "fxprune_gates"
PRESSURE = "fxprune_budget"


def check_names(model: nn.Module, graph: fx.Graph, taken: Collection[str]) -> None:
    """Refuse names that start like ``OWN`` or are ``taken`` by something else in a wrapped or exported net, and
    Python's keywords, with which no code can be written."""
    paths = [str(node.target).split(".") for node in graph.nodes if node.op in ("get_attr", "call_module")]
    for path in paths:
        for word in filter(iskeyword, path):
            raise ModelError(
                f"the name {'.'.join(path)!r} has a word of Python's in it, {word!r}: no code can be written with it",
                fix=f"rename it, for example to {word + '_'!r}",
            )
    for name in (*model._modules, *model._parameters, *model._buffers, *(path[0] for path in paths)):
        if name.startswith(OWN):
            raise ModelError(f"the model has gates already, in {name!r}", fix="wrap the original, or the slim net")
        if name in taken:
            raise ModelError(
                f"the model has a submodule, parameter or buffer {name!r}, which is the name of something else "
                "in a wrapped or exported net",
                fix=f"rename it, for example self.{name} to self.{name.strip('_')}_layer",
            )


def keep_unread(root: nn.Module, wrapped: nn.Module) -> None:
    """Parameters that the graph does not read (auxiliary heads) stay, so that the original's checkpoints load."""
    present = set(wrapped.state_dict(keep_vars=True))
    for name in root.state_dict(keep_vars=True):
        if name in present:
            continue
        source, target = root, wrapped
        *owners, leaf = name.split(".")
        for atom in owners:
            if atom not in target._modules:
                target.add_module(atom, source.get_submodule(atom))
                break
            source, target = source.get_submodule(atom), target.get_submodule(atom)
        else:
            if leaf in source._parameters:
                target.register_parameter(leaf, source._parameters[leaf])
            elif leaf in source._buffers:
                target.register_buffer(leaf, source._buffers[leaf])
        present = set(wrapped.state_dict(keep_vars=True))


def keep_passing(root: nn.Module, wrapped: nn.Module) -> None:
    """What is in no checkpoint of the original (tensors that are no buffers, too) is in none of the wrapped net."""
    owners = dict(root.named_modules(remove_duplicate=False))
    for path, module in wrapped.named_modules():
        owner = owners.get(path, module)
        for name, _ in module.named_buffers(recurse=False) if owner is not module else ():
            if name not in owner._buffers or name in unsaved_buffers(owner):
                unsaved_buffers(module).add(name)
