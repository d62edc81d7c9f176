"""What "exact" means here, as functions that raise AssertionError."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fxprune.api import export, wrap
from fxprune.cost.model import Cost
from fxprune.gated.wrapped import Wrapped
from tests.models import ZOO, leaves

TOLERANCE = 1e-9
LAYERS = (nn.modules.conv._ConvNd, nn.Linear)
_FUNCTIONS = (
    F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, F.linear,
)  # fmt: skip


@cache
def prepared(name: str, budget: float = 0.5) -> tuple[nn.Module, Wrapped, Any, list[Any]]:
    """A net of the zoo, the same wrapped, its example and inputs of other sizes. Wrapped once: change copies only."""
    model, example, others = ZOO[name]()
    return model, wrap(model, budget, example_inputs=example), example, others


def call(model: nn.Module, inputs: Any) -> Any:
    with torch.no_grad():
        return model(**clone(inputs)) if isinstance(inputs, dict) else model(*clone(inputs))


def clone(inputs: Any) -> Any:
    """In-place ops of one model must not reach the next one's input."""
    if isinstance(inputs, dict):
        return {key: value.clone() for key, value in inputs.items()}
    return tuple(value.clone() for value in inputs)


def error(a: Any, b: Any) -> float:
    """max|a - b| / max|b| over all tensors of two nested outputs (structure, shapes and dtypes must agree)."""
    assert same_structure(a, b), f"outputs are built differently: {type(a)} and {type(b)}"
    worst = 0.0
    for one, other in zip(leaves(a), leaves(b), strict=True):
        assert one.shape == other.shape, f"shapes {tuple(one.shape)} and {tuple(other.shape)}"
        assert one.dtype == other.dtype
        if one.numel() == 0:
            continue
        assert bool(torch.isfinite(other).all()), "not finite"
        assert bool(torch.isfinite(one).all()), "not finite"
        difference, size = float((one.double() - other.double()).abs().max()), float(other.double().abs().max())
        worst = max(worst, difference / size if size else difference and float("inf"))
    return worst


def same_structure(a: Any, b: Any) -> bool:
    if isinstance(b, torch.Tensor) or isinstance(a, torch.Tensor):
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    if isinstance(b, dict):
        return isinstance(a, dict) and list(a) == list(b) and all(same_structure(a[key], b[key]) for key in b)
    if isinstance(b, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same_structure, a, b))
    if hasattr(b, "__dataclass_fields__"):
        return type(a) is type(b) and all(same_structure(getattr(a, k), getattr(b, k)) for k in b.__dataclass_fields__)
    return bool(a == b)


def random_gates(wrapped: Wrapped, generator: torch.Generator) -> None:
    """Gate values strictly between 0 and 1 (and some at 1)."""
    bank = wrapped.bank.log_alpha
    with torch.no_grad():
        bank.copy_(torch.rand(bank.shape, generator=generator, dtype=bank.dtype) * 4 - 1)


def random_masks(wrapped: Wrapped, density: float, generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {name: torch.rand(len(gate), generator=generator) < density for name, gate in wrapped.gates.items()}


def check_export(
    wrapped: Wrapped, inputs: list[Any], connectivity: str = "mixed", *, verify: bool = True, counted: bool = True
) -> fx.GraphModule:
    """``export`` of a hardened net is exact, costs what it says, and is plain torch."""
    slim = export(wrapped, connectivity=connectivity, verify=verify)
    for given in inputs:
        expected, found = call(wrapped, given), call(slim, given)
        far = error(found, expected)
        assert far <= TOLERANCE, f"slim net differs by {far:.2g} on {_shapes(given)}"
    check_plain(slim)
    if counted:
        check_cost(wrapped, slim, inputs[0], connectivity)
    return slim


def check_plain(slim: fx.GraphModule) -> None:
    """Nothing of fxprune is left in the slim net."""
    assert type(slim).__mro__[1] is fx.GraphModule, type(slim).__mro__
    for name, module in slim.named_modules():
        assert not type(module).__module__.startswith("fxprune"), f"{name} is a {type(module)}"
    for node in slim.graph.nodes:
        if node.op == "call_function":
            assert not (getattr(node.target, "__module__", "") or "").startswith("fxprune"), node.target


class _Counter(fx.Interpreter):
    """Measures the layers that a graph really runs, those inside of leaf modules included.

    What the layers named ``logits`` write is not part of the volume.
    """

    def __init__(self, module: fx.GraphModule, batch: int, logits: set[str]) -> None:
        super().__init__(module)
        self.batch = batch
        self.logits = {id(p) for name, p in module.named_parameters() if name.removesuffix(".weight") in logits}
        self.layers: dict[int, list[int]] = {}

    def volume(self) -> int:
        return sum(sum(volumes) for weight, volumes in self.layers.items() if weight not in self.logits)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function" and n.target in _FUNCTIONS:
            args, _ = self.fetch_args_kwargs_from_env(n)
            weight = n.args[1]
            if isinstance(weight, fx.Node) and weight.op == "get_attr":  # a computed kernel is no layer
                self.count(args[1], result)
        return result

    def hook(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        assert isinstance(module, LAYERS)
        self.count(module.weight, result)

    def count(self, weight: torch.Tensor, y: torch.Tensor) -> None:
        axis = y.ndim - weight.ndim + 1
        batch = self.batch if y.shape[:axis].numel() % self.batch == 0 else y.shape[:1].numel() if axis else 1
        self.layers.setdefault(id(weight), []).append(y.numel() // batch)


def params_of(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def flops_of(net: nn.Module, inputs: Any) -> float:
    """Per sample, as torch counts; attention in one call it knows as two products."""
    batch, fast = next((leaf.shape[0] for leaf in leaves(inputs) if leaf.ndim), 1), torch.backends.mha
    before = fast.get_fastpath_enabled()
    fast.set_fastpath_enabled(False)  # torch does not count it
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call(net, inputs)
    fast.set_fastpath_enabled(before)
    return float(counter.get_total_flops() / batch)


def check_cost(wrapped: Wrapped, slim: fx.GraphModule, inputs: Any, connectivity: str = "mixed") -> None:
    """The slim net, measured, costs what its report and (unless it computes more) ``cost()`` say, or less.

    When it may be less, and that it is not otherwise, is what ``check_counted_by_others`` is about.
    """
    cost = Cost(**slim.report.after)
    if connectivity == "mixed":
        estimate = wrapped.cost()
        assert cost.params <= estimate.params and replace(cost, params=0) == replace(estimate, params=0)
    given = clone(inputs)
    if isinstance(given, dict):
        names = [str(node.target) for node in slim.graph.nodes if node.op == "placeholder"]
        given = tuple(given.get(name) for name in names)
        defaults = [node.args[0] if node.args else None for node in slim.graph.nodes if node.op == "placeholder"]
        given = tuple(default if value is None else value for value, default in zip(given, defaults, strict=True))
    logits = {n.name for n in wrapped.analysis.layers if n.writes_output and not n.calls[0].is_conv}
    counter = _Counter(slim, next((leaf.shape[0] for leaf in leaves(inputs) if leaf.ndim), 1), logits)
    layers = [module for module in slim.modules() if isinstance(module, LAYERS)]
    hooks = [module.register_forward_hook(counter.hook) for module in layers]
    with torch.no_grad():
        counter.run(*given)
    for hook in hooks:
        hook.remove()
    assert (counter.volume(), params_of(slim)) == (cost.volume, cost.params)
    # Torch counts a product of complex numbers as several, and nobody sees what a scripted part does.
    scripted = any(isinstance(module, torch.jit.ScriptModule) for module in slim.modules())
    if not scripted and not any(parameter.is_complex() for parameter in slim.parameters()):
        assert flops_of(slim, given) <= cost.flops


# What is known of a mask alone does not tell that the slim net needs a little less.
LESS = {
    "learned_exponents",  # an op runs in full where channels live that one of its operands lacks
    "parameters",  # a parameter that two ops cut is one again where both keep all of it
    "mixes_tokens",  # channels beside more tokens: which of them live is not followed through the mean over tokens
    "einsum_with_weights",  # a sum over one channel is no product of matrices to torch
    "gram", "attention_between_channels",  # products between channels are taken to run in full
    "einsum_attention",  # scores that all die, and with them what they weigh
    "encodes_and_decodes",  # what is computed once for all samples is counted for each
}


def check_counted_by_others(name: str, wrapped: Wrapped, slim: fx.GraphModule, inputs: Any) -> None:
    """Torch's flop counter and the sizes of parameters; the volume is what ``check_cost`` measures."""
    cost = wrapped.cost()
    said, counted = (cost.flops, cost.params), (flops_of(slim, inputs), params_of(slim))
    if name in LESS:
        assert said[0] >= counted[0] and said[1] >= counted[1]
    else:
        assert said == counted


def _shapes(inputs: Any) -> list[tuple[int, ...]]:
    return [tuple(value.shape) for value in (inputs.values() if isinstance(inputs, dict) else inputs)]
