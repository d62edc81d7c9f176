"""Refit what is left of a pruned net: layer by layer, least squares towards what the unpruned one computes.

Inputs are those of the pruned net as it is by then, so that a layer repairs what earlier ones lost.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import nn

from fxprune.channels.ids import OPEN
from fxprune.cutting.least_squares import Affine, Moments, Rows, error, fit
from fxprune.cutting.lockstep import ALIVE, Advancing, bounded, frontiers
from fxprune.cutting.positions import Where, canonical, inputs_at, outputs_at
from fxprune.cutting.samples import Samples
from fxprune.cutting.sites import Site, find_sites, grouped
from fxprune.gated.wrapped import Wrapped
from fxprune.trace import graph_module

ROWS = 32_768  # positions that a layer is fitted on
MOST = 384 << 20  # bytes of what it sees at them
WIDEST = 8192  # inputs of an output; where there are more, fewer positions are taken, and solved for in their place


@dataclass(frozen=True)
class Fitted:
    """A layer's share of variance that is missed on held-back samples, before and after it was refitted."""

    before: float
    after: float


@dataclass(frozen=True)
class Refitted:
    layers: dict[str, Fitted] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)  # layers that stay as they are, and why


Step = Callable[[str], None]


def refit_layers(wrapped: Wrapped, samples: Samples, seed: int, step: Step = lambda name: None) -> Refitted:
    """``wrapped`` gets new weights, in eval mode; its masks stay as they are."""
    analysis = wrapped.analysis
    full = graph_module(analysis.channels.trace, wrapped.unwrap()).eval()
    sites, left = find_sites(analysis, wrapped.unwrap())
    pins = {name for site in sites for name in site.target + site.ends}
    samples = bounded(samples, analysis.channels.trace)
    chunks, held = samples.chunks()
    nets = _Nets(wrapped, Advancing(full, chunks, pins), Advancing(wrapped, chunks, ()), held, samples.chunk)
    present = analysis.costs.logic.present(wrapped.masks()[:, None])[:, 0]
    layers, short = dict[str, Fitted](), dict[str, int]()
    for number, site in enumerate(sites):
        step(site.name)
        part = _Part.of(site, wrapped, present)
        if isinstance(part, str):
            left[site.name] = part
        else:
            generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
            fitted, held_back = nets.rows(site, part, generator, present)
            new, known = fit(fitted, held_back, part.start, part.activation, constant=part.has_constant)
            before, after = (
                error(each(held_back), held_back.wanted, part.activation) for each in (part.start, new)
            )
            if after < before:
                part.write(new, known)
            layers[site.name] = Fitted(before, min(before, after))
            if len(fitted) < fitted.inputs.shape[2]:
                short[site.name] = ceil(fitted.inputs.shape[2] * samples.count / len(fitted))
        nets.full.drop(set(site.target + site.ends))
    if short:
        name = max(short, key=lambda name: short[name])
        warnings.warn(
            f"{samples.count} calibration samples are few: {name!r} needs {short[name]} to be determined by them, and "
            "so many or more are better (what they do not determine stays as it was)",
            stacklevel=3,
        )
    return Refitted(layers, left)


def memory(wrapped: Wrapped, samples: Samples) -> int:
    """About how many bytes a refit needs: what both nets hold between two layers, what one layer sees, covariances."""
    calls = [call for layer in wrapped.analysis.layers for call in layer.calls]
    widest = max((call.inputs.shape[1] * call.kernel for call in calls), default=0)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in wrapped.parameters())
    between = min(2 * samples.count * max(frontiers(wrapped.analysis.channels.trace)), ALIVE)
    return between + 2 * MOST + 4 * 8 * min(widest, WIDEST) ** 2 + 4 * weights


class _Part:
    """Of a layer: the rows and columns that live, as they are now, and how new ones are written."""

    def __init__(self, site: Site, layer: nn.Module, norm: Any, rows: Any, columns: Any, gates: torch.Tensor) -> None:
        self.site, self.layer, self.norm = site, layer, norm
        self.rows, self.columns, self.gates = rows, columns, gates  # rows: groups x rows, bool; gates: their factors
        self.has_constant = norm is not None or layer.bias is not None
        self.activation = site.activation
        self.start = self._affine()

    @staticmethod
    def of(site: Site, wrapped: Wrapped, present: Any) -> _Part | str:
        """Or why there is nothing to refit."""
        calls = site.calls
        rows = np.logical_or.reduce([present[call.ids] for call in calls])
        read = np.logical_or.reduce([present[call.inputs] for call in calls])
        if not rows.any() or not read.any():
            return "nothing of it is left"
        columns = np.flatnonzero(read[0]) if site.groups == 1 else None
        layer = wrapped.get_submodule(site.name)
        norm = None if site.norm is None else wrapped.get_submodule(site.norm)
        padded = torch.cat([wrapped.bank.values().detach().double(), torch.ones(1, dtype=torch.float64)])
        gates = padded[torch.from_numpy(np.where(site.gates == OPEN, -1, site.gates))].prod(0).reshape(rows.shape)
        return _Part(site, layer, norm, torch.from_numpy(rows), columns, torch.where(gates > 0, gates, 1.0))

    # ------------------------------------------------------------ weights as maps

    def _living(self) -> torch.Tensor:
        """Groups x rows x (columns and taps)."""
        weight = grouped(self.layer.weight, self.layer, self.site.groups)  # type: ignore[arg-type]
        weight = weight if self.columns is None else weight[:, :, self.columns]
        weight = weight.flatten(2).double()
        living: torch.Tensor = weight[:, self.rows[0]] if self.site.groups == 1 else weight
        return living

    def of_rows(self, vector: Any) -> torch.Tensor:
        """Groups x rows, of those that are fitted."""
        grid: torch.Tensor = vector.detach().double().cpu().reshape(self.rows.shape)
        return grid[:, self.rows[0]] if self.site.groups == 1 else grid

    def _affine(self) -> Affine:
        """What the layer computes now, with its norm and its gates."""
        weight = self._living()
        gate = self.of_rows(self.gates)
        bias = torch.zeros_like(gate) if self.layer.bias is None else self.of_rows(self.layer.bias)
        if self.norm is None:
            return Affine((weight * gate[:, :, None]).transpose(1, 2), bias * gate)
        scale = gate * self.of_rows(self.norm.weight) / (self.of_rows(self.norm.running_var) + self.norm.eps).sqrt()
        shift = gate * self.of_rows(self.norm.bias) + (bias - self.of_rows(self.norm.running_mean)) * scale
        return Affine((weight * scale[:, :, None]).transpose(1, 2), shift)

    @torch.no_grad()
    def write(self, new: Affine, known: Moments) -> None:
        """Filters keep their norm where a batch norm follows; its statistics are those of the fitted rows."""
        gate = self.of_rows(self.gates)
        maps, constant = new.maps / gate[:, None, :], new.constant / gate
        bias = None if self.layer.bias is None else self.of_rows(self.layer.bias)
        if self.norm is None:
            self._put_weight(maps.transpose(1, 2))
            if bias is not None:
                self._put(self.layer.bias, constant)  # type: ignore[arg-type]
            return
        old, size = self._living().norm(dim=2), maps.norm(dim=1)
        stretch = torch.where((size > 0) & (old > 0), old / size, 1.0)
        maps_in = maps * stretch[:, None, :]
        mean = torch.einsum("gd,gdr->gr", known.mean, maps_in)
        variance = known.variance(maps_in)
        self._put_weight(maps_in.transpose(1, 2))
        self._put(self.norm.running_mean, mean if bias is None else mean + bias)
        self._put(self.norm.running_var, variance)
        self._put(self.norm.weight, (variance + self.norm.eps).sqrt() / stretch)
        self._put(self.norm.bias, constant + mean / stretch)

    def _put_weight(self, filters: torch.Tensor) -> None:
        weight = grouped(self.layer.weight, self.layer, self.site.groups)  # type: ignore[arg-type]
        filters = filters.to(weight).reshape(*filters.shape[:2], -1, weight.shape[3])
        rows = self.rows.to(weight.device)
        if self.site.groups > 1:
            weight.copy_(torch.where(rows[:, :, None, None], filters, weight))
        else:
            index = rows[0].nonzero()
            weight[0, index, torch.as_tensor(self.columns, device=weight.device)] = filters[0]

    def _put(self, vector: torch.Tensor, values: torch.Tensor) -> None:
        grid = vector.detach().view(self.rows.shape)
        rows = self.rows.to(vector.device)
        grid[rows] = (values[0] if self.site.groups == 1 else values[rows]).to(vector).reshape(-1)


class _Nets:
    """The unpruned net and the pruned one, in lock-step."""

    def __init__(self, wrapped: Wrapped, full: Advancing, pruned: Advancing, held: int, chunk: int) -> None:
        self.full, self.pruned, self.held = full, pruned, held  # the chunks from ``held`` on are not fitted to
        self.nodes = {node.name: node for node in wrapped.graph.nodes}
        traced = wrapped.analysis.channels.trace
        self.place = {node.name: place for place, node in enumerate(traced.graph.nodes)}
        self.alive = [2 * chunk * size for size in frontiers(traced)]  # in both nets, of a chunk

    def rows(self, site: Site, part: _Part, generator: torch.Generator, present: Any) -> tuple[Rows, Rows]:
        """What the layer sees and should make of it, on the samples to fit to and on those held back."""
        kept = list[list[Rows]]([[], []])
        awake = self._awake(site)
        total = sum(_samples(self.full.inputs[chunk]) for chunk in awake)
        for chunk in awake:
            share = _samples(self.full.inputs[chunk]) / total
            kept[chunk >= self.held] += self._of_chunk(site, part, chunk, share, generator, present)
        fitted, held_back = (_joined(parts) for parts in kept)
        return fitted, held_back

    def _awake(self, site: Site) -> list[int]:
        """The chunks that take part: as many as there is memory for. Others are forgotten until there is more of it."""
        first, last = self.place[site.calls[0].node.name], max(self.place[name] for name in site.target)
        count, size = len(self.full.inputs), max(self.alive[first : last + 1])
        most = min(max(ALIVE // size, 2), count)
        held = min(max(round(most * (count - self.held) / count), 1), count - self.held)
        awake = [*range(min(most - held, self.held)), *range(self.held, self.held + held)]
        for chunk in set(range(count)) - set(awake):
            self.full.forget(chunk)
            self.pruned.forget(chunk)
        return awake

    def _of_chunk(
        self, site: Site, part: _Part, chunk: int, share: float, generator: torch.Generator, present: Any
    ) -> list[Rows]:
        first, last = site.calls[0].node.name, site.calls[-1].node.name
        self.pruned.advance(chunk, self.pruned.place[first])
        self.full.advance(chunk, max(self.full.place[name] for name in site.target) + 1)
        sources = [str(self.nodes[call.node.name].all_input_nodes[0].name) for call in site.calls]
        if len(site.calls) > 1:
            seen = self.pruned.ahead(chunk, self.pruned.place[last], sources)
        else:
            seen = {source: self.pruned.value(chunk, source) for source in sources}
        found = []
        for source, end in zip(sources, site.ends, strict=True):
            wanted = self.full.value(chunk, end)
            shape = canonical(wanted, part.layer).shape
            area = int(np.prod(shape[2:]))
            most = self._most(part, wanted.element_size())
            where = Where.drawn(shape[0], area, max(int(most * share / len(site.calls)), 1), generator)
            inputs = inputs_at(seen[source], part.layer, shape, where, part.columns)
            inputs = inputs.reshape(len(inputs), site.groups, -1)

            def taken(value: torch.Tensor, where: Where = where) -> torch.Tensor:
                rows = outputs_at(value, part.layer, where)
                rows = rows.reshape(len(rows), *part.rows.shape)
                return rows[:, :, part.rows[0]] if site.groups == 1 else rows

            target, given = taken(wanted), None
            if site.join is not None:
                target, given = self._joined(site, part, chunk, taken, target, present)
            found.append(Rows(inputs, target, given))
        return found

    def _joined(
        self, site: Site, part: _Part, chunk: int, taken: Any, own: torch.Tensor, present: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What the sum needs, beside the other operand; if that is not there yet, where it will not come."""
        assert site.join is not None
        whole = taken(self.full.value(chunk, site.join.name))
        other: Any = self.nodes[site.join.name].args[site.join.other]
        if other in self.pruned.values[chunk]:
            return whole, taken(self.pruned.value(chunk, other.name))
        part.activation = None
        coming = torch.from_numpy(present[site.join.ids])
        coming = part.of_rows(coming) > 0
        return torch.where(coming, own, whole), None

    @staticmethod
    def _most(part: _Part, size: int) -> int:
        """Rows that fit into memory."""
        groups, columns, _ = part.start.maps.shape
        return min(ROWS if columns <= WIDEST else WIDEST // 2, MOST // (size * groups * columns))


def _samples(inputs: dict[str, Any]) -> int:
    return next(len(value) for value in inputs.values() if isinstance(value, torch.Tensor) and value.ndim)


def _joined(parts: list[Rows]) -> Rows:
    given = [part.given for part in parts if part.given is not None]
    return Rows(
        torch.cat([part.inputs for part in parts]),
        torch.cat([part.wanted for part in parts]),
        torch.cat(given) if given else None,
    )
