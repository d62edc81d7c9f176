"""What each gate variable is worth: the error that its loss leaves after everything that reads it was refitted, per
cost that it saves.

A layer is asked which of its input channels it misses least, by structured optimal brain surgery: one channel after the
other goes, and the others take over what they can. Errors are shares of the variance of what the layer writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from fxprune.analysis import Analysis
from fxprune.channels import Mixer
from fxprune.channels.ids import Ids, Mix
from fxprune.channels.ids import Join as Joined
from fxprune.choose.choose import ArrayLike
from fxprune.cost.target import Target
from fxprune.cutting.least_squares import covariances
from fxprune.cutting.lockstep import Advancing
from fxprune.cutting.positions import Where, canonical, inputs_at
from fxprune.cutting.samples import Samples
from fxprune.cutting.sites import Site, find_sites, grouped
from fxprune.errors import check_choice
from fxprune.gated.wrapped import Wrapped
from fxprune.rules import Flow
from fxprune.trace import graph_module

ROWS, PER_COLUMN, FEWEST = 8192, 4, 4096  # positions: at most, for each column, at least
RIDGE = 1e-3  # of the mean diagonal
WIDEST = 8192  # inputs of an output
AT_ONCE = 64  # a layer loses its channels in about so many steps
Floats = np.ndarray[Any, np.dtype[np.float64]]
Scores = dict[str, torch.Tensor]
ScoresGiven = str | Mapping[str, ArrayLike]
Step = Callable[[str], None]
SCORES = ("reconstruction", "magnitude", "random")


def scores_by(given: ScoresGiven, wrapped: Wrapped, samples: Samples, seed: int, step: Step) -> Mapping[str, ArrayLike]:
    """Per gate, how much its variables are worth."""
    if isinstance(given, Mapping):
        return given
    check_choice("scores", given, SCORES)
    if given == "reconstruction":
        return reconstruction(wrapped, samples, seed, step)
    return magnitude(wrapped) if given == "magnitude" else at_random(wrapped, seed)


def reconstruction(wrapped: Wrapped, samples: Samples, seed: int, step: Step) -> Scores:
    """Per gate, how much worth its variables are: the higher, the rather they stay."""
    analysis = wrapped.analysis
    worth = _of_ids(wrapped, samples, seed, step)
    saved = savings(analysis, wrapped.target)
    scores = {}
    for unit in analysis.units:
        value = np.zeros(unit.variables)
        own = unit.rows >= 0
        for call in unit.calls:
            np.add.at(value, unit.rows[own], worth[call.ids.reshape(-1)][own])
        scores[unit.name] = torch.from_numpy(value / saved[unit.part])
    return scores


def magnitude(wrapped: Wrapped) -> Scores:
    """Sums of absolute weights, compared inside of each layer only: all layers lose the same share."""
    net, scores = wrapped.unwrap(), {}
    for unit in wrapped.analysis.units:
        total = torch.zeros(unit.variables, dtype=torch.float64)
        own = torch.from_numpy(unit.rows >= 0)
        sums = _sizes(unit.calls[0], net).cpu()
        total.index_add_(0, torch.from_numpy(unit.rows)[own], sums[own])
        scores[unit.name] = total.argsort().argsort().double() / unit.variables
    return scores


def _sizes(call: Mixer, net: nn.Module) -> torch.Tensor:
    """Per row of a layer, the sum of its absolute weights; of one whose weight is computed they all count the same."""
    layer = dict(net.named_modules()).get(call.name)
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, torch.Tensor) or call.ids.size not in (weight.shape[0], weight.shape[1] * call.groups):
        return torch.ones(call.ids.size, dtype=torch.float64)
    return grouped(weight, layer, call.groups).abs().double().sum((2, 3)).reshape(-1)


def at_random(wrapped: Wrapped, seed: int) -> Scores:
    """Any channels; all layers lose the same share."""
    generator = torch.Generator().manual_seed(seed)
    orders = {unit: torch.randperm(unit.variables, generator=generator) for unit in wrapped.analysis.units}
    return {unit.name: order.double() / unit.variables for unit, order in orders.items()}


def savings(analysis: Analysis, target: Target) -> Floats:
    """Per gate variable, which share of the budget goes with it alone."""
    names = [name for name, _ in target.limits]
    slopes = analysis.costs.slopes(torch.ones(analysis.variables, dtype=torch.float64), names)
    shares = [
        slope.numpy() / (fraction * analysis.full_cost[name])
        for slope, (name, fraction) in zip(slopes, target.limits, strict=True)
    ]
    total: Floats = np.max(shares, axis=0)
    least = total[total > 0].min() if (total > 0).any() else 1.0
    return np.maximum(total, least)


def _of_ids(wrapped: Wrapped, samples: Samples, seed: int, step: Step) -> Floats:
    """Per channel, what its loss does to all that reads it, directly or through joins."""
    analysis = wrapped.analysis
    net = graph_module(analysis.channels.trace, wrapped.unwrap()).eval()
    sites, _ = find_sites(analysis, net)
    watched = _Watched(analysis)
    chunks, _ = samples.chunks()
    run = Advancing(net, chunks, {name for site in sites for name in site.target})
    worth = np.zeros(analysis.channels.table.size)
    seen: dict[str, list[torch.Tensor]] = {site.name: [] for site in sites}
    stops: list[tuple[int, Site, Mixer | None]] = []
    stops += [(run.place[call.node.name], site, call) for site in sites for call in site.calls]
    stops += [(max(run.place[name] for name in site.target) + 1, site, None) for site in sites]
    done = 0
    for place, site, call in sorted(stops, key=lambda stop: stop[0]):
        done = watched.advance(run, done, place)
        layer = net.get_submodule(site.name)
        if call is not None and not call.is_depthwise:
            generator = torch.Generator().manual_seed(seed * 1_000_003 + place)
            seen[site.name].append(_seen(run, call, layer, generator))
        if call is None:
            step(site.name)
            parts = seen.pop(site.name)
            if parts:
                variance = torch.from_numpy(
                    np.mean([_variance(run.value(0, name), layer) for name in site.target], axis=0)
                )
                losses = _losses(site, layer, net, torch.cat(parts), variance).reshape(-1)
                for each in site.calls:
                    np.add.at(worth, each.inputs.reshape(losses.numel(), -1)[:, 0], losses.numpy())
            run.drop(set(site.target))
    watched.advance(run, done, len(run.nodes))
    return _through_joins(analysis, worth, watched.variances)


def _variance(value: torch.Tensor, layer: nn.Module) -> Floats:
    """Per channel that the layer writes."""
    variance: Floats = canonical(value, layer).transpose(0, 1).flatten(1).double().var(1, unbiased=False).cpu().numpy()
    return variance


def _seen(run: Advancing, call: Mixer, layer: nn.Module, generator: torch.Generator) -> torch.Tensor:
    """Rows x groups x (channels and taps)."""
    node = run.nodes[run.place[call.node.name]]
    columns = call.inputs.shape[1] * call.kernel
    most = min(ROWS, max(FEWEST, PER_COLUMN * columns)) / len(run.inputs)
    found = []
    for chunk in range(len(run.inputs)):
        value = run.value(chunk, node.all_input_nodes[0].name)
        made: Any = node.meta["value"]
        lead, *rest = canonical(value, layer).shape[:1] + canonical(made, layer).shape[1:]
        where = Where.drawn(lead, int(np.prod(rest[1:])), max(int(most), 1), generator)
        inputs = inputs_at(value, layer, torch.Size([lead, *rest]), where, None)
        found.append(inputs.reshape(len(inputs), call.groups, -1))
    return torch.cat(found)


def _losses(site: Site, layer: nn.Module, net: nn.Module, seen: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Groups x channels: the share of the variance of its outputs that the layer loses with each."""
    groups, taps = site.groups, site.calls[0].kernel * _repeats(site)
    weight = grouped(layer.weight, layer, groups).double().flatten(2)  # type: ignore[arg-type]
    norm: Any = None if site.norm is None else net.get_submodule(site.norm)
    scale = torch.ones_like(variance)
    if norm is not None:
        scale = (norm.weight.detach() / (norm.running_var + norm.eps).sqrt()).double()
    units = torch.where(variance > 0, scale / variance.clamp(min=1e-30).sqrt(), 0.0)
    weight = weight * units.reshape(groups, -1, 1)
    if seen.shape[2] > WIDEST:  # what each carries, as if nothing took over
        carried = seen.double().var(0, unbiased=False) * weight.square().sum(1)
        return carried.reshape(groups, -1, taps).sum(2)
    return torch.stack([
        surgery(covariance, maps.T, taps)
        for covariance, maps in zip(covariances(seen), weight, strict=True)
    ])


def _repeats(site: Site) -> int:
    """How many columns in a row are one channel: positions of a map that was flattened."""
    inputs = np.concatenate([call.inputs for call in site.calls])
    changes = np.flatnonzero((inputs[:, 1:] != inputs[:, :-1]).any(0)) + 1
    longest = int(np.gcd.reduce([*changes.tolist(), inputs.shape[1]]))
    same = (inputs.reshape(inputs.shape[0], -1, longest) == inputs[:, ::longest, None]).all()
    return longest if same else 1


def surgery(covariance: torch.Tensor, maps: torch.Tensor, taps: int) -> torch.Tensor:
    """Per channel of the inputs (``taps`` columns each), the rise of the squared error when it goes in its turn.

    The one that costs least goes first; ``maps`` (columns x rows) of the others change so that they take over.
    """
    count = covariance.shape[0] // taps
    ridge = RIDGE * covariance.diagonal().mean().clamp(min=1e-30)
    unit = torch.eye(covariance.shape[0], dtype=covariance.dtype)
    inverse = torch.linalg.inv(covariance + ridge * unit)
    maps, losses = maps.clone(), torch.zeros(count, dtype=covariance.dtype)
    left = torch.arange(count)
    every = -(-count // AT_ONCE)
    while left.numel():
        own = inverse.reshape(count, taps, count, taps)[left, :, left, :]
        parts = maps.reshape(count, taps, -1)[left]
        weight = parts @ parts.transpose(1, 2)
        rises = (weight * (own.reciprocal() if taps == 1 else torch.linalg.inv(own))).sum((1, 2))
        order = rises.argsort()
        going, losses[left[order[:every]]] = left[order[:every]], rises[order[:every]]
        left = left[order[every:].sort().values]
        columns = (going[:, None] * taps + torch.arange(taps)).reshape(-1)
        solved = torch.linalg.solve(inverse[columns][:, columns], inverse[columns])
        maps -= solved.T @ maps[columns]
        inverse -= inverse[:, columns] @ solved
        maps[columns] = 0
        inverse[columns] = 0
        inverse[:, columns] = 0
    return losses


class _Watched:
    """Advances a net, and notes the variance of every channel on the way, on the first chunk."""

    def __init__(self, analysis: Analysis) -> None:
        self.flows = {
            node.name: flow for node, flow in analysis.channels.flows.items()
            if isinstance(flow, Flow) and flow.axis is not None
        }  # fmt: skip
        self.variances: dict[bytes, Floats] = {}  # by the ids that a tensor carries; of its last form

    def advance(self, run: Advancing, done: int, end: int) -> int:
        """To the node at ``end``, from ``done`` on."""
        for place in range(done, end):
            run.advance(0, place + 1)
            name = run.nodes[place].name
            value, flow = run.values[0].get(run.nodes[place]), self.flows.get(name)
            if flow is not None and isinstance(value, torch.Tensor) and value.is_floating_point():
                self._note(value, flow)
        for chunk in range(1, len(run.inputs)):
            run.advance(chunk, end)
        return end

    def _note(self, value: torch.Tensor, flow: Flow) -> None:
        assert flow.axis is not None
        flat = value.movedim(flow.axis, 0).flatten(1).double()
        self.variances[flow.ids.tobytes()] = flat.var(1, unbiased=False).cpu().numpy()


def _through_joins(analysis: Analysis, worth: Floats, variances: dict[bytes, Floats]) -> Floats:
    """Backwards: what is read behind a join is read of its operands, of each as much as it carries of the variance."""
    for block in reversed(analysis.channels.table.blocks):
        if isinstance(block, Joined):
            shares: list[Any] = [1.0] * len(block.operands)
            if block.kind == "any":
                known = [_known(variances, operand) for operand in block.operands]
                total = sum(known)
                shares = [np.divide(part, total, out=np.zeros_like(part), where=total > 0) for part in known]
            for operand, share in zip(block.operands, shares, strict=True):
                own = share if block.kind == "any" else 0.0  # of the sum itself
                np.add.at(worth, operand, share * worth[block.out] + own)
        elif isinstance(block, Mix) and block.inputs.shape[1] == 1:
            np.add.at(worth, block.inputs[:, 0], worth[block.out].sum(1))
        elif isinstance(block, Mix) and block.owner not in {mixer.node.name for mixer in analysis.channels.mixers}:
            np.add.at(worth, block.inputs, (worth[block.out].sum(1) / block.inputs.shape[1])[:, None])
    return worth


def _known(variances: dict[bytes, Floats], ids: Ids) -> Floats:
    found = variances.get(np.ascontiguousarray(ids).tobytes())
    return np.ones(ids.size) if found is None or found.size != ids.size else found
