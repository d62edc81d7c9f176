"""The wrapped network: the user's weights under their own names, plus gates."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from fxprune.budget.cost import Cost
from fxprune.budget.target import Target
from fxprune.errors import OptionError
from fxprune.ids import OPEN
from fxprune.layers import GateBank, Gates, mean_gate
from fxprune.passes.analysis import Analysis, analyse
from fxprune.passes.choose import choose
from fxprune.passes.compile import compile_slim
from fxprune.passes.dense import regular_blocks
from fxprune.passes.insert import BANK, find_sites, insert
from fxprune.tracing import real_root


class Wrapped(fx.GraphModule):
    """What ``fxprune.wrap`` returns; trains and evaluates like the model it was made from."""

    def __init__(self, model: nn.Module, analysis: Analysis, target: Target, options: dict[str, Any]) -> None:
        trace = analysis.channels.trace
        in_place = [name for name, module in model.named_modules() if getattr(module, "inplace", False) is True]
        sites = find_sites(analysis)
        root = real_root(trace, model)
        like = next(iter(model.parameters()))
        bank = GateBank(
            analysis.variables, analysis.channels.table, [site for _, site in sites], like.dtype, like.device
        )
        root.add_module(BANK, bank)
        graph = copy.deepcopy(trace.graph)
        insert(graph, [(node.name, site) for node, site in sites])
        super().__init__(root, graph, type(model).__name__)
        _keep_unread(root, self)
        self.train(model.training)
        hidden = {"_analysis": analysis, "target": target, "options": options, "_model": root, "_fxprune_wrapped": True}
        hidden["_in_place"] = in_place
        for name, value in hidden.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_sized", not options["guessed"])
        if options["guessed"]:
            self._first_forward = self.register_forward_pre_hook(Wrapped._measure, with_kwargs=True)
        self._gates = Gates(
            self.bank, {layer.name: (layer.start, layer.variables) for layer in analysis.layers if layer.gated}
        )

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
        self._first_forward.remove()
        seen = analyse(self.unwrap(), kwargs or args, ignore=self.options["ignore"], leaf=self.options["leaf"])
        if seen.channels.table.size != self._analysis.channels.table.size:
            raise OptionError("this input takes another way through the model", fix="give wrap() example_inputs")
        object.__setattr__(self, "_analysis", seen)
        object.__setattr__(self, "_sized", True)
        self.options["guessed"] = False

    # ------------------------------------------------------------ deciding who lives

    def set_masks(self, masks: Mapping[str, torch.Tensor]) -> Wrapped:
        """Harden to exactly these masks; only what must live is kept beyond them. Layers left out stay fully open."""
        opened = np.ones(self.analysis.variables, dtype=bool)
        for name, mask in masks.items():
            if name not in self.gates:
                raise OptionError(
                    f"set_masks: {name!r} has no gate",
                    fix=f"use names of .gates, such as {next(iter(self.gates), None)!r}",
                )
            layer = next(layer for layer in self.analysis.layers if layer.name == name)
            if mask.numel() != layer.variables:
                raise OptionError(
                    f"set_masks: the mask of {name!r} has {mask.numel()} entries, its gate {layer.variables}",
                    fix="give one bool per gate variable: len(wrapped.gates[name])",
                )
            opened[layer.start : layer.start + layer.variables] = mask.detach().cpu().reshape(-1).bool().numpy()
        self._harden(self.analysis.keep_alive(opened, self._scores()))
        return self

    def harden(
        self,
        scores: Mapping[str, torch.Tensor] | None = None,
        fill: bool = True,
        *,
        multiple_of: int = 1,
        minimum: Mapping[str, int] | None = None,
    ) -> Wrapped:
        """Decide who lives, on budget: the best scores (by default the gates' parameters) that fit.

        A network over the budget is cut, one under it gets the best of its dead back (``fill``). ``multiple_of`` rounds
        the widths of layers, ``minimum`` (layer name or pattern -> channels) keeps them from falling below a number.
        """
        opened = choose(
            self.analysis, self.target, self._scores(scores), self._opened() if scores is None else None, fill=fill,
            multiple_of=multiple_of, minimum=dict(minimum or {}),
        )  # fmt: skip
        self._harden(opened)
        return self

    @property
    def hardened(self) -> bool:
        return bool(self.bank.is_hard)

    def _harden(self, opened: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        self.bank.hard.copy_(torch.from_numpy(opened))
        self.bank.is_hard.fill_(True)

    def _opened(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        found: np.ndarray[Any, np.dtype[np.bool_]] = self.bank.opened().detach().cpu().numpy()
        return found

    def _scores(self, scores: Mapping[str, torch.Tensor] | None = None) -> np.ndarray[Any, np.dtype[np.float64]]:
        flat = self.bank.log_alpha.detach().double().cpu().numpy().copy()
        for name, score in (scores or {}).items():
            if name not in self.gates or score.numel() != len(self.gates[name]):
                raise OptionError(
                    f"harden: scores of {name!r} do not fit its gate", fix="give one number per gate variable"
                )
            layer = next(layer for layer in self.analysis.layers if layer.name == name)
            flat[layer.start : layer.start + layer.variables] = score.detach().double().cpu().reshape(-1).numpy()
        found: np.ndarray[Any, np.dtype[np.float64]] = flat
        return found

    # ------------------------------------------------------------ costs

    def masks(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Open gate variables of the network that ``export`` would give now."""
        return self._opened() if self.hardened else self.analysis.keep_alive(self._opened(), self._scores())

    def cost(self) -> Cost:
        """The cost of the network that ``export`` would give now, orphans removed."""
        return self.analysis.costs.exact(self.masks())

    def full_cost(self) -> Cost:
        """The cost of the unpruned network."""
        return self.analysis.full_cost

    def gate_values(self) -> dict[str, torch.Tensor]:
        """Per gated layer the factor of each of its channels."""
        values = mean_gate(self.bank.log_alpha.detach()) if not self.hardened else self.bank.values().detach()
        gated = [layer for layer in self.analysis.layers if layer.gated]
        padded = torch.cat([values, values.new_ones(1)])  # OPEN reads the one at the end
        rows = {layer.name: np.where(layer.rows == OPEN, OPEN, layer.rows + layer.start) for layer in gated}
        return {name: padded[torch.from_numpy(index)] for name, index in rows.items()}

    # ------------------------------------------------------------ copies

    def unwrap(self) -> nn.Module:
        """The original model with the weights as they are now."""
        model = copy.deepcopy(self._model)
        del model._modules[BANK]
        state = {name: value for name, value in self.state_dict().items() if not name.startswith(BANK)}
        model.load_state_dict(state, strict=False)
        for name in self._in_place:
            model.get_submodule(name).inplace = True  # type: ignore[assignment]
        model.train(self.training)
        return model

    def __deepcopy__(self, memo: dict[int, Any]) -> Wrapped:
        made = Wrapped(self.unwrap(), self._analysis, self.target, dict(self.options))
        made.load_state_dict(self.state_dict())
        for name, parameter in self.named_parameters():
            made.get_parameter(name).requires_grad_(parameter.requires_grad)
        memo[id(self)] = made
        return made

    def __reduce__(self) -> Any:
        args, kwargs = self._analysis.channels.trace.example
        return _rebuild, (self.unwrap(), args, kwargs, self.target, self.options, self.state_dict())


def compile_wrapped(wrapped: Wrapped, *, dense: bool = False) -> tuple[fx.GraphModule, SimpleNamespace]:
    """The slim module of a hardened network and what there is to say about it."""
    analysis, mask = wrapped.analysis, wrapped.masks()
    present = analysis.costs.physical(torch.from_numpy(mask).double()).numpy() > 0
    if dense:
        present = regular_blocks(analysis.channels, present)
    slim, joins = compile_slim(analysis.channels, wrapped._model, present, wrapped.gate_values())
    kept = {layer.name for layer in analysis.layers if any(present[call.ids].any() for call in layer.calls)}
    report = SimpleNamespace(
        before=analysis.full_cost.as_dict(),
        after=analysis.costs.of_present(present).as_dict(),
        removed=tuple(layer.name for layer in analysis.layers if layer.name not in kept),
        widths={layer.name: int(present[layer.calls[0].ids].sum()) for layer in analysis.layers},
        joins=joins,
        error=None,
        batches=[],
        fused=0,
    )
    return slim, report


def _rebuild(model: nn.Module, args: Any, kwargs: Any, target: Target, options: dict[str, Any], state: Any) -> Wrapped:
    example = None if options["guessed"] else kwargs or args
    analysis = analyse(model, example, ignore=options["ignore"], leaf=options["leaf"])
    made = Wrapped(model, analysis, target, options)
    made.load_state_dict(state)
    return made


def _keep_unread(root: nn.Module, made: nn.Module) -> None:
    """Parameters that the graph does not read (auxiliary heads) stay, so that the original's checkpoints load."""
    present = set(made.state_dict(keep_vars=True))
    for name in root.state_dict(keep_vars=True):
        if name in present:
            continue
        source, target = root, made
        *owners, leaf = name.split(".")
        for atom in owners:
            if atom not in target._modules:
                target.add_module(atom, source.get_submodule(atom))
                break
            source, target = source.get_submodule(atom), target.get_submodule(atom)
        else:
            if leaf in source._parameters:
                target.register_parameter(leaf, source._parameters[leaf])
            elif leaf in source._buffers:
                target.register_buffer(leaf, source._buffers[leaf])
        present = set(made.state_dict(keep_vars=True))
