"""All that we use of torch and that torch does not document, each with the reason: look here first when torch changes.

Only ``_modules``, ``_parameters`` and ``_buffers`` are used in other files, too: nothing public says what a module
holds under which name, and in which order. ``tests/test_torch_private.py`` tells which name is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any

import torch
from torch import fx, nn
from torch.autograd.variable import VariableMeta as VariableMeta  # of nn.Parameter's base: refuses proxies
from torch.nn.utils.spectral_norm import SpectralNorm as SpectralNorm  # the old norms are hooks, and compute a weight
from torch.nn.utils.weight_norm import WeightNorm as WeightNorm  # before each call

# Nested structures as fx and the exporters see them, including classes that other libraries have registered.
tree_flatten = torch.utils._pytree.tree_flatten
tree_leaves = torch.utils._pytree.tree_leaves
tree_map = torch.utils._pytree.tree_map


# Classes of layers.
AnyConv = torch.nn.modules.conv._ConvNd  # of every rank, transposed or not
AnyTransposedConv = torch.nn.modules.conv._ConvTransposeNd
AnyBatchNorm = torch.nn.modules.batchnorm._BatchNorm  # also those of other libraries, and the synchronised one
AnyNorm = torch.nn.modules.batchnorm._NormBase  # batch and instance norms: those that check their input's rank
InnerOps = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)  # what torch.ops.aten holds

# Attributes that tell what a module is, and names that only tell how it is kept.
COMPILED, QUANTISED = "_orig_mod", "_packed_params"
BOOKKEEPING = ("_backward", "_is_", "_state", "_load", "_forward", "_flat_weights_names", "_all_weights")
COPIED = torch.fx.graph_module._USER_PRESERVED_ATTRIBUTES_KEY  # what copy.deepcopy of a graph module takes along

# What modules and tensors know about themselves.
unsaved_buffers = attrgetter("_non_persistent_buffers_set")  # the module's own set: who changes it changes the module
version = attrgetter("_version")  # of a tensor: goes up with every write in place

# Tracing: what fx does by itself, and what it has no way to ask.
marked_by_wrap = torch.fx._symbolic_trace._wrapped_fns_to_patch  # by torch.fx.wrap
find_proxy = torch.fx._symbolic_trace._find_proxy
call_with_hooks = torch.fx._symbolic_trace._orig_module_call  # nn.Module.__call__, which fx replaces meanwhile
autograd_helpers = torch._functorch.utils  # its unwrap_dead_wrappers comes first in every custom autograd function
ASKING_FOR_USERS = ("is_tensor", "_isinstance", "container_checker")  # the last two are torch.jit.isinstance
# What torch's transformers ask of their masks before attention does, to complain or to be fast.
canonical_mask = torch.nn.functional._canonical_mask
none_or_dtype = torch.nn.functional._none_or_dtype
detect_is_causal_mask = torch.nn.modules.transformer._detect_is_causal_mask


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def python_of(scripted: Any) -> Callable[..., Any] | None:
    """The function that ``torch.jit.script`` was given."""
    function: Callable[..., Any] | None = getattr(scripted, "_torchdynamo_inline", None)
    return function


def import_dynamo() -> None:
    """Dynamo remembers torch's functions when it is imported: that must not happen while some of them are replaced."""
    import_module("torch._dynamo")  # an import statement would look unused


def is_in(graph: fx.Graph, node: fx.Node) -> bool:
    """False for a node that was erased. Nothing public answers without a walk along the graph."""
    return node in graph._find_nodes_lookup_table


def memory_of(tensor: torch.Tensor) -> int:
    """The same number for tensors in the same memory, also on the meta device, which has no addresses."""
    return int(tensor.untyped_storage()._cdata)


def check_rank(norm: Any, x: torch.Tensor) -> None:
    """Complain as the norm itself would."""
    norm._check_input_dim(x)


def map_tensors(net: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """What ``net.double()`` does, with another change; shared tensors stay shared."""
    net._apply(change)


def pre_hooks(module: nn.Module) -> list[Any]:
    return list(module._forward_pre_hooks.values())


def forward_hooks(module: nn.Module) -> list[Any]:
    return [*module._forward_hooks.values(), *pre_hooks(module)]


def backward_hooks(module: nn.Module) -> list[Any]:
    return [*module._backward_hooks.values(), *module._backward_pre_hooks.values()]


def stop_workers(loader: Any) -> None:
    """Let the next epoch of a ``DataLoader`` start new workers: those that go on have drawn random numbers."""
    if getattr(loader, "_iterator", None) is not None:
        loader._iterator = None
