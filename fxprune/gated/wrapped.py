"""The wrapped network: the user's weights under their own names, plus gates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from fxprune.analysis import Analysis, numbers
from fxprune.channels.ids import OPEN
from fxprune.choose.choose import ArrayLike, Bools, Floats, check_reachable, choose, per_gate
from fxprune.cost.latency import Latency
from fxprune.cost.model import LATENCY, Cost
from fxprune.cost.target import DEFAULT, Share, Target
from fxprune.errors import OptionError, check_choice
from fxprune.gated.bank import LAWS, Gate, GateBank, Gaussian, gated_norm
from fxprune.gated.insert import GatedGraph, find_sites, insert_gates
from fxprune.gated.names import BANK, OWN, PRESSURE, keep_passing, keep_unread
from fxprune.gated.pressure import Pressure
from fxprune.latency.budget import in_time, latency_of, timed_by
from fxprune.modules import copy_modes, copy_module, share_tensors
from fxprune.slim.compile import Uncut
from fxprune.slim.verify import check_agreement

Analyse = Callable[..., Analysis]  # of a model and its example, with the options of ``wrap``


class Wrapped(fx.GraphModule):
    """What ``fxprune.wrap`` returns; trains and evaluates like the model it was made from."""

    _analysis: Analysis
    _gated: GatedGraph
    _gates: Mapping[str, Gate]
    _first_forward: Any
    _fxprune_wrapped = True
    target: Target
    options: dict[str, Any]

    def __init__(
        self, gated: GatedGraph, analysis: Analysis, target: Target, options: dict[str, Any], analyse: Analyse
    ) -> None:
        """``analyse`` makes the analysis again: of the first input, if there was no example, and of an unpickled
        model."""
        super().__init__(gated.root, gated.graph, gated.name)
        for name in gated.norms:
            self.set_submodule(name, gated_norm(gated.root.get_submodule(name)))
        keep_unread(gated.root, self)
        keep_passing(gated.root, self)
        self._gated, self._analysis, self._analyse = gated, analysis, partial(analyse, places=analysis.places)
        self.target, self.options = target, options
        if options["guessed"]:
            self._first_forward = self.register_forward_pre_hook(Wrapped._see_first_input, with_kwargs=True)
        self.add_module(PRESSURE, Pressure(self.bank, target, lambda: self.analysis))
        self.bank.noise, self.pressure.schedule = options["noise"], options["schedule"]
        self.pressure.steering = options.get("steering", self.pressure.steering)
        self.set_law(options.get("law", "hard-concrete"))
        self._progress: float | None = None
        self._reachable = False  # as far as anyone has looked
        # What a process saw of its part of the batch is its own, whatever DistributedDataParallel does with buffers.
        self._ddp_params_and_buffers_to_ignore = [f"{PRESSURE}.{name}" for name, _ in self.pressure.named_buffers()]
        self._gates = MappingProxyType({
            unit.name: Gate(self.bank, unit.start, unit.variables) for unit in analysis.units
        })
        self.register_load_state_dict_pre_hook(_keep_own)  # type: ignore[no-untyped-call]
        copy_modes(gated.root, self)
        if LATENCY in dict(target.limits):
            self._know_time()

    @property
    def bank(self) -> GateBank:
        bank = self.get_submodule(BANK)
        assert isinstance(bank, GateBank)
        return bank

    @property
    def gates(self) -> Mapping[str, Gate]:
        """Layer name -> gate, in the order of the network.

        A layer that computes attention has several: ``"attn.qkv.heads"`` has one variable per head, and closes whole
        heads; ``"attn.qkv.queries"`` (for keys as well) and ``"attn.qkv.values"`` have one per channel of a head, each
        of which closes that place in every head, so that all heads stay of one width. Which channel of a head a place
        is, the strongest first, was decided by the weights when the net was wrapped.
        """
        return self._gates

    @property
    def analysis(self) -> Analysis:
        """What is known about the network; areas, and so costs, only once it has seen an input."""
        if self.options["guessed"]:
            raise OptionError(
                "the areas of the feature maps are not known yet",
                fix="run one batch through the network, or give wrap() example_inputs",
            )
        return self._analysis

    def _see_first_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The first forward pass of a network that was wrapped without an example: read the areas off its input."""
        model = self.unwrap()
        seen, before = self._analyse(model, _example(model, args, kwargs)), self._analysis
        same_inputs = _inputs(seen) == _inputs(before)
        same_gates = seen.variables == before.variables
        if not (same_inputs and same_gates) or seen.channels.table.size != before.channels.table.size:
            raise OptionError("this input takes another way through the model", fix="give wrap() example_inputs")
        self._analysis, self.options = seen, {**self.options, "guessed": False}
        self._first_forward.remove()
        if self.options["verify"] and bool((self.bank.values() == 1).all()):  # nothing has moved the gates yet
            check_agreement(model, self, (args, kwargs))

    def _place(self, places: list[int]) -> None:
        """Take over which channels of attention heads the gates are, from a state whose net had other weights."""
        ends = np.cumsum([len(rows) for rows in self._analysis.places.values()])[:-1]
        rows = dict(zip(self._analysis.places, np.split(np.array(places), ends), strict=True))
        model, example = self.unwrap(), self._analysis.channels.trace.example
        self._analyse = partial(self._analyse, places=rows)
        seen = self._analyse(model, None if self.options["guessed"] else _example(model, *example))
        self._analysis = timed_by(seen, self._analysis.costs.latency)
        placed = [site for _, site in find_sites(self._analysis)]
        for site, before in zip(placed, self.bank.sites, strict=True):
            site.in_norm = before.in_norm
        self.bank.connect(self._analysis, placed)

    def _know_time(self) -> None:
        """Measure what the network takes on this machine, unless that is known."""
        if self.options["guessed"]:
            raise OptionError(
                "a budget of latency needs to know the inputs",
                fix="give wrap() example_inputs: their batch size counts",
            )
        if self._analysis.costs.latency is None:
            use_latency(self, latency_of(uncut(self)))

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
        like = self.bank.log_alpha.detach()
        self.bank.law = Gaussian(like).train(self.bank.training) if law == "gaussian" else None

    # ------------------------------------------------------------ deciding who lives

    def set_masks(self, masks: Mapping[str, ArrayLike]) -> Wrapped:
        """Harden to exactly these masks; beyond them only the best gate of a guarded layer is kept that would be left
        with none. Layers left out stay fully open. Names are those of ``gates``: of attention ``"attn.qkv.heads"``."""
        opened = np.ones(self.analysis.variables, dtype=bool)
        for name, part, mask in per_gate("set_masks", masks, self.analysis.units):
            if not np.isin(mask, (0, 1)).all():
                raise OptionError(
                    f"set_masks: the mask of {name!r} holds other values than 0 and 1",
                    fix="give one bool per gate variable; scores and a budget are for harden(scores)",
                )
            opened[part] = mask == 1
        self.bank.harden(torch.from_numpy(self.analysis.guards.hold(opened, self._scores())))
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
        keeps as many gates open, all of a layer that has fewer. Among equal scores every layer is cut alike. Of
        attention both mean the width of each head, and ``minimum={"*.heads": 4}`` whole heads, of which there may be
        any number.
        ``budget`` (metric -> fraction) is another one than the network was wrapped with, for pruning in rounds. Under a
        budget of latency widths are exchanged, unless ``multiple_of`` or no ``fill`` is asked for: as much as possible
        is to be computed in that time.
        """
        if budget is not None and not isinstance(budget, Mapping):
            metric = self.target.limits[0][0]
            asked = f"{{{metric!r}: {budget}}}"
            raise OptionError(f"harden: budget={budget!r} names no metric", fix=f"write budget={asked}")
        target = self.target if budget is None else Target.of(budget, DEFAULT)

        def chosen(analysis: Analysis, target: Target) -> Bools:
            return choose(
                analysis, target, self._scores(scores), self.masks(), fill=fill, multiple_of=multiple_of,
                minimum=minimum or {},
            )  # fmt: skip

        if LATENCY in dict(target.limits):
            self._know_time()
            opened, self._analysis = in_time(uncut(self), target, chosen)
        else:
            opened = chosen(self.analysis, target)
        self.bank.harden(torch.from_numpy(opened))
        return self

    @property
    def hardened(self) -> bool:
        return self.bank.hardened

    def _scores(self, scores: Mapping[str, ArrayLike] | None = None) -> Floats:
        flat: Floats = numbers(self.bank.scores().double(), BANK).copy()
        for _, part, score in per_gate("harden", {} if scores is None else scores, self.analysis.units):
            flat[part] = score
        return flat

    # ------------------------------------------------------------ costs

    def masks(self) -> Bools:
        """Open gate variables of the network that ``export`` would give now."""
        opened: Bools = numbers(self.bank.opened(), BANK)
        return opened

    def cost(self) -> Cost:
        """The cost of the network that ``export`` would give now, orphans removed."""
        return self.analysis.costs.exact(self.masks())

    def full_cost(self) -> Cost:
        """The cost of the unpruned network."""
        return self.analysis.full_cost

    def gate_values(self) -> dict[str, torch.Tensor]:
        """Per gated layer the factor of each of its channels."""
        values = self.bank.values().detach()
        padded = torch.cat([values, values.new_ones(1)])  # OPEN reads the one at the end
        factors: dict[str, torch.Tensor] = {}
        for layer in self.analysis.layers:
            for unit in layer.units:
                own = padded[torch.from_numpy(np.where(unit.rows == OPEN, OPEN, unit.rows + unit.start))]
                factors[layer.name] = factors[layer.name] * own if layer.name in factors else own
        return factors

    # ------------------------------------------------------------ copies

    def unwrap(self) -> nn.Module:
        """The original model with the weights as they are now."""
        source = self._original
        model = copy_module(source, {id(source.get_submodule(BANK)): None})  # the gates are not copied
        model._modules.pop(BANK, None)
        for name in self._gated.in_place:
            model.get_submodule(name).inplace = True  # type: ignore[assignment]
        return model

    @property
    def _original(self) -> nn.Module:
        """The model that the graph was made from, with the graph's tensors (``.to()`` puts others there) and modes."""
        model = share_tensors(self._gated.root, self)
        copy_modes(self, model)
        return model

    def __deepcopy__(self, memo: dict[int, Any]) -> Wrapped:
        with torch.random.fork_rng(devices=[]):  # some gates start with noise, which is overwritten
            copied = _rebuild(self.unwrap(), self._analysis, *self._state())
        copy_modes(self, copied)
        memo[id(self)] = copied
        return copied

    def _state(self) -> tuple[Any, ...]:
        """What a copy needs beside the model and its analysis."""
        options = {
            **self.options, "noise": self.bank.noise, "schedule": self.pressure.schedule,
            "steering": self.pressure.steering, "law": "hard-concrete" if self.bank.law is None else "gaussian",
        }  # fmt: skip
        trained = {name: parameter.requires_grad for name, parameter in self.named_parameters()}
        return self.target, options, self._analyse, self.state_dict(), self._progress, trained

    def _restore(self, state: Any, progress: float | None, trained: dict[str, bool]) -> None:
        self.load_state_dict(state)
        self._progress = progress  # not by its setter, which would move the gates
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(trained[name])

    def __reduce__(self) -> Any:
        args, kwargs = self._analysis.channels.trace.example
        latency = self._analysis.costs.latency  # corrected by what was measured
        return _unpickled, (self.unwrap(), args, kwargs, latency, *self._state())


def _unpickled(model: nn.Module, args: Any, kwargs: Any, latency: Latency | None, *state: Any) -> Wrapped:
    _, options, analyse, *_ = state
    analysis = analyse(model, None if options["guessed"] else _example(model, args, kwargs))
    return _rebuild(model, timed_by(analysis, latency), *state)


def _rebuild(
    model: nn.Module, analysis: Analysis, target: Target, options: dict[str, Any], analyse: Analyse, state: Any,
    progress: float | None, trained: dict[str, bool],
) -> Wrapped:  # fmt: skip
    wrapped = Wrapped(insert_gates(model, analysis), analysis, target, options, analyse)
    wrapped._restore(state, progress, trained)
    return wrapped


def uncut(wrapped: Wrapped) -> Uncut:
    """What the compiler reads of a wrapped network, as it is now."""
    return Uncut(wrapped.analysis, wrapped._original, wrapped.masks(), wrapped.gate_values(), wrapped._gated.in_place)


def use_latency(wrapped: Wrapped, latency: Latency | None) -> None:
    """Count time by this model of it."""
    wrapped._analysis = timed_by(wrapped._analysis, latency)


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
    places = state.get(f"{prefix}{BANK}.places")
    if isinstance(wrapped, Wrapped) and places is not None and not wrapped.bank.is_placed(places):
        wrapped._place(places.tolist())
    if not any(name.startswith(prefix + OWN) for name in state):
        own = {name: value for name, value in wrapped.state_dict().items() if name.startswith(OWN)}
        state.update({prefix + name: value for name, value in own.items()})


@cache
def taken_names() -> frozenset[str]:
    """Attributes of a wrapped or slim net, which would hide submodules and parameters of the same names."""
    graph_module = fx.GraphModule(nn.Module(), fx.Graph())
    taken = {*dir(Wrapped), *vars(graph_module), *Wrapped.__annotations__, "report"}
    return frozenset(taken.difference(dir(nn.Module), vars(nn.Module())))
