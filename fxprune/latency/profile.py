"""Where the time of a net goes: every op that it calls, with its layer, its FLOPs and the bytes that it moves."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

from fxprune.count import first_three
from fxprune.latency.stopwatch import Inputs, device_of, in_turns, now
from fxprune.torch_private import tree_leaves

ROUNDS = 15
# Whatever moves or adds channels outside of a layer: joins, and gathers before and after them.
JOINS = {
    "add", "add_", "__add__", "__radd__", "__iadd__", "sub", "cat", "concat", "stack", "index_add", "index_add_",
    "scatter_add", "scatter_add_", "expand_as", "permute",
    "index_select", "narrow", "pad", "clone", "where", "zeros_like", "chunk", "split", "__getitem__", "type_as",
}  # fmt: skip
_CONVOLUTIONS = {f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)}
_IDLE = {"dim", "size", "__get__", "__eq__", "_assert", "shape", "is_contiguous", "stride", "numel"}


@dataclass(frozen=True)
class OpTime:
    """One op of a net: the median seconds of its calls."""

    layer: str  # the module that calls it; of ops in the model's own forward, that of the op
    op: str
    kind: str  # "convolution", "linear", "norm", "activation", "pooling", "join" or "other"
    shape: tuple[int, ...]  # of the result
    seconds: float
    flops: int  # of convolutions and linear layers
    bytes: int  # read and written: operands, parameters and result

    @property
    def intensity(self) -> float:
        """FLOPs per byte: below some tens, the op waits for memory."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class Profile:
    """The ops of a net in their order, and the time of the whole net, measured without watching the ops."""

    ops: tuple[OpTime, ...]
    seconds: float

    @property
    def by_kind(self) -> dict[str, float]:
        """Kind of op -> share of the time of all ops."""
        spent: dict[str, float] = defaultdict(float)
        for op in self.ops:
            spent[op.kind] += op.seconds
        total = sum(spent.values()) or 1.0
        return {kind: seconds / total for kind, seconds in sorted(spent.items(), key=lambda entry: -entry[1])}

    def as_dict(self) -> dict[str, Any]:
        ops = [{**asdict(op), "shape": list(op.shape), "intensity": op.intensity} for op in self.ops]
        return {"seconds": self.seconds, "by_kind": self.by_kind, "ops": ops}


def profile(net: nn.Module, inputs: Inputs, rounds: int = ROUNDS) -> Profile:
    """Run ``net`` several times and take the time of every op.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    >>> taken = profile(net.eval(), ((torch.zeros(1, 3, 6, 6),), {}), rounds=3)
    >>> [(op.layer, op.kind, op.flops) for op in taken.ops]
    [('0', 'convolution', 6912), ('1', 'norm', 0), ('2', 'activation', 0)]
    """
    watched: list[_Watch] = []
    with torch.inference_mode(), ExitStack() as hooks:
        here = _Here(net, hooks)
        for number in range(rounds + 2):
            with _Watch(here, device_of(net)) as watch:
                net(*inputs[0], **inputs[1])
            if number >= 2:  # the first ones warm up
                watched.append(watch)
    ops = []
    for number, op in enumerate(watched[-1].ops):
        taken = [watch.ops[number].seconds for watch in watched if len(watch.ops) > number]
        ops.append(OpTime(**{**vars(op), "seconds": statistics.median(taken)}))
    return Profile(tuple(ops), statistics.median(in_turns([net], inputs, rounds)[0]))


class _Here:
    """The path of the module whose forward runs."""

    def __init__(self, net: nn.Module, hooks: ExitStack) -> None:
        self.path: list[tuple[str, bool]] = [("", False)]
        for name, module in net.named_modules():
            if name:
                leaf = not any(True for _ in module.children())
                handles = (
                    module.register_forward_pre_hook(self._enter(name, leaf)),
                    module.register_forward_hook(self._leave),
                )
                for handle in handles:
                    hooks.callback(handle.remove)

    def _enter(self, name: str, leaf: bool) -> Callable[..., None]:
        return lambda *_: self.path.append((name, leaf))

    def _leave(self, *_: Any) -> None:
        self.path.pop()


class _Watch(TorchFunctionMode):
    def __init__(self, here: _Here, device: torch.device) -> None:
        super().__init__()
        self.here, self.device = here, device
        self.ops: list[OpTime] = []
        self.seen: Counter[str] = Counter()
        self.inside = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, _name(func)
        if self.inside or name in _IDLE:
            return func(*args, **kwargs)
        self.inside = True
        try:
            begin = now(self.device)
            result = func(*args, **kwargs)
            taken = now(self.device) - begin
        finally:
            self.inside = False
        if isinstance(result, torch.Tensor):
            path, leaf = self.here.path[-1]
            self.seen[name] += 0 if leaf else 1
            layer = (
                path if leaf else f"{path}.{name}".lstrip(".") + (f" {self.seen[name]}" if self.seen[name] > 1 else "")
            )
            tensors = [part for part in tree_leaves((args, kwargs)) if isinstance(part, torch.Tensor)]
            size = sum(part.numel() * part.element_size() for part in (*tensors, result))
            flops = _flops(name, (args, kwargs), result)
            self.ops.append(OpTime(layer, name, _kind(name, leaf), tuple(result.shape), taken, flops, size))
        return result


def _name(func: Any) -> str:
    name: str = getattr(func, "__name__", "") or str(resolve_name(func) or func).rpartition(".")[2]
    return name


def _kind(name: str, leaf: bool) -> str:
    if name in _CONVOLUTIONS:
        return "convolution"
    if name in ("linear", "matmul", "__matmul__", "bmm", "addmm"):
        return "linear"
    if "norm" in name:
        return "norm"
    if "pool" in name or name in ("mean", "interpolate"):
        return "pooling"
    if name in JOINS and not leaf:
        return "join"
    if name.rstrip("_") in ("relu", "silu", "gelu", "sigmoid", "hardswish", "hardsigmoid", "relu6", "tanh", "hardtanh",
                            "leaky_relu", "prelu", "elu", "softmax", "mish"):  # fmt: skip
        return "activation"
    return "other"


def _flops(name: str, given: tuple[Any, Any], result: torch.Tensor) -> int:
    if name not in (*_CONVOLUTIONS, "linear"):
        return 0
    x, weight, _ = first_three(*given[0], **given[1])
    if name == "linear":
        return int(2 * weight.numel() * prod(result.shape[:-1]))
    places = x if "transpose" in name else result
    return int(2 * weight.numel() * prod(places.shape[2:]) * result.shape[0])
