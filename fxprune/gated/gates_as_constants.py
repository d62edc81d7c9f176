"""The hardened net at its original width as plain torch: what the gates decided becomes constants."""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils import parametrize, remove_spectral_norm, remove_weight_norm

from fxprune.errors import OptionError
from fxprune.gated.bank import GATED, GateBank, apply_gate
from fxprune.gated.names import BANK
from fxprune.torch_private import SpectralNorm, WeightNorm, pre_hooks


def frozen(wrapped: fx.GraphModule) -> fx.GraphModule:
    """A copy that computes what the hardened ``wrapped`` computes, with nothing of fxprune in it.

    Factors and masks are buffers, called after the op that they follow, in a plain module where the gates were. What a
    batch norm takes in is multiplied into its weight and bias.
    """
    bank = wrapped.get_submodule(BANK)
    assert isinstance(bank, GateBank)
    if not bank.hardened:
        raise OptionError("the gates of this network are not decided yet", fix="call wrapped.harden() first")
    with torch.no_grad():
        constants = bank()
    floats = {parameter.dtype for parameter in wrapped.parameters() if parameter.is_floating_point()}
    net = fx.GraphModule(wrapped, copy.deepcopy(wrapped.graph), type(wrapped).__name__)
    net._modules[BANK] = held = nn.Module()
    called = next(node for node in net.graph.nodes if node.op == "call_module" and node.target == BANK)
    for taken in list(called.users):
        (site,) = taken.users
        number: Any = taken.args[1]
        if site.op == "call_module":
            _fold(net, site, constants[number])
        else:
            x: Any = site.args[0]
            held.register_buffer(_name(x), constants[number].clone())
            _put_constant(net.graph, site, x, mixed=len(floats) > 1)
        net.graph.erase_node(taken)
    read = called.all_input_nodes
    net.graph.erase_node(called)
    for affine in read:
        if affine.op == "get_attr" and not affine.users:
            net.graph.erase_node(affine)
    net.graph.lint()
    net.recompile()
    computed = [t for m in net.modules() for t in vars(m).values() if isinstance(t, torch.Tensor) and not t.is_leaf]
    memo = {id(tensor): tensor.detach().clone() for tensor in computed}  # deepcopy itself takes leaves of autograd only
    net = copy.deepcopy(net, memo)  # until here its weights are those of the wrapped net
    net.__class__.__name__ = type(wrapped).__name__  # a copy is called GraphModule
    for module in list(net.modules()):
        if parametrize.is_parametrized(module):
            _settle(module)
        _settle_hooks(module)
    return net


def _name(x: fx.Node) -> str:
    return f"of_{x.name}"  # a node may be called "zero_grad" or "type", as methods of a module are


def _fold(net: fx.GraphModule, norm: fx.Node, gate: torch.Tensor) -> None:
    """A plain batch norm again, its affine map multiplied by the gate that it took in."""
    gated = net.get_submodule(str(norm.target))
    plain: nn.Module = object.__new__(next(kind for kind, taking in GATED.items() if type(gated) is taking))
    plain.__dict__.update(gated.__dict__)
    plain._parameters = {
        name: nn.Parameter(value.detach() * gate.to(value.dtype), value.requires_grad)
        for name, value in gated.named_parameters()
    }
    net.set_submodule(str(norm.target), plain)
    norm.args = norm.args[:1]


def _put_constant(graph: fx.Graph, site: fx.Node, x: fx.Node, *, mixed: bool) -> None:
    """Multiply or mask by the buffer of ``x``, as the layers of fxprune do; only ``mixed`` types need a cast."""
    with graph.inserting_before(site):
        constant = graph.get_attr(f"{BANK}.{_name(x)}")
        if site.target is apply_gate:
            factor = graph.call_method("type_as", (constant, x)) if mixed else constant
            gated = graph.call_function(operator.mul, (x, factor))
        else:
            gated = graph.call_function(torch.where, (constant, x, False))  # a zero of every type
    site.replace_all_uses_with(gated)
    graph.erase_node(site)


def _settle(module: nn.Module) -> None:
    """Computed parameters become stored ones. torch's own way to do it changes the class, which the original shares."""
    names = list(module.parametrizations)  # type: ignore[arg-type]
    values = {name: nn.Parameter(getattr(module, name).detach().clone()) for name in names}
    module.__class__ = type(module).__mro__[1]
    del module._modules["parametrizations"]
    module._parameters = {**values, **module._parameters}  # a weight comes before the bias


def _settle_hooks(module: nn.Module) -> None:
    """The same for the old norms, which compute a plain attribute before each call."""
    for hook in pre_hooks(module):
        if isinstance(hook, (WeightNorm, SpectralNorm)):
            remove = remove_weight_norm if isinstance(hook, WeightNorm) else remove_spectral_norm
            remove(module, hook.name)
            module._parameters = {hook.name: module._parameters.pop(hook.name), **module._parameters}
