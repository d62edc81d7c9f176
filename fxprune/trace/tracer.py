"""The tracer: ``torch.fx`` with proxies that know the example's shapes, in-place ops made functional, and modules kept
as they are where their code cannot be traced. What Python code takes out of the graph (a branch, a loop count, an
index) is recorded, and the graph asserts that it stays the same."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from fxprune.count import batch_size
from fxprune.errors import first_line
from fxprune.torch_private import call_with_hooks, find_proxy, forward_hooks, is_in, memory_of, tensors_in, tree_map
from fxprune.trace import canonical_calls, multi_head, writes
from fxprune.trace.canonical_calls import functional_form, overwritten, picked, usual_spelling
from fxprune.trace.multi_head import MADE_OF_LAYERS, module_form, without_unread_weights
from fxprune.trace.patches import Untraceable, recording, true_len
from fxprune.trace.proxy import ShapeProxy, proxies
from fxprune.trace.source_lines import call_site, error_line, is_user_function, user_line
from fxprune.trace.values import Values, conv_cost, to_meta

_WRITTEN_OUT = {**multi_head.WRITTEN_OUT, **canonical_calls.WRITTEN_OUT}  # torch's functions that are looked into


@dataclass(frozen=True)
class Specialisation:
    """What the model's Python code consumed while it was traced, and the graph therefore asserts."""

    node: str
    kind: str  # "branch", "value" or "training"
    value: Any
    source: str | None


@dataclass(frozen=True)
class Leaf:
    """A submodule kept as one opaque call, because its Python code could not be traced or the user asked for it."""

    path: str
    type: str
    reason: str
    source: str | None
    volume: int = 0  # of the layers inside, which are counted but never pruned
    flops: int = 0
    params: int = 0


def specialise(tracer: Tracer, proxy: ShapeProxy, convert: Callable[[Any], Any]) -> Any:
    """The example's value, handed to Python; the graph checks from now on that it is still the same.

    Torch's argument parser also asks a number for its index, before the call reaches the tracer with that number still
    symbolic. So an index only counts as consumed if the next node is of another call.
    """
    if isinstance(proxy.value, torch.Tensor):
        return convert(constant(tracer, proxy, convert.__name__))
    if convert is operator.index:
        tracer.pending.append((proxy, call_site()))
        return operator.index(proxy.value)
    return _consume(tracer, proxy, convert)


def _consume(tracer: Tracer, proxy: ShapeProxy, convert: Callable[[Any], Any]) -> Any:
    value, source = convert(proxy.value), user_line()
    kind = "branch" if convert is bool else "value"
    tracer.specialisations.append(Specialisation(proxy.node.name, kind, value, source))
    check(tracer, proxy.node, convert, value, source)
    return value


def settle(tracer: Tracer) -> None:
    """Before the next node is made: an index that was asked for by another call counts as consumed."""
    pending, tracer.pending = tracer.pending, []
    here = call_site()
    for proxy, site in pending:
        if site != here:
            _consume(tracer, proxy, operator.index)


def length(tracer: Tracer, proxy: ShapeProxy) -> int:
    """How many entries a tuple or list has. If code that was not traced made it, the graph checks the number."""
    count, maker = true_len(proxy.value), proxy.node
    while maker.target is operator.getitem and isinstance(maker.args[0], fx.Node):
        maker = maker.args[0]
    known = maker.op in ("call_method", "get_attr", "call_function") and not is_user_function(maker.target)
    if maker.op == "call_module":
        known = type(tracer.root.get_submodule(str(maker.target))).__module__.startswith("torch.nn.")
    if not known:
        check(tracer, proxy.node, true_len, count, user_line())
    return count


def constant(tracer: Tracer, proxy: ShapeProxy, what: str) -> Any:
    try:
        return tracer.values.constant(proxy.node)
    except ValueError:
        raise Untraceable(f"{what}() of a tensor that depends on the input") from None


def check(tracer: Tracer, node: fx.Node, convert: Callable[[Any], Any] | None, value: Any, source: str | None) -> None:
    """Let the graph assert that ``convert(node)`` is still ``value``."""
    if (node, convert, repr(value)) in tracer.checked:
        return
    tracer.checked.add((node, convert, repr(value)))

    def call(function: Callable[..., Any], *args: Any, result: Any) -> fx.Node:
        added = tracer.graph.call_function(function, args)
        added.meta.update(value=result, source=node.meta["source"], module=node.meta.get("module"))
        return added

    held: Any = node
    if convert is not None and (convert is true_len or type(node.meta["value"]) is not type(value)):
        held = call(convert, node, result=value)
    if value is False:
        held = call(torch.sym_not, held, result=True)
    elif value is not True:
        held = call(operator.eq, held, value, result=True)
    way = "this input would take another way through the model than the example did"
    said = f"fxprune: {way} ({value!r} at {source or node.name}); wrap the model with an example of this shape"
    call(torch._assert, held, said, result=None)


_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


class TrainingFlag(int):
    """Stands for ``self.training`` while tracing: passed on, it becomes a node; in an ``if``, a specialisation."""

    tracer: Tracer
    path: str

    def __new__(cls, tracer: Tracer, path: str) -> TrainingFlag:
        flag = super().__new__(cls, 0)
        flag.tracer, flag.path = tracer, path
        return flag

    def __bool__(self) -> bool:
        self.tracer.training_reads += 1
        self.tracer.specialisations.append(Specialisation(self.path or "model", "training", False, user_line()))
        return False

    def __mul__(self, other: Any) -> Any:  # the dropout probability, if the call itself has no such argument
        return self.tracer.create_proxy("call_function", operator.mul, (self, other), {})


class Tracer(fx.Tracer):
    """Traces ``root`` (a meta copy) for one example; ``real`` is the user's untouched model."""

    def __init__(self, real: nn.Module, device: torch.device, leaf: Callable[[str, nn.Module], bool]) -> None:
        super().__init__()
        self.real, self.device, self.is_user_leaf = real, device, leaf
        self.specialisations: list[Specialisation] = []
        self.leaves: list[Leaf] = []
        self.by_storage: dict[int, list[fx.Node]] = {}
        self.stale: dict[fx.Node, str] = {}  # nodes whose tensor was overwritten through another name
        self.paused = False  # while a value is computed, modules run as they are
        self.training_reads = 0
        self.pending: list[tuple[ShapeProxy, tuple[int, int]]] = []  # indices that Python or torch has asked for
        self.checked: set[tuple[object, ...]] = set()
        self.told_weights: list[tuple[fx.Node, fx.Node, fx.Node]] = []  # of attention: returned, used, and with what

    # ---------------------------------------------------------------- entry

    def trace_example(self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Graph:
        self.values = Values(root, self.real, self.device)
        self.example = inspect.signature(root.forward).bind(*args, **kwargs)
        self.batch = batch_size(args, kwargs)
        self.attribute_names = {id(t): n for n, t in [*root.named_parameters(), *root.named_buffers()]}
        self.autocast = _autocast()
        with recording(self):
            graph = self.trace(root)
        for nodes in self.told_weights:
            if is_in(graph, nodes[0]):  # not taken back
                without_unread_weights(graph, *nodes)
        return graph

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        """One placeholder per argument of the example; arguments that it leaves out keep their default."""
        parameters = inspect.signature(self.root.forward).parameters
        arguments = {
            name: self._placeholder(_STARS.get(parameters[name].kind, "") + name, given)
            for name, given in self.example.arguments.items()
        }
        bound, flag = inspect.BoundArguments(self.example.signature, arguments), TrainingFlag(self, "")

        def run(*_: Any) -> Any:
            self.root.__dict__["training"] = flag
            try:
                if has_hooks(self.root):
                    return call_with_hooks(self.root, *bound.args, **bound.kwargs)
                return self.root.forward(*bound.args, **bound.kwargs)
            finally:
                self.root.__dict__["training"] = False

        return run, []

    def _placeholder(self, name: str, given: Any) -> Any:
        """A proxy for the tensors of an argument. A flag or a number given as example is a constant of the graph, which
        refuses another value when it runs."""
        node = self.graph.create_node("placeholder", name, (), {})
        node.meta.update(value=to_meta(given), source=None, module="")
        tensors = tensors_in(node.meta["value"])
        for tensor in tensors:
            self.by_storage.setdefault(memory_of(tensor), []).append(node)
        if not tensors and not name.startswith("*"):
            self.check(node, None, given, f"argument {name}")
        return self.proxy(node) if tensors else given

    # ---------------------------------------------------------------- nodes and proxies

    def proxy(self, node: fx.Node) -> ShapeProxy:
        return ShapeProxy(node, self)

    def create_node(
        self, kind: str, target: Any, args: Any, kwargs: Any, name: Any = None, type_expr: Any = None
    ) -> Any:
        settle(self)
        if _autocast() != self.autocast:
            raise Untraceable("torch.autocast inside of forward() is lost in a graph: call the network under autocast")
        target, args, kwargs = functional_form(kind, target, args, kwargs)
        args, kwargs = usual_spelling(kind, target, args, kwargs, self.root)
        if target is operator.getitem:
            target, args = picked(args[0], args[1], self.values.is_constant) or (target, args)
        if kind == "call_method" and target.endswith("_") and not target.startswith("_") and target != "requires_grad_":
            raise Untraceable(f"{target}() writes in place and has no form that does not")
        node = self.graph.create_node(kind, target, args, kwargs, name, None)
        node.meta.update(source=user_line(), module=self.scope.module_path)
        paused, self.paused = self.paused, True
        try:
            for argument in node.all_input_nodes:
                if argument in self.stale:
                    raise Untraceable(self.stale[argument])
            if kind != "output":
                node.meta["value"] = self.values.of(node)
        except Exception:
            self.graph.erase_node(node)
            raise
        finally:
            self.paused = paused
        if isinstance(node.meta.get("value"), torch.Tensor):
            self.by_storage.setdefault(memory_of(node.meta["value"]), []).append(node)
        return node

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **named: Any) -> Any:
        written_out = _WRITTEN_OUT.get(target) if kind == "call_function" else None
        if kind == "call_function" and (written_out or is_user_function(target)):
            # marked as opaque by torch.fx.wrap, or torch's: look inside

            def opaque(error: Exception | None) -> Any:
                call = super(Tracer, self).create_proxy(kind, target, args, kwargs)
                call.node.meta["is_wrapped"] = True  # fx must not look inside when it reads a pickle, either
                if error is not None:
                    called = f"{target.__module__}.{target.__name__}"
                    self.leaves.append(Leaf(called, "function", first_line(error), error_line(error)))
                return call

            return self._without_grad(self._inlined(written_out or target, opaque, args, kwargs))
        result = super().create_proxy(kind, target, args, kwargs, *rest, **named)
        writes.note_view(result, target, args)
        written = overwritten(kind, target, args, kwargs, self.root)
        if written is not None:
            return self.update(written, result)
        return result if kind in ("call_module", "get_attr") else self._without_grad(result)

    def _without_grad(self, result: Any) -> Any:
        """``torch.no_grad()`` is lost in a graph: what the model computes under it is detached instead."""
        if torch.is_grad_enabled() or type(result) is not ShapeProxy or result.node.target == "detach":
            return result
        value = result.value
        floats = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
        return super().create_proxy("call_method", "detach", (result,), {}) if floats else result

    def create_arg(self, a: Any) -> Any:
        if type(a) is ShapeProxy:
            return a.node
        if isinstance(a, TrainingFlag):
            return self.create_node("get_attr", f"{a.path}.training".lstrip("."), (), {})
        if isinstance(a, np.generic):  # a number of numpy's would be written as such, and there is no numpy in a graph
            return a.item()
        if isinstance(a, torch.Size):
            return tuple(self.create_arg(entry) for entry in a)
        return super().create_arg(a)

    def call_method(self, owner: ShapeProxy, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in ("dim", "ndimension", "is_floating_point", "is_complex"):
            return getattr(owner.value, name)()
        if name in ("item", "tolist") and isinstance(owner.value, torch.Tensor):
            return getattr(self.constant(owner, name), name)()
        if name == "type" and not args and not kwargs:  # a name for Python
            return torch.empty(0, dtype=owner.value.dtype, device=self.device).type()
        if name in ("zero_", "fill_", "copy_"):
            return writes.overwrite(self, owner, (*args, *kwargs.values(), 0)[0])
        return self.create_proxy("call_method", name, (owner, *args), kwargs)

    # ---------------------------------------------------------------- what Python consumed, and what it wrote

    specialise, length, constant, check = specialise, length, constant, check
    update, assign = writes.update, writes.assign

    # ---------------------------------------------------------------- modules

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        name = None if self.paused else self.attribute_names.get(id(attr_val))
        if name is None or not isinstance(attr_val, torch.Tensor):
            return attr_val
        known = parameter_proxy_cache.get(name)
        if known is None or not is_in(self.graph, known.node):
            parameter_proxy_cache[name] = self.create_proxy("get_attr", name, (), {})
        return parameter_proxy_cache[name]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if self.is_user_leaf(module_qualified_name, m) or isinstance(m, torch.jit.ScriptModule):
            return True
        own = vars(m).get("forward")  # chosen by __init__, as by self.forward = self.forward_fast
        owner = own or next(cls for cls in type(m).__mro__ if "forward" in cls.__dict__)
        of_torch = str(getattr(owner, "__module__", "")).startswith("torch.nn.")
        return of_torch and not isinstance(m, MADE_OF_LAYERS)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.paused or find_proxy(args, kwargs) is None:
            return forward(*args, **kwargs)
        path = self.path_of(m)
        if self.is_leaf_module(m, path):
            result = self.create_proxy("call_module", path, args, kwargs)
            if self.is_user_leaf(path, m):
                self._note_leaf(m, path, args, kwargs, "kept as a leaf on request", None)
            elif has_hooks(m):  # hooks see, and may change, channels that a smaller layer does not have
                result.node.meta["hooked"] = True
                self._note_leaf(m, path, args, kwargs, "it has forward hooks", None)
            return self._without_grad(result)
        scope, self.scope = self.scope, fx.proxy.Scope(path, type(m))
        m.__dict__["training"] = TrainingFlag(self, path)

        def opaque(error: Exception | None) -> Any:
            m.__dict__["training"] = False
            leaf = super(Tracer, self).create_proxy("call_module", path, args, kwargs)
            if error is not None:
                self._note_leaf(m, path, args, kwargs, first_line(error), error_line(error))
            return leaf

        if type(m).forward is nn.MultiheadAttention.forward and not has_hooks(m):
            forward = module_form(m, path)
        try:
            return self._without_grad(self._inlined(forward, opaque, args, kwargs))
        finally:
            m.__dict__["training"] = False
            self.scope = scope

    def _note_leaf(self, m: nn.Module, path: str, args: Any, kwargs: Any, reason: str, source: str | None) -> None:
        given, named = tree_map(lambda leaf: leaf.value if type(leaf) is ShapeProxy else leaf, (args, kwargs))
        self.paused = True
        try:
            cost = conv_cost(m, self.real.get_submodule(path), given, named, self.batch)
        finally:
            self.paused = False
        self.leaves.append(Leaf(path, type(m).__name__, reason, source, *cost))

    def _inlined(
        self, call: Callable[..., Any], opaque: Callable[[Exception | None], Any], args: Any, kwargs: Any
    ) -> Any:
        """Trace through ``call``; if that fails, remove what it recorded and keep the call as one opaque node."""
        last, reads = next(iter(reversed(self.graph.nodes)), None), self.training_reads
        stale, checked = dict(self.stale), set(self.checked)
        specialised, leaves = len(self.specialisations), len(self.leaves)
        nodes = {proxy: proxy.node for proxy in proxies((args, kwargs))}

        def undo() -> None:
            for node in reversed(list(self.graph.nodes)):
                if node is last:
                    break
                self.graph.erase_node(node)
            self.stale, self.checked = stale, checked
            del self.specialisations[specialised:], self.leaves[leaves:]
            for proxy, node in nodes.items():
                proxy.node = node

        try:
            result = call(*args, **kwargs)
        except Exception as error:
            undo()
            try:
                return opaque(error)
            except Exception:
                raise error from None
        if self.training_reads > reads and args and result is args[0]:
            # Does nothing in eval mode but something in training (stochastic depth, for example): keep it.
            undo()
            result = opaque(None)
            result.node.meta["identity"] = True
        return result

    def path_of(self, module: nn.Module) -> str:
        paths = self.submodule_paths
        assert paths is not None
        if module not in paths:  # made inside forward()
            name = self.get_fresh_qualname("inline_")
            self.root.add_module(name, module)
            paths[module] = name
        return paths[module]


def has_hooks(module: nn.Module) -> bool:
    """Forward hooks of the model's author; torch's own (weight norm, spectral norm) are part of the layer."""
    return any(not str(getattr(hook, "__module__", "")).startswith("torch.") for hook in forward_hooks(module))


def _autocast() -> tuple[bool, bool]:
    return torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
