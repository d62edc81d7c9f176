"""The gates: hard-concrete variables, one flat parameter for the whole network, and what they let through."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import torch
from torch import nn

from fxprune.analysis import Analysis
from fxprune.channels.ids import OPEN, Ids
from fxprune.gated.circuit import Circuit, Folded, Lookup

BETA, GAMMA, ZETA = 2 / 3, -0.1, 1.1
CLOSED_AT = BETA * log(-GAMMA / ZETA)  # -1.599: the mean gate is zero up to here
REOPENED = 0.1  # the value of a gate that must be open though its variable shuts it: enough to train
KEPT_AT = BETA * log((REOPENED - GAMMA) / (ZETA - REOPENED))  # -1.073: where the mean gate has that value
NOISES = ("batch", "sample")
LAWS = ("hard-concrete", "gaussian")
LOWEST, HIGHEST = -4.0, 3.0  # of log_alpha: beyond that a gate would feel nothing any more
OPEN_AT = 2.5  # a gate starts fully open: the wrapped net computes what the original computes


def mean_gate(log_alpha: torch.Tensor) -> torch.Tensor:
    """The gate's value without noise: Q^-1(1/2), the paper's mask.

    >>> mean_gate(torch.tensor([-1.6, 0.0, 1.6])).tolist()
    [0.0, 0.5, 1.0]
    """
    return (torch.sigmoid(log_alpha / BETA) * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


@dataclass(eq=False)
class Site:
    """Where the wrapped graph multiplies (``gate`` given) or masks: a tensor's ids, shaped to broadcast over it."""

    ids: Ids
    gate: Ids | None  # variables of each channel, one after the other: its factor is the product of theirs
    in_norm: bool = False  # the factor or mask hides in a batch norm, which takes a plain vector
    samples: bool = True  # lie on axis 0; else one draw for all of them has to do

    @property
    def shape(self) -> tuple[int, ...]:
        return (-1,) if self.in_norm else self.ids.shape


class Factors:
    """The factors of all channels of some sites, one after the other: products of gate variables."""

    def __init__(self, gates: list[Ids]) -> None:
        slots = max((len(gate) for gate in gates), default=1)
        flat = [np.pad(gate.reshape(len(gate), -1), ((0, slots - len(gate)), (0, 0)), constant_values=OPEN)
                for gate in gates]  # fmt: skip
        index = np.concatenate([np.zeros((slots, 0), dtype=np.int64), *flat], 1)
        index = index[[n == 0 or bool((row != OPEN).any()) for n, row in enumerate(index)]]
        self.start, self.count = int(index[0, 0]) if index.size else 0, index.shape[1]
        self.run = len(index) == 1 and self.start >= 0 and bool((np.diff(index[0]) == 1).all())
        self.has_open = bool((index == OPEN).any())
        self.lookup = Lookup(index=index)

    def __call__(self, z: torch.Tensor) -> torch.Tensor:
        """Of gate variables, or samples x gate variables."""
        if self.run:
            return z[..., self.start : self.start + self.count]
        index = self.lookup.at(z.device)["index"]
        padded = torch.cat([z, z.new_ones(*z.shape[:-1], 1)], -1) if self.has_open else z
        return padded[..., index[0]] if len(index) == 1 else padded[..., index].prod(-2)


class Gate:
    """The gate of one layer: a view into the flat parameter."""

    def __init__(self, bank: GateBank, start: int, count: int) -> None:
        self._bank, self._range = bank, slice(start, start + count)

    def __len__(self) -> int:
        return self._range.stop - self._range.start

    @property
    def log_alpha(self) -> torch.Tensor:
        return self._bank.log_alpha[self._range]

    @property
    def mask(self) -> torch.Tensor:
        """Which variables are open, as the network stands now."""
        return self._bank.opened()[self._range]

    def __repr__(self) -> str:
        return f"Gate({int(self.mask.sum())} of {len(self)} open)"


class GateBank(nn.Module):
    """All gate variables. Called once per forward pass, it gives every site its factor or mask.

    While training, gates are sampled: one draw for the whole batch, or (``noise="sample"``) one for each of its
    samples. In eval mode, and once the masks are fixed, they have their mean value. Of each row of ``choices`` (sets
    of gates of which one must stay open) the best is *kept*: the paper's clamp of the highest Phi.
    """

    log_alpha: nn.Parameter
    hard: torch.Tensor
    is_hard: torch.Tensor
    places: torch.Tensor | None  # in attention heads; of a state that is loaded they must be the same

    def __init__(self, count: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((count,), OPEN_AT, dtype=dtype, device=device))
        self.register_buffer("hard", torch.ones(count, dtype=torch.bool, device=device))
        self.register_buffer("is_hard", torch.zeros((), dtype=torch.bool, device=device))
        self.law: Gaussian | None = None  # what is drawn instead of hard-concrete gates
        self.noise = "batch"
        self.generator: torch.Generator | None = None
        self.hardened = False  # what is_hard says, without a look at the device
        self.register_load_state_dict_post_hook(_read_is_hard)  # type: ignore[no-untyped-call]

    def connect(self, analysis: Analysis, sites: list[Site]) -> None:
        """Work out what each site gets."""
        self.sites = sites
        self.lookup = Lookup(choices=analysis.guards.choices)
        kinds = [(site.gate is None, not site.in_norm) for site in sites]
        order = sorted(range(len(sites)), key=kinds.__getitem__)  # gates in norms, other gates, masks in norms, others
        self.parts = [[n for n in order if kinds[n] == kind] for kind in itertools.product((False, True), repeat=2)]
        gates, others, masks, _ = self.parts
        self.in_norms = [*gates, *masks]  # in the order in which their affine maps are to be given
        self.of_norms, self.of_others = (
            Factors([gate for n in part if (gate := sites[n].gate) is not None]) for part in (gates, others)
        )
        ids = [np.concatenate([np.zeros(0, dtype=np.int64), *(sites[n].ids.reshape(-1) for n in part)])
               for part in self.parts]  # fmt: skip
        self.sizes = [part.size for part in ids]
        folded = Folded(analysis.channels.table, analysis.variables, analysis.sure)
        self.masked, self.living = (Circuit(folded, np.concatenate(part)) for part in (ids[2:], ids))

    def harden(self, opened: torch.Tensor) -> None:
        """Fix the masks."""
        self.hard.copy_(opened)
        self.is_hard.fill_(True)
        self.hardened = True

    def is_placed(self, places: torch.Tensor) -> bool:
        """Whether these are its places in attention heads; of another net nothing can be said."""
        own = self.places
        return own is None or own.shape != places.shape or torch.equal(places.cpu(), own.cpu())

    def soften(self) -> None:
        """Let the gates decide again."""
        self.is_hard.fill_(False)
        self.hardened = False

    @property
    def choices(self) -> torch.Tensor:
        return self.lookup.at(self.log_alpha.device)["choices"]

    def best(self) -> torch.Tensor:
        """Of each choice, the gate that stays open whatever its variable says."""
        scores, choices = self.scores().detach(), self.choices
        return choices.gather(1, scores[choices].argmax(1, keepdim=True)).reshape(-1)

    def kept(self) -> torch.Tensor:
        """Which gates these are."""
        return torch.zeros_like(self.hard).index_fill(0, self.best(), True)

    def opened(self) -> torch.Tensor:
        """Which gates are open without noise."""
        if self.hardened:
            return self.hard
        wanted = self.log_alpha.detach() > CLOSED_AT if self.law is None else self.law.scores().detach() > 0
        return wanted | self.kept()

    def scores(self) -> torch.Tensor:
        """How much each gate wants to stay open."""
        return self.log_alpha if self.law is None else self.law.scores()

    def values(self) -> torch.Tensor:
        """Gate values of the deterministic network. What was alive keeps its value when the masks are fixed; a gate
        that was shut, and is opened again to use up the budget, has none, and lets at least a little through."""
        kept = self.kept()
        if self.law is None:
            value = mean_gate(_clamped(self.log_alpha, kept))
            little: Any = REOPENED
        else:
            value, little = self.law.mean(), self.law.little()
            value = torch.where(kept & (value == 0), little, value)
        return torch.where(self.hard, torch.where(value == 0, little, value), 0.0) if self.hardened else value

    def forward(self, batch: torch.Tensor | None = None, affine: Sequence[torch.Tensor] = ()) -> list[Any]:
        """What every site gets. ``affine``: weights and then biases of the batch norms with a gate or mask, in the
        order of ``in_norms``; while training they are multiplied all at once and handed on beside it. In eval mode each
        norm multiplies its own: a refit changes them while the net runs, layer by layer."""
        noisy = self.training and not self.hardened
        count = batch.shape[0] if noisy and self.noise == "sample" and batch is not None else None
        z = self._draw(count) if noisy else self.values()
        opened = z.detach() != 0
        norms, others = self.of_norms(z), self.of_others(z)
        if noisy:
            masks = self.masked(opened if z.ndim == 1 else opened.any(0)).split(self.sizes[2:])
        else:
            own, other, *masks = self.living(opened).split(self.sizes)
            norms, others = norms * own, others * other
        found: list[Any] = [None] * len(self.sites)
        for numbers, values in zip(self.parts, (norms, others, masks[0].to(z.dtype), masks[1]), strict=True):
            sizes = [self.sites[n].ids.size for n in numbers]
            for number, value in zip(numbers, values.split(sizes, -1), strict=True):
                found[number] = self._shaped(self.sites[number], value)
        if self.training and z.ndim == 1 and affine and len({part.dtype for part in affine}) == 1:
            factors = torch.cat([norms, masks[0].to(z.dtype)]).to(affine[0].dtype)
            taken = (torch.cat(list(affine)).reshape(2, -1) * factors).reshape(-1).split([len(part) for part in affine])
            for place, number in enumerate(self.in_norms):
                found[number] = (found[number], taken[place], taken[place + len(self.in_norms)])
        return found

    def _shaped(self, site: Site, value: torch.Tensor) -> torch.Tensor:
        if value.ndim == 1:
            return value.reshape(site.shape)
        return value.reshape(-1, *site.ids.shape[1:]) if site.samples else value[0].reshape(site.ids.shape)

    def _draw(self, count: int | None) -> torch.Tensor:
        """Gates with noise; a kept one that is drawn shut has its mean value instead."""
        if self.law is not None:
            return self.law.sample(count, self.generator)  # never exactly zero
        if not self.choices.numel():
            return sampled_gate(self.log_alpha, count, self.generator)
        place, best = self.log_alpha.detach(), self.best()
        drawn = place + _noise(place, count, self.generator)
        before = place[best]
        lifted = before.clamp(min=KEPT_AT)
        there = drawn[..., best] + (lifted - before)
        shut = CLOSED_AT + 16 * torch.finfo(place.dtype).eps  # near that a value may be rounded to zero
        drawn[..., best] = torch.where(there > shut, there, lifted)
        return mean_gate(drawn + (self.log_alpha - place))  # felt wherever they are


class Gaussian(nn.Module):
    """Factors mu + sigma x noise, one per gate variable: a channel whose signal drowns in its noise is closed."""

    def __init__(self, like: torch.Tensor) -> None:
        super().__init__()
        self.mu = nn.Parameter(1 + 0.01 * torch.randn_like(like))
        self.log_sigma = nn.Parameter(-9 + 0.01 * torch.randn_like(like))

    def scores(self) -> torch.Tensor:
        """log(mu^2 / sigma^2)."""
        return (self.mu.square() + 1e-30).log() - 2 * self.log_sigma

    def mean(self) -> torch.Tensor:
        return torch.where(self.scores() > 0, self.mu, 0.0)

    def little(self) -> torch.Tensor:
        """The value of a factor that was closed and is opened again."""
        return torch.where(self.mu < 0, -REOPENED, REOPENED)

    def sample(self, count: int | None, generator: torch.Generator | None) -> torch.Tensor:
        shape = self.mu.shape if count is None else (count, *self.mu.shape)
        noise = torch.randn(shape, generator=generator, dtype=self.mu.dtype, device=self.mu.device)
        return self.mu + self.log_sigma.exp() * noise


def _read_is_hard(bank: nn.Module, _: Any) -> None:
    assert isinstance(bank, GateBank)
    if bank.is_hard.is_meta:
        return
    bank.hardened = bool(bank.is_hard)
    if bank.hardened and bank.choices.numel():  # of another version, whose guards may have been others
        bank.hard[bank.best()[~bank.hard[bank.choices].any(1)]] = True


def _clamped(log_alpha: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Kept gates are open, and feel the loss wherever their variables are."""
    lifted = torch.where(kept, log_alpha.detach().clamp(min=KEPT_AT), log_alpha.detach())
    return log_alpha + (lifted - log_alpha.detach())


def sampled_gate(log_alpha: torch.Tensor, count: int | None, generator: torch.Generator | None) -> torch.Tensor:
    """Draws of the hard-concrete distribution: one per gate, or ``count`` of them."""
    return mean_gate(_noise(log_alpha, count, generator) + log_alpha)


def _noise(like: torch.Tensor, count: int | None, generator: torch.Generator | None) -> torch.Tensor:
    shape = like.shape if count is None else (count, *like.shape)
    return torch.logit(torch.rand(shape, generator=generator, dtype=like.dtype, device=like.device), eps=1e-6)


def probability(log_alpha: torch.Tensor) -> torch.Tensor:
    """How surely a gate is open.

    >>> probability(torch.tensor([CLOSED_AT, 0.0])).tolist()[0]
    0.5
    """
    return torch.sigmoid(log_alpha - CLOSED_AT)


class _Gated:
    """A batch norm that takes a gate into its affine map: one multiply of vectors instead of one of feature maps."""

    def forward(self: Any, x: torch.Tensor, factor: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
        """``factor``: the gate, or with it the weight and bias that it is multiplied with already."""
        if not isinstance(factor, torch.Tensor):
            gate, weight, bias = factor
        elif factor.ndim > 1:  # one per sample
            scaled: torch.Tensor = super().forward(x) * factor.to(x.dtype)  # type: ignore[misc]
            return scaled
        else:
            gate = factor
            weight, bias = (self._parameters[name] * gate.to(self.weight.dtype) for name in ("weight", "bias"))
        self._check_input_dim(x)
        statistics = self.training or self.running_mean is None
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
            momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else momentum
        track = not self.training or self.track_running_stats
        mean, variance = (self.running_mean, self.running_var) if track else (None, None)
        y = nn.functional.batch_norm(x, mean, variance, weight, bias, statistics, momentum, self.eps)
        # In training a channel that is not finite spoils all gradients anyway: there the zeros need no second pass.
        return y if self.training else apply_mask(y, (gate != 0).reshape(-1, *(1,) * (y.ndim - 2)))


class GatedBatchNorm1d(_Gated, nn.BatchNorm1d):  # type: ignore[misc]
    pass


class GatedBatchNorm2d(_Gated, nn.BatchNorm2d):  # type: ignore[misc]
    pass


class GatedBatchNorm3d(_Gated, nn.BatchNorm3d):  # type: ignore[misc]
    pass


GATED = {
    nn.BatchNorm1d: GatedBatchNorm1d, nn.BatchNorm2d: GatedBatchNorm2d, nn.BatchNorm3d: GatedBatchNorm3d
}  # fmt: skip


def gated_norm(norm: nn.Module) -> nn.Module:
    """The same batch norm (one set of parameters, buffers and hooks), called with a gate."""
    gated: nn.Module = object.__new__(GATED[type(norm)])  # type: ignore[index]
    object.__setattr__(gated, "__dict__", norm.__dict__)
    return gated


def apply_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return apply_mask(x * gate.to(x.dtype), gate != 0)


def apply_mask(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """``where`` and not a product: zero times infinity is no zero."""
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))
