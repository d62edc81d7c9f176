"""What each node computes for the example, on the meta device: shapes and dtypes without arithmetic."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn

from fxprune.count import count_part
from fxprune.modules import copy_module
from fxprune.torch_private import AnyNorm, check_rank, tensors_in, tree_map, version

# Modules whose output has their input's shape and dtype. A meta kernel tells the same, a hundred times slower.
_SAME_SHAPE: tuple[type[nn.Module], ...] = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d,
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Sigmoid, nn.Tanh, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softmax, nn.Softplus,
)  # fmt: skip
_SAME_TENSOR: tuple[type[nn.Module], ...] = (
    nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip
RANDOM = (torch.rand, torch.randint, torch.randn, torch.randperm)
_DOUBLE = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
           torch.complex64: torch.complex128}  # fmt: skip


def in_double(node: fx.Node) -> tuple[Any, Any, Any]:
    """What the node calls, and with what, where everything is computed in double precision."""

    def wide(argument: Any) -> Any:
        return _DOUBLE.get(argument, argument) if isinstance(argument, torch.dtype) else argument

    casts = node.op == "call_method" and node.target in ("float", "half", "bfloat16")
    args: Any = fx.node.map_aggregate((node.args, node.kwargs), wide)
    return ("double" if casts else node.target), *args


def to_meta(tree: Any) -> Any:
    """Every tensor in a nested structure, moved to the meta device."""
    if isinstance(tree, torch.Tensor):
        return tree if tree.is_meta else tree.to("meta")
    return tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf, tree)


def _made_up(tree: Any) -> Any:
    """Random data for every tensor."""
    return tree_map(lambda t: torch.rand(t.shape).to(t.dtype) if isinstance(t, torch.Tensor) else t, tree)


class Values:
    """Evaluates nodes one by one; ``real`` is the user's model, used only where the meta device cannot answer.
    ``double``: constants are asked for as they are in double precision."""

    def __init__(self, root: nn.Module, real: nn.Module, device: torch.device, *, double: bool = False) -> None:
        self.root, self.real, self.device, self.double = root, real, device, double
        self.modules = dict(root.named_modules())
        self.copies: dict[str, nn.Module] = {}
        self.constants: dict[fx.Node, Any] = {}

    def _scratch(self, path: str) -> nn.Module:
        """A copy of a module with its real weights, in eval mode, to run: a call may leave something behind in it."""
        if path not in self.copies:
            owner = self.real if has_attribute(self.real, path) else self.root
            self.copies[path] = copy_module(owner.get_submodule(path)).eval()
        return self.copies[path]

    def of(self, node: fx.Node) -> Any:
        path = str(node.target)
        if node.op == "get_attr":
            return False if path.rpartition(".")[2] == "training" else to_meta(attribute(self.root, path))
        args: Any = fx.node.map_arg(node.args, lambda n: n.meta["value"])
        kwargs: Any = fx.node.map_arg(node.kwargs, lambda n: n.meta["value"])
        module = None
        if node.op == "call_module":
            module = self.modules.get(path) or self.root.get_submodule(path)  # some are made inside forward()
        if isinstance(module, _SAME_TENSOR) and len(args) == 1 and not kwargs:
            return args[0]
        if isinstance(module, _SAME_SHAPE) and len(args) == 1 and not kwargs:
            if isinstance(module, AnyNorm):
                check_rank(module, args[0])
            return args[0].new_empty(args[0].shape)
        if node.target is torch.cat and len(args) == 2 and isinstance(args[1], int):
            return _cat(args[0], args[1])
        if node.target is getattr and args[1] == "device" and isinstance(args[0], torch.Tensor):
            return self.device
        with torch.no_grad():
            try:
                given = tensors_in((args, kwargs))
                before = list(map(version, given))
                value = to_meta(_run(node.target, module, tuple(args), dict(kwargs)))
                if list(map(version, given)) != before and not getattr(module, "inplace", False):
                    raise TypeError(f"{node.target} writes to its input in place")  # and nothing would tell its readers
                return value
            except RuntimeError:
                # The op has no meta kernel, the size of its result depends on the data, or the call is wrong: then
                # torch refuses it for data, too, and tells the user why.
                pass
            if module is not None and has_attribute(self.real, path):
                module = self._scratch(path)
            return to_meta(_run(node.target, module, _made_up(tuple(args)), _made_up(dict(kwargs))))

    def is_constant(self, node: fx.Node) -> bool:
        try:
            self.constant(node)
        except ValueError:
            return False
        return True

    def constant(self, node: fx.Node) -> Any:
        """The real value of a node that depends on parameters and buffers only; raises ``ValueError`` otherwise."""
        path = str(node.target)
        if node.op == "get_attr":  # a tensor made inside forward() is only known to the traced copy
            return attribute(self.real if has_attribute(self.real, path) else self.root, path)
        if node.target in RANDOM:
            raise ValueError(f"{node.name} is another one in every call")
        if node.op not in ("call_function", "call_method", "call_module"):
            raise ValueError(f"{node.name} depends on the input")
        if node not in self.constants:
            given: tuple[Any, Any, Any] = in_double(node) if self.double else (node.target, node.args, node.kwargs)
            target, args, kwargs = given[0], *(fx.node.map_arg(part, self.constant) for part in given[1:])
            with torch.no_grad():
                module = self._scratch(path) if node.op == "call_module" else None
                self.constants[node] = _run(target, module, args, kwargs)
        return self.constants[node]


def _run(target: Any, module: nn.Module | None, args: Any, kwargs: Any) -> Any:
    """A call with these arguments: of ``module`` if there is one, else of a function or a method's name."""
    if module is not None:
        return module(*args, **kwargs)
    return getattr(args[0], target)(*args[1:], **kwargs) if isinstance(target, str) else target(*args, **kwargs)


def _cat(tensors: list[torch.Tensor], dim: int) -> torch.Tensor:
    """Without the meta kernel of ``cat``, which takes a third of the time of tracing a long dense block."""
    first = tensors[0]
    same = all(t.ndim == first.ndim and t.dtype == first.dtype for t in tensors)
    axis = dim % first.ndim if first.ndim else 0
    shapes = {(*t.shape[:axis], *t.shape[axis + 1 :]) for t in tensors}
    if not same or len(shapes) > 1:
        return torch.cat(tensors, dim)  # let torch decide, or complain
    return first.new_empty((*first.shape[:axis], sum(t.shape[axis] for t in tensors), *first.shape[axis + 1 :]))


def has_attribute(root: nn.Module, path: str) -> bool:
    """Does a dotted path lead to a module, parameter or attribute?"""
    owner, _, name = path.rpartition(".")
    try:
        return hasattr(root.get_submodule(owner), name)
    except AttributeError:
        return False


def attribute(root: nn.Module, path: str) -> Any:
    """What a dotted path leads to."""
    return operator.attrgetter(path)(root)


def conv_cost(
    module: nn.Module, real: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], batch: int
) -> tuple[int, int, int]:
    """Volume, FLOPs and parameters of the layers inside a module, for the shapes in this call."""
    scratch = copy_module(real).eval()  # a call may leave something behind
    for candidate, example in ((module, to_meta), (scratch, _made_up)):  # code that looks at data needs some
        try:
            cost = count_part(candidate, example(args), example(kwargs), batch)
        except (NotImplementedError, RuntimeError):
            continue
        return cost.volume, cost.flops, cost.params
    return 0, 0, 0
