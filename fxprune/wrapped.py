"""The wrapped network: the user's weights under their own names, plus gates."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from fxprune.analysis import Analysis, analyse, numbers
from fxprune.channels.ids import OPEN
from fxprune.choose.choose import ArrayLike, Bools, check_reachable, choose, per_gate
from fxprune.cost.model import Cost
from fxprune.cost.target import DEFAULT, Share, Target
from fxprune.errors import OptionError, check_choice
from fxprune.gated.bank import LAWS, GateBank, Gates, Gaussian, gated_norm
from fxprune.gated.insert import BANK, check_names, find_sites, insert, keep_passing, keep_unread
from fxprune.gated.pressure import Pressure
from fxprune.modules import copy_modes, copy_module, share_tensors
from fxprune.slim.agreement import check_agreement
from fxprune.timing import asks_for_latency, in_time, measure_latency, use_latency
from fxprune.trace import real_root

PRESSURE = "fxprune_budget"
OWN = "fxprune_"  # what a wrapped net has beyond the original starts like this


class Wrapped(fx.GraphModule):
    """What ``fxprune.wrap`` returns; trains and evaluates like the model it was made from."""

    def __init__(self, model: nn.Module, analysis: Analysis, target: Target, options: dict[str, Any]) -> None:
        trace = analysis.channels.trace
        check_names(model, trace.graph, OWN, _taken_names())
        in_place = [name for name, module in model.named_modules() if getattr(module, "inplace", False) is True]
        sites = find_sites(analysis)
        root = real_root(trace, model)
        tensors = itertools.chain(model.parameters(), model.buffers())
        like = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.zeros(()))
        bank = GateBank(
            analysis.variables, analysis.channels.table, [site for _, site in sites],
            torch.from_numpy(analysis.guards.choices), like.dtype, like.device,
        )  # fmt: skip
        root.add_module(BANK, bank)
        graph = copy.deepcopy(trace.graph)
        gated = insert(graph, root, [(node.name, site) for node, site in sites])
        super().__init__(root, graph, type(model).__name__)
        for name in gated:
            self.set_submodule(name, gated_norm(root.get_submodule(name)))
        keep_unread(root, self)
        keep_passing(root, self)
        hidden = {"_analysis": analysis, "target": target, "options": options, "_model": root, "_fxprune_wrapped": True}
        hidden["_in_place"] = in_place
        for name, value in hidden.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_sized", not options["guessed"])
        if options["guessed"]:
            self._first_forward = self.register_forward_pre_hook(Wrapped._measure, with_kwargs=True)
        self.add_module(PRESSURE, Pressure(self.bank, target, lambda: self.analysis))
        self.bank.noise, self.pressure.schedule = options["noise"], options["schedule"]
        self.pressure.steering = options.get("steering", self.pressure.steering)
        self.set_law(options.get("law", "hard-concrete"))
        self._progress: float | None = None
        self._reachable = False  # as far as anyone has looked
        # What a process saw of its part of the batch is its own, whatever DistributedDataParallel does with buffers.
        self._ddp_params_and_buffers_to_ignore = [f"{PRESSURE}.{name}" for name, _ in self.pressure.named_buffers()]
        self._gates = Gates(
            self.bank, {layer.name: (layer.start, layer.variables) for layer in analysis.layers if layer.gated}
        )

        self.register_load_state_dict_pre_hook(_keep_own)  # type: ignore[no-untyped-call]
        copy_modes(model, self)
        if asks_for_latency(target) and analysis.costs.latency is None:
            measure_latency(self)

    _fxprune_wrapped: bool
    _first_forward: Any
    _analysis: Analysis
    _sized: bool
    _in_place: list[str]  # modules that the graph runs out of place
    target: Target
    options: dict[str, Any]
    _model: nn.Module
    _gates: Gates

    @property
    def bank(self) -> GateBank:
        bank = self.get_submodule(BANK)
        assert isinstance(bank, GateBank)
        return bank

    @property
    def gates(self) -> Gates:
        """Layer name -> gate, in the order of the network."""
        return self._gates

    @property
    def analysis(self) -> Analysis:
        """What is known about the network; areas, and so costs, only once it has seen an input."""
        if not self._sized:
            raise OptionError(
                "the areas of the feature maps are not known yet",
                fix="run one batch through the network, or give wrap() example_inputs",
            )
        return self._analysis

    def _measure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The first forward pass of a network that was wrapped without an example: read the areas off its input."""
        model = self.unwrap()
        example = _example(model, args, kwargs)
        seen = analyse(model, example, ignore=self.options["ignore"], leaf=self.options["leaf"])
        same_inputs = _inputs(seen) == _inputs(self._analysis)
        same_gates = seen.variables == self._analysis.variables  # a map of one position has none for its linear layers
        if not (same_inputs and same_gates) or seen.channels.table.size != self._analysis.channels.table.size:
            raise OptionError("this input takes another way through the model", fix="give wrap() example_inputs")
        object.__setattr__(self, "_analysis", seen)
        object.__setattr__(self, "_sized", True)
        self.options["guessed"] = False
        self._first_forward.remove()
        if self.options["verify"] and bool((self.bank.values() == 1).all()):  # nothing has moved the gates yet
            check_agreement(model, self, (args, kwargs))

    # ------------------------------------------------------------ training

    @property
    def pressure(self) -> Pressure:
        pressure = self.get_submodule(PRESSURE)
        assert isinstance(pressure, Pressure)
        return pressure

    @property
    def progress(self) -> float | None:
        """How far training is, from 0 to 1. Set it before every step: the budget slides with it, and gates move."""
        return self._progress

    @progress.setter
    def progress(self, value: float) -> None:
        if not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise OptionError(f"progress {value!r} is not between 0 and 1", fix="write net.progress = step / total")
        if not self.hardened:
            self.pressure.step(float(value))
        self._progress = float(value)

    def budget_loss(self) -> torch.Tensor:
        """What to add to the loss: it keeps the network under the sliding budget. Zero once the masks are fixed."""
        if self.hardened:
            return self.bank.log_alpha.sum() * 0
        if self._progress is None:
            raise OptionError(
                "budget_loss() does not know how far training is", fix="write net.progress = step / total before it"
            )
        if not self._reachable:  # said now, and not after the training
            check_reachable(self.analysis, self.target)
            self._reachable = True
        return self.pressure.loss()

    def sliding_budget(self) -> dict[str, float]:
        """Per metric, what the network may cost at this moment of training."""
        names = [name for name, _ in self.target.limits]
        return dict(zip(names, self.pressure.budgets(self._progress or 0.0), strict=True))

    def parameter_groups(self, lr: float | None = None, weight_decay: float | None = None) -> list[dict[str, Any]]:
        """For an optimizer: the weights, and the gates, on which no weight decay must pull."""
        given = {"lr": lr, "weight_decay": weight_decay}
        settings = {name: value for name, value in given.items() if value is not None}
        gates = {id(parameter): parameter for parameter in self.bank.parameters()}
        weights = [parameter for parameter in self.parameters() if id(parameter) not in gates]
        return [{"params": weights, **settings}, {"params": list(gates.values()), **settings, "weight_decay": 0.0}]

    def set_law(self, law: str) -> None:
        """What is drawn for the gates while training: ``"hard-concrete"`` variables, or ``"gaussian"`` ones."""
        check_choice("law", law, LAWS)
        made = Gaussian(self.bank.log_alpha.detach()).train(self.bank.training) if law == "gaussian" else None
        self.bank.law = made

    # ------------------------------------------------------------ deciding who lives

    def set_masks(self, masks: Mapping[str, ArrayLike]) -> Wrapped:
        """Harden to exactly these masks; beyond them only the best gate of a guarded layer is kept that would be left
        with none. Layers left out stay fully open."""
        opened = np.ones(self.analysis.variables, dtype=bool)
        for name, part, mask in per_gate("set_masks", masks, self.analysis.layers):
            if not np.isin(mask, (0, 1)).all():
                raise OptionError(
                    f"set_masks: the mask of {name!r} holds other values than 0 and 1",
                    fix="give one bool per gate variable; scores and a budget are for harden(scores)",
                )
            opened[part] = mask == 1
        self._harden(self.analysis.guards.hold(opened, self._scores()))
        return self

    def harden(
        self,
        scores: Mapping[str, ArrayLike] | None = None,
        fill: bool = True,
        *,
        multiple_of: int = 1,
        minimum: Mapping[str, int] | None = None,
        budget: Mapping[str, Share] | None = None,
    ) -> Wrapped:
        """Decide who lives, on budget: the best scores (by default the gates' parameters) that fit.

        A network over the budget is cut, one under it gets the best of its dead back; without ``fill`` only what must
        live is opened. ``multiple_of`` rounds the widths of layers, ``minimum`` (layer name or pattern -> channels)
        keeps as many gates open, all of a layer that has fewer. Among equal scores every layer is cut alike.
        ``budget`` (metric -> fraction) is another one than the network was wrapped with, for pruning in rounds. Under a
        budget of latency widths are exchanged, unless ``multiple_of`` or no ``fill`` is asked for: as much as possible
        is to be computed in that time.
        """
        if budget is not None and not isinstance(budget, Mapping):
            metric = self.target.limits[0][0]
            asked = f"{{{metric!r}: {budget}}}"
            raise OptionError(f"harden: budget={budget!r} names no metric", fix=f"write budget={asked}")
        target = self.target if budget is None else Target.of(budget, DEFAULT)
        if asks_for_latency(target) and self.analysis.costs.latency is None:
            measure_latency(self)

        def chosen(target: Target) -> Bools:
            return choose(
                self.analysis, target, self._scores(scores), self._opened(), fill=fill, multiple_of=multiple_of,
                minimum=minimum or {},
            )  # fmt: skip

        self._harden(in_time(self, target, chosen) if asks_for_latency(target) else chosen(target))
        return self

    @property
    def hardened(self) -> bool:
        return self.bank.hardened

    def _harden(self, opened: Bools) -> None:
        self.bank.harden(torch.from_numpy(opened))

    def _opened(self) -> Bools:
        found: Bools = numbers(self.bank.opened(), BANK)
        return found

    def _scores(self, scores: Mapping[str, ArrayLike] | None = None) -> np.ndarray[Any, np.dtype[np.float64]]:
        flat = numbers(self.bank.scores().double(), BANK).copy()
        for _, part, score in per_gate("harden", {} if scores is None else scores, self.analysis.layers):
            flat[part] = score
        found: np.ndarray[Any, np.dtype[np.float64]] = flat
        return found

    # ------------------------------------------------------------ costs

    def masks(self) -> Bools:
        """Open gate variables of the network that ``export`` would give now."""
        return self._opened()

    def cost(self) -> Cost:
        """The cost of the network that ``export`` would give now, orphans removed."""
        return self.analysis.costs.exact(self.masks())

    def full_cost(self) -> Cost:
        """The cost of the unpruned network."""
        return self.analysis.full_cost

    def gate_values(self) -> dict[str, torch.Tensor]:
        """Per gated layer the factor of each of its channels."""
        values = self.bank.values().detach()
        gated = [layer for layer in self.analysis.layers if layer.gated]
        padded = torch.cat([values, values.new_ones(1)])  # OPEN reads the one at the end
        rows = {layer.name: np.where(layer.rows == OPEN, OPEN, layer.rows + layer.start) for layer in gated}
        return {name: padded[torch.from_numpy(index)] for name, index in rows.items()}

    # ------------------------------------------------------------ copies

    def unwrap(self) -> nn.Module:
        """The original model with the weights as they are now."""
        source = self._original
        model = copy_module(source, {id(source.get_submodule(BANK)): None})  # the gates are not copied
        model._modules.pop(BANK, None)
        for name in self._in_place:
            model.get_submodule(name).inplace = True  # type: ignore[assignment]
        copy_modes(self, model)
        return model

    @property
    def _original(self) -> nn.Module:
        """The model that the graph was made from, with the tensors of the graph: ``.to()`` puts others there."""
        return share_tensors(self._model, self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Wrapped:
        with torch.random.fork_rng(devices=[]):  # some gates start with noise, which is overwritten
            analysis = replace(self._analysis, costs=copy.copy(self._analysis.costs))  # with a latency of its own
            made = Wrapped(self.unwrap(), analysis, self.target, self._options())
        copy_modes(self, made)
        made._restore(self.state_dict(), self._beside())
        memo[id(self)] = made
        return made

    def _beside(self) -> dict[str, Any]:
        """What a copy needs beside the state dict."""
        trained = {name: parameter.requires_grad for name, parameter in self.named_parameters()}
        latency = self._analysis.costs.latency  # corrected by what was measured
        return {"progress": self._progress, "trained": trained, "latency": latency}

    def _restore(self, state: dict[str, Any], beside: dict[str, Any]) -> None:
        self.load_state_dict(state)
        self._progress = beside["progress"]  # not by its setter, which would move the gates
        use_latency(self._analysis, beside["latency"])
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(beside["trained"][name])

    def _options(self) -> dict[str, Any]:
        """Those that it was made with, as they are now."""
        return {**self.options, "noise": self.bank.noise, "schedule": self.pressure.schedule,
                "steering": self.pressure.steering,
                "law": "hard-concrete" if self.bank.law is None else "gaussian"}  # fmt: skip

    def __reduce__(self) -> Any:
        args, kwargs = self._analysis.channels.trace.example
        return _rebuild, (
            self.unwrap(), args, kwargs, self.target, self._options(), self.state_dict(), self._beside()
        )  # fmt: skip


def _rebuild(
    model: nn.Module, args: Any, kwargs: Any, target: Target, options: dict[str, Any], state: Any, beside: Any
) -> Wrapped:
    example = None if options["guessed"] else _example(model, args, kwargs)
    analysis = analyse(model, example, ignore=options["ignore"], leaf=options["leaf"])
    made = Wrapped(model, analysis, target, options)
    made._restore(state, beside)
    return made


def _inputs(analysis: Analysis) -> int:
    return sum(node.op == "placeholder" for node in analysis.channels.trace.graph.nodes)


def _example(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of a call in the form of an example: all by position, or all by name."""
    if not (args and kwargs):
        return kwargs or args
    return {**inspect.signature(model.forward).bind_partial(*args).arguments, **kwargs}


def _keep_own(wrapped: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """The original's checkpoints load too, strictly: of them nothing is expected that only a wrapped net has."""
    if isinstance(wrapped, Wrapped) and f"{prefix}{BANK}.law.mu" in state and wrapped.bank.law is None:
        wrapped.set_law("gaussian")
    if not any(name.startswith(prefix + OWN) for name in state):
        own = {name: value for name, value in wrapped.state_dict().items() if name.startswith(OWN)}
        state.update({prefix + name: value for name, value in own.items()})


@cache
def _taken_names() -> frozenset[str]:
    """Attributes of a wrapped or slim net, which would hide submodules and parameters of the same names."""
    graph_module = fx.GraphModule(nn.Module(), fx.Graph())
    taken = {*dir(Wrapped), *vars(graph_module), *Wrapped.__annotations__, "report"}
    return frozenset(taken.difference(dir(nn.Module), vars(nn.Module())))
