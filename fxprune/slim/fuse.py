"""Fold batch norms into the layers before them, for deployment."""

from __future__ import annotations

from collections import Counter

from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from fxprune.torch_private import AnyConv, AnyTransposedConv

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fuse_batch_norms(slim: fx.GraphModule) -> int:
    """Edit ``slim`` (which goes to eval mode); returns how many batch norms are gone."""
    slim.eval()
    calls = Counter(node.target for node in slim.graph.nodes if node.op == "call_module")
    fused = 0
    for node in list(slim.graph.nodes):
        norm = slim.get_submodule(node.target) if node.op == "call_module" else None
        before = node.args[0] if node.args else None
        if not isinstance(norm, _NORMS) or not isinstance(before, fx.Node) or before.op != "call_module":
            continue
        layer = slim.get_submodule(str(before.target))
        if len(before.users) > 1 or calls[before.target] > 1 or calls[node.target] > 1 or norm.running_var is None:
            continue
        if isinstance(layer, AnyConv):
            transposed = isinstance(layer, AnyTransposedConv)
            if transposed and layer.groups > 1:
                continue
            folded: nn.Module = fuse_conv_bn_eval(layer, norm, transpose=transposed)
        elif isinstance(layer, nn.Linear) and isinstance(norm, nn.BatchNorm1d) and _axes(node) == 2:
            folded = fuse_linear_bn_eval(layer, norm)
        else:
            continue
        slim.set_submodule(str(before.target), folded)
        node.replace_all_uses_with(before)
        slim.graph.erase_node(node)
        fused += 1
    slim.delete_all_unused_submodules()
    slim.recompile()
    return fused


def _axes(node: fx.Node) -> int | None:
    """How many axes its result has: with more than two, the norm is over another axis than the linear layer."""
    axes: int | None = node.meta["axes"] if "axes" in node.meta else getattr(node.meta.get("value"), "ndim", None)
    return axes
