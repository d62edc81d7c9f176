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
from fxprune.count import batch_size
from fxprune.cutting.least_squares import Summed
from fxprune.cutting.lockstep import Advancing, bounded
from fxprune.cutting.positions import Where, canonical, inputs_at
from fxprune.cutting.samples import Samples
from fxprune.cutting.sites import Site, find_sites, grouped
from fxprune.errors import check_choice
from fxprune.gated.wrapped import Wrapped
from fxprune.rules import Flow
from fxprune.trace import graph_module

ROWS, PER_COLUMN, FEWEST = 8192, 4, 4096  # positions: at most, for each column, at least
RIDGE = 1e-3  # of the mean diagonal
WIDEST = 2304  # columns; where there are more, each tap is looked at alone
AT_ONCE = 64  # a layer loses its channels in about so many steps
SHRUNK = 0.8  # of the channels are left: the others are not carried along any more
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
    watched = _Watched(analysis, net, sites)
    chunks, _ = bounded(samples, analysis.channels.trace).chunks()
    sizes = len(chunks), samples.count / batch_size(*analysis.channels.trace.example)
    readers = {site.name: _Reader(site, net.get_submodule(site.name), *sizes) for site in sites}
    generator = torch.Generator().manual_seed(seed)
    watched.note(Advancing(net, chunks[:1], ()))
    for chunk in chunks:
        run = Advancing(net, [chunk], ())
        calls = {run.place[call.node.name]: (site, call) for site in sites for call in site.calls}
        for place, (site, call) in sorted(calls.items()):
            if not call.is_depthwise:
                run.advance(0, place)
                readers[site.name].see(run, call, generator)
    worth = np.zeros(analysis.channels.table.size)
    for site in sites:
        step(site.name)
        reader = readers.pop(site.name)
        written = watched.written[site.name]
        if reader.seen.count or reader.seen.parts:
            losses = reader.losses(_scale(site, net, torch.stack(written).mean(0))).reshape(-1)
            for call in site.calls:
                np.add.at(worth, call.inputs.reshape(losses.numel(), -1)[:, 0], losses.numpy())
    return _through_joins(analysis, worth, watched.variances)


def _scale(site: Site, net: nn.Module, variance: torch.Tensor) -> torch.Tensor:
    """Per row of a layer, what turns its outputs into shares of the deviation that is found where they are used, so
    that the squares of all rows together are 1: a narrow layer counts as much as a wide one."""
    norm: Any = None if site.norm is None else net.get_submodule(site.norm)
    scale = torch.ones_like(variance)
    if norm is not None:
        scale = (norm.weight.detach() / (norm.running_var + norm.eps).sqrt()).double().cpu()
    return torch.where(variance > 0, scale / (len(variance) * variance.clamp(min=1e-30)).sqrt(), 0.0)


class _Reader:
    """A layer, and the covariances of what it reads."""

    def __init__(self, site: Site, layer: nn.Module, chunks: int, samples: float) -> None:
        self.site, self.layer, self.chunks, self.seen = site, layer, chunks, Summed()
        self.taps = site.calls[0].kernel * _repeats(site)
        self.columns = site.calls[0].inputs.shape[1] * site.calls[0].kernel
        # A channel is made up for by the others at the same tap only; few rows say nothing about all taps at once.
        self.tied = self.columns > WIDEST or samples * _positions(site, layer) < PER_COLUMN * self.columns

    def see(self, run: Advancing, call: Mixer, generator: torch.Generator) -> None:
        node = run.nodes[run.place[call.node.name]]
        made: Any = node.meta["value"]
        value = run.value(0, node.all_input_nodes[0].name)
        lead, *rest = canonical(value, self.layer).shape[:1] + canonical(made, self.layer).shape[1:]
        columns = self.columns // self.taps if self.tied else self.columns
        most = min(ROWS, max(FEWEST, PER_COLUMN * columns)) // self.chunks
        where = Where.drawn(lead, int(np.prod(rest[1:])), max(most, 1), generator)
        inputs = inputs_at(value, self.layer, torch.Size([lead, *rest]), where, None)
        inputs = inputs.reshape(len(inputs), self.site.groups, -1)
        if self.tied:
            inputs = inputs.reshape(*inputs.shape[:2], -1, self.taps).permute(0, 3, 1, 2).flatten(0, 1)
        self.seen.add(inputs)

    def losses(self, scale: torch.Tensor) -> torch.Tensor:
        """Groups x channels: what the layer loses with each, where its rows count as ``scale`` says."""
        groups = self.site.groups
        weight = grouped(self.layer.weight, self.layer, groups).double().cpu().flatten(2)  # type: ignore[arg-type]
        maps = (weight * scale.reshape(groups, -1, 1)).transpose(1, 2)
        if self.tied:
            maps = maps.reshape(groups, -1, self.taps * maps.shape[2])
        taps = 1 if self.tied else self.taps
        found = [surgery(*parts, taps) for parts in zip(self.seen.covariances(), maps, strict=True)]
        return torch.stack(found)


def _positions(site: Site, layer: nn.Module) -> int:
    """Of an example's outputs, of all calls together."""
    shapes = [canonical(call.node.meta["value"], layer).shape for call in site.calls]
    return sum(shape[0] * shape[2:].numel() for shape in shapes)


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
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(covariance + ridge * unit))
    if maps.shape[1] > maps.shape[0]:  # only products of the maps count
        maps = torch.linalg.qr(maps.T, mode="r").R.T
    losses, every = torch.zeros(count, dtype=covariance.dtype), -(-count // AT_ONCE)
    inside = left = torch.arange(count)  # channels that the matrices hold; and places in them of those not gone yet

    def columns(places: torch.Tensor) -> torch.Tensor:
        return (places[:, None] * taps + torch.arange(taps)).reshape(-1)

    while left.numel():
        own = inverse.reshape(inside.numel(), taps, inside.numel(), taps)[left, :, left, :]
        parts = maps.reshape(inside.numel(), taps, -1)[left]
        weight = parts @ parts.transpose(1, 2)
        rises = (weight * (own.reciprocal() if taps == 1 else torch.linalg.inv(own))).sum((1, 2))
        order = rises.argsort()
        going = left[order[:every]]
        losses[inside[going]] = rises[order[:every]]
        left = left[order[every:].sort().values]
        out = columns(going)
        across = inverse[out]
        solved = torch.linalg.solve(across[:, out], across)
        maps = maps.addmm(solved.T, maps[out], alpha=-1)
        inverse.addmm_(across.T, solved, alpha=-1)
        if left.numel() < SHRUNK * inside.numel():  # copying costs as much as a step
            kept = columns(left)
            inverse, maps = inverse[kept][:, kept], maps[kept]
            inside, left = inside[left], torch.arange(left.numel())
    return losses


class _Watched:
    """Variances of channels, on some samples: of what each layer writes, where it is used, and of every tensor."""

    def __init__(self, analysis: Analysis, net: nn.Module, sites: list[Site]) -> None:
        self.flows = {
            node.name: flow for node, flow in analysis.channels.flows.items()
            if isinstance(flow, Flow) and flow.axis is not None
        }  # fmt: skip
        self.targets = [(node, site.name, net.get_submodule(site.name)) for site in sites for node in site.target]
        self.variances: dict[bytes, Floats] = {}  # by the ids that a tensor carries; of its last form
        self.written: dict[str, list[torch.Tensor]] = {site.name: [] for site in sites}  # call by call

    def note(self, run: Advancing) -> None:
        for place, node in enumerate(run.nodes):
            run.advance(0, place + 1)
            value, flow = run.values[0].get(node), self.flows.get(node.name)
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                continue
            if flow is not None and flow.axis is not None:
                self.variances[flow.ids.tobytes()] = _variance(value.movedim(flow.axis, 0)).numpy()
            for name, layer in ((name, layer) for target, name, layer in self.targets if target == node.name):
                self.written[name].append(_variance(canonical(value, layer).transpose(0, 1)))


def _variance(channels: torch.Tensor) -> torch.Tensor:
    return channels.flatten(1).double().var(1, unbiased=False).cpu()


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
                own = share / share.size if block.kind == "any" else 0.0  # of the sum itself
                np.add.at(worth, operand, share * worth[block.out] + own)
        elif isinstance(block, Mix) and block.inputs.shape[1] == 1:
            np.add.at(worth, block.inputs[:, 0], worth[block.out].sum(1))
        elif isinstance(block, Mix) and block.owner not in {mixer.node.name for mixer in analysis.channels.mixers}:
            np.add.at(worth, block.inputs, (worth[block.out].sum(1) / block.inputs.shape[1])[:, None])
    return worth


def _known(variances: dict[bytes, Floats], ids: Ids) -> Floats:
    found = variances.get(np.ascontiguousarray(ids).tobytes())
    return np.ones(ids.size) if found is None or found.size != ids.size else found
