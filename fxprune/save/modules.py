"""From a module of ``torch.nn`` back to the expression that makes it.

Other people's code that does nothing in eval mode (stochastic depth and its kind) need not be written.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from fxprune.errors import ExportError, FxPruneError
from fxprune.save.layout import Doc, group, prefixed, quoted
from fxprune.save.literal import Records, literal
from fxprune.torch_private import BOOKKEEPING, backward_hooks, forward_hooks
from fxprune.trace import trace


def without_idle(slim: fx.GraphModule) -> tuple[fx.Graph, list[str]]:
    """A copy of the graph without calls that give back their first argument, and the names of what was called."""
    graph, names = copy.deepcopy(slim.graph), set()
    for node in list(graph.nodes):
        called = _foreign(node, slim)
        if called is None or not node.args or not isinstance(node.args[0], fx.Node):
            continue
        if _returns_its_argument(called, *_settings(node)):
            names.add(getattr(called, "__name__", type(called).__name__))
            node.replace_all_uses_with(node.args[0])
            flags = [argument for argument in node.all_input_nodes if argument.op == "get_attr"]
            graph.erase_node(node)
            for flag in flags:
                if not flag.users:
                    graph.erase_node(flag)
    return graph, sorted(names)


def _foreign(node: fx.Node, slim: fx.GraphModule) -> Callable[..., Any] | None:
    """A function or a module without weights that is not torch's."""
    if node.op == "call_function" and callable(node.target):
        owner = getattr(node.target, "__module__", None) or "torch"
        known = owner.partition(".")[0] in ("torch", "_operator", "builtins", "math")
        return None if known or isinstance(node.target, type) else node.target
    if node.op == "call_module":
        module = slim.get_submodule(str(node.target))
        known = type(module).__module__.startswith("torch.nn.")
        return None if known or module.state_dict() else module
    return None


def _settings(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The other arguments; ``self.training`` is False."""

    def put(argument: fx.Node) -> Any:
        return False if argument.op == "get_attr" and str(argument.target).endswith("training") else argument

    args: Any = fx.node.map_arg(node.args[1:], put)
    kwargs: Any = fx.node.map_arg(node.kwargs, put)
    return args, kwargs


class _Call(nn.Module):
    def __init__(self, called: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.called, self.args, self.kwargs = called, args, kwargs

    def forward(self, x: torch.Tensor) -> Any:
        return self.called(x, *self.args, **self.kwargs)


def _returns_its_argument(called: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Traced in eval mode, nothing happens on the way from the input to the output."""
    run = copy.deepcopy(called).eval().forward if isinstance(called, nn.Module) else called
    call = _Call(run, args, kwargs)
    try:
        nodes = list(trace(call, torch.zeros(1, 1, 1, 1)).graph.nodes)
    except FxPruneError:
        return False
    return [node.op for node in nodes] == ["placeholder", "output"] and nodes[1].args[0] is nodes[0]


_RECURRENT = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional")
_KEPT_AS = {"bias": "bias", "add_bias_kv": "bias_k"}  # flags of which only the parameter that they ask for is kept
_MAY_DIFFER = {"__init__", "reset_parameters", "_reset_parameters", "init_weights", "extra_repr", "__repr__"}
_MISSING = object()


def constructor(module: nn.Module, path: str) -> Doc:
    """The shortest call that gives a module of the same shape and settings.

    >>> from fxprune.save.layout import flat
    >>> flat(constructor(nn.Conv2d(3, 8, 3, stride=(2, 1), padding=1, padding_mode="reflect"), "conv"))
    'nn.Conv2d(3, 8, 3, stride=(2, 1), padding=1, padding_mode="reflect")'
    >>> flat(constructor(nn.MaxPool2d(2), "pool")), flat(constructor(nn.ReLU(inplace=True), "relu"))
    ('nn.MaxPool2d(2)', 'nn.ReLU(inplace=True)')
    """
    kind = _torch_class(module, path)
    if has_hooks(module):
        raise _refused(path, f"({type(module).__name__}) has hooks, which are Python code")
    if kind is nn.Sequential:
        return _sequential(module, path)
    arguments = _arguments(kind, module)
    if not _makes(kind, arguments, module):
        raise _refused(path, f"({type(module).__name__}) holds more than its constructor's arguments tell")
    required = [name for name, parameter in _parameters(kind).items() if parameter.default is parameter.empty]
    for name, value in list(arguments.items()):
        shorter = {key: entry for key, entry in arguments.items() if key != name}
        if name not in required and _makes(kind, shorter, module):
            arguments = shorter
        elif isinstance(value, (tuple, list)) and len(value) > 0 and all(entry == value[0] for entry in value):
            scalar = {**arguments, name: value[0]}
            arguments = scalar if _makes(kind, scalar, module) else arguments
    items = [
        _plain(value) if name in required else prefixed(f"{name}=", _plain(value)) for name, value in arguments.items()
    ]
    return group(f"nn.{kind.__name__}(", items, ")", call=True)


def without(module: nn.Module, names: list[str]) -> nn.Module:
    """The module, for a look at it, as if it did not hold these children."""
    if not names:
        return module
    made = copy.copy(module)
    made._modules = {name: child for name, child in module._modules.items() if name not in names}
    return made


def _torch_class(module: nn.Module, path: str) -> type[nn.Module]:
    """The class of ``torch.nn`` that does what the module does: its own, or a base to which it adds nothing."""
    changed: set[str] = set()
    for kind in type(module).__mro__:
        found = getattr(nn, kind.__name__, None)
        if isinstance(found, type) and found is kind:
            if issubclass(found, nn.Module) and found is not nn.Module and not any(hasattr(found, n) for n in changed):
                return found
            break
        changed |= {name for name, value in vars(kind).items() if callable(value)} - _MAY_DIFFER
    raise _refused(path, f"is a {type(module).__module__}.{type(module).__qualname__}, not a module of torch.nn")


def _refused(path: str, why: str) -> ExportError:
    return ExportError(
        f"submodule {path!r} {why}, so it cannot be written as source that needs torch only",
        fix="save the net with torch.save(slim, file), which needs your class to load, or build it from torch.nn's own",
    )


def has_hooks(module: nn.Module, *, inside: bool = True) -> bool:
    owners = module.modules() if inside else [module]
    return any(forward_hooks(owner) or backward_hooks(owner) for owner in owners)


def _parameters(kind: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """What the constructor takes, without devices and dtypes."""
    source: Any = nn.RNNBase if issubclass(kind, nn.RNNBase) else kind
    found = dict(inspect.signature(source.__init__).parameters)
    if issubclass(kind, nn.RNNBase):
        found = {name: found[name] for name in _RECURRENT}
        if kind is nn.LSTM:
            found["proj_size"] = inspect.Parameter("proj_size", inspect.Parameter.KEYWORD_ONLY, default=0)
        if kind is nn.RNN:
            found["nonlinearity"] = inspect.Parameter("nonlinearity", inspect.Parameter.KEYWORD_ONLY, default="tanh")
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    skipped = ("self", "device", "dtype")
    return {name: entry for name, entry in found.items() if name not in skipped and entry.kind not in stars}


def _arguments(kind: type[nn.Module], module: nn.Module) -> dict[str, Any]:
    """Every argument whose value the module still knows."""
    found: dict[str, Any] = {}
    for name, parameter in _parameters(kind).items():
        value = getattr(module, name, _MISSING)
        if name in _KEPT_AS and not isinstance(value, bool):
            held = "in_proj_bias" if kind is nn.MultiheadAttention and name == "bias" else _KEPT_AS[name]
            value = getattr(module, held, None) is not None
        if value is not _MISSING and (parameter.default is parameter.empty or value != parameter.default):
            found[name] = value
    return found


def _makes(kind: type[nn.Module], arguments: dict[str, Any], module: nn.Module) -> bool:
    try:
        with torch.device("meta"):
            made = kind(**arguments)
    except (TypeError, ValueError, RuntimeError, AssertionError):
        return False
    return _facts(made) == {name: value for name, value in _facts(module).items() if name in _facts(made)}


def _facts(module: nn.Module) -> dict[str, Any]:
    """All that a module of torch.nn computes by: its settings and the shapes of what it holds."""

    def is_plain(value: Any) -> bool:
        if isinstance(value, (tuple, list)):
            return all(is_plain(entry) for entry in value)
        return value is None or isinstance(value, (bool, int, float, str))

    facts: dict[str, Any] = {
        name: tuple(value) if isinstance(value, (list, torch.Size)) else value
        for name, value in vars(module).items()
        if is_plain(value) and not name.startswith(BOOKKEEPING)
    }
    tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    facts["tensors"] = {name: tuple(tensor.shape) for name, tensor in tensors}
    facts["settings"] = {name: child.extra_repr() for name, child in module.named_modules()}
    for name in ("training", "call_super_init", "dump_patches"):
        facts.pop(name, None)
    return facts


def _plain(value: Any) -> Doc:
    def no_node(_: Any) -> Doc:
        raise AssertionError("a module was made with a node of a graph")

    return literal(tuple(value) if isinstance(value, torch.Size) else value, no_node, Records(()))


def _sequential(module: nn.Module, path: str) -> Doc:
    children = [
        (name, constructor(child, f"{path}.{name}")) for name, child in module._modules.items() if child is not None
    ]
    if [name for name, _ in children] == [str(number) for number in range(len(children))]:
        return group("nn.Sequential(", [made for _, made in children], ")", call=True)
    named = group("{", [prefixed(f"{quoted(name)}: ", made) for name, made in children], "}")
    return group("nn.Sequential(", [group("OrderedDict(", [named], ")", call=True)], ")", call=True)
