"""What a model owns and its graph never reads."""

from __future__ import annotations

from torch import nn


def keep_unread(root: nn.Module, made: nn.Module) -> None:
    """Parameters that the graph does not read (auxiliary heads) stay, so that the original's checkpoints load."""
    present = set(made.state_dict(keep_vars=True))
    for name in root.state_dict(keep_vars=True):
        if name in present:
            continue
        source, target = root, made
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
        present = set(made.state_dict(keep_vars=True))
