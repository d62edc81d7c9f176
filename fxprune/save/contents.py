"""What a net holds, as expressions: each module of ``torch.nn`` as the call that makes it, and all other tensors."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from fxprune.errors import ExportError
from fxprune.save.expressions import Doc, Records, group, literal, prefixed, quoted
from fxprune.torch_private import BOOKKEEPING, AnyConv, backward_hooks, forward_hooks, unsaved_buffers

_RECURRENT = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional")
_OF_ONE_KIND: dict[Any, dict[str, Any]] = {nn.LSTM: {"proj_size": 0}, nn.RNN: {"nonlinearity": "tanh"}}
_KEPT_AS = {"bias": "bias", "add_bias_kv": "bias_k"}  # flags that only leave a parameter behind
_MAY_DIFFER = {"__init__", "reset_parameters", "_reset_parameters", "init_weights", "extra_repr", "__repr__"}
_NO_FACTS = ("training", "call_super_init", "dump_patches")
_MISSING = object()


def constructor(module: nn.Module, path: str) -> Doc:
    """The shortest call that gives a module of the same shape and settings.

    >>> from fxprune.save.expressions import flat
    >>> flat(constructor(nn.Conv2d(3, 8, 3, stride=(2, 1), padding=1, padding_mode="reflect"), "conv"))
    'nn.Conv2d(3, 8, 3, stride=(2, 1), padding=1, padding_mode="reflect")'
    >>> flat(constructor(nn.MaxPool2d(2), "pool")), flat(constructor(nn.ReLU(inplace=True), "relu"))
    ('nn.MaxPool2d(2)', 'nn.ReLU(inplace=True)')
    """
    kind = _torch_class(module, path)
    if any(forward_hooks(inner) or backward_hooks(inner) for inner in module.modules()):
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


def _torch_class(module: nn.Module, path: str) -> Any:
    """The class of ``torch.nn`` that does what the module does: its own class, or a base to which that adds nothing."""
    changed: set[str] = set()
    for kind in type(module).__mro__:
        if getattr(nn, kind.__name__, None) is kind:
            if issubclass(kind, nn.Module) and kind is not nn.Module and not any(hasattr(kind, n) for n in changed):
                return kind
            break
        changed |= {name for name, value in vars(kind).items() if callable(value)} - _MAY_DIFFER
    raise _refused(path, f"is a {type(module).__module__}.{type(module).__qualname__}, not a module of torch.nn")


def _refused(path: str, why: str) -> ExportError:
    return ExportError(
        f"submodule {path!r} {why}, so it cannot be written as source that needs torch only",
        fix="save the net with torch.save(slim, file), which needs your class to load, or build it from torch.nn's own",
    )


def _parameters(kind: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """What the constructor takes, without devices and dtypes."""
    is_recurrent = issubclass(kind, nn.RNNBase)  # whose constructors are declared with *args only
    source: Any = nn.RNNBase if is_recurrent else kind
    parameters = dict(inspect.signature(source.__init__).parameters)
    if is_recurrent:
        parameters = {name: parameters[name] for name in _RECURRENT}
        for name, default in _OF_ONE_KIND.get(kind, {}).items():
            parameters[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    skipped = ("self", "device", "dtype")
    return {name: entry for name, entry in parameters.items() if name not in skipped and entry.kind not in stars}


def _arguments(kind: type[nn.Module], module: nn.Module) -> dict[str, Any]:
    """Every argument whose value the module still knows."""
    arguments: dict[str, Any] = {}
    for name, parameter in _parameters(kind).items():
        value = getattr(module, name, _MISSING)
        if name in _KEPT_AS and not isinstance(value, bool):
            kept_as = "in_proj_bias" if kind is nn.MultiheadAttention and name == "bias" else _KEPT_AS[name]
            value = getattr(module, kept_as, None) is not None
        if value is not _MISSING and (parameter.default is parameter.empty or value != parameter.default):
            arguments[name] = value
    return arguments


def _makes(kind: type[nn.Module], arguments: dict[str, Any], module: nn.Module) -> bool:
    """Does the constructor, called with these arguments, make the same module?"""
    try:
        with torch.device("meta"):
            facts = _facts(kind(**arguments))
    except (TypeError, ValueError, RuntimeError, AssertionError):
        return False
    return facts == {name: value for name, value in _facts(module).items() if name in facts}


def _facts(module: nn.Module) -> dict[str, Any]:
    """All that decides what a module of torch.nn computes: its settings, and the shapes of its tensors."""

    def is_plain(value: Any) -> bool:
        if isinstance(value, (tuple, list)):
            return all(is_plain(entry) for entry in value)
        return value is None or isinstance(value, (int, float, str))

    facts: dict[str, Any] = {
        name: tuple(value) if isinstance(value, (list, torch.Size)) else value
        for name, value in vars(module).items()
        if is_plain(value) and not name.startswith(BOOKKEEPING) and name not in _NO_FACTS
    }
    tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    facts["tensors"] = {name: tuple(tensor.shape) for name, tensor in tensors}
    facts["settings"] = {name: child.extra_repr() for name, child in module.named_modules()}
    return facts


def _plain(value: Any) -> Doc:
    """The expression for a setting, in which there are no nodes."""
    return literal(value, str, Records(()))


def _sequential(module: nn.Module, path: str) -> Doc:
    children = [
        (name, constructor(child, f"{path}.{name}")) for name, child in module._modules.items() if child is not None
    ]
    if [name for name, _ in children] == [str(number) for number in range(len(children))]:
        return group("nn.Sequential(", [child for _, child in children], ")", call=True)
    named = group("{", [prefixed(f"{quoted(name)}: ", child) for name, child in children], "}")
    return group("nn.Sequential(", [group("OrderedDict(", [named], ")", call=True)], ")", call=True)


@dataclass
class Contents:
    """Everything under a net's names, as expressions, in the order of its state dict."""

    table: dict[str, Doc] = field(default_factory=dict)
    unsaved: dict[str, Doc] = field(default_factory=dict)  # buffers that are not part of the state dict
    frozen: list[str] = field(default_factory=list)
    ties: list[tuple[str, str]] = field(default_factory=list)  # (another name, the first name) of one parameter


def contents(slim: fx.GraphModule, graph: fx.Graph) -> Contents:
    """Modules that ``graph`` calls, as the calls that make them; all others only hold other modules."""
    held = Contents()
    called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    flags = {str(node.target).rpartition(".")[0] for node in graph.nodes if str(node.target).endswith(".training")}
    _add(slim, "", called, held)
    for path in sorted(flags):
        if not any(f"{other}.".startswith(f"{path}.") for other in (*held.table, *held.unsaved)):
            held.table[path] = "Part()"
    first: dict[int, str] = {}
    for path, parameter in slim.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            held.ties.append((path, first[id(parameter)]))
        elif not parameter.requires_grad:
            held.frozen.append(path)
        first.setdefault(id(parameter), path)
    return held


def _add(module: nn.Module, path: str, called: set[str], held: Contents) -> None:
    prefix = f"{path}." if path else ""
    children = {name: child for name, child in module._modules.items() if child is not None}
    if path in called:
        # Parts of a layer that are called on their own, such as the padding before a convolution: torch's layers of
        # these classes have none.
        may_have = isinstance(module, (AnyConv, nn.Linear))
        children = {
            name: child for name, child in children.items()
            if may_have and any(f"{other}.".startswith(f"{prefix}{name}.") for other in called)
        }  # fmt: skip
        held.table[path] = constructor(_without(module, children), path)
    else:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                flag = [] if parameter.is_floating_point() else ["requires_grad=False"]
                held.table[prefix + name] = group("nn.Parameter(", [_empty(parameter), *flag], ")", call=True)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                table = held.unsaved if name in unsaved_buffers(module) else held.table
                table[prefix + name] = _empty(buffer)
    for name, child in children.items():
        _add(child, prefix + name, called, held)


def _without(module: nn.Module, children: dict[str, nn.Module]) -> nn.Module:
    """The module, or a shallow copy without these children."""
    if not children:
        return module
    shallow = copy.copy(module)
    shallow._modules = {name: child for name, child in module._modules.items() if name not in children}
    return shallow


def _empty(tensor: torch.Tensor) -> Doc:
    sizes: list[Doc] = [str(size) for size in tensor.shape] or ["()"]
    kind: list[Doc] = [] if tensor.dtype is torch.float32 else [f"dtype={tensor.dtype}"]
    return group("torch.empty(", sizes + kind, ")", call=True)
