"""The gates: hard-concrete variables, one flat parameter for the whole network, and what they let through."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log
from typing import Any

import torch
from torch import nn

from fxprune.channels.ids import OPEN, IdTable

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
    """Where the wrapped graph multiplies (``gate`` given) or masks: a tensor's ids, shaped to broadcast over it.

    What compilers cannot read off tensors is found out here, once.
    """

    ids: torch.Tensor
    gate: torch.Tensor | None  # variables of each channel, one after the other: its factor is the product of theirs
    in_norm: bool = False  # the multiply hides in a batch norm, which takes a plain vector
    samples: bool = True  # lie on axis 0; else one draw for all of them has to do
    has_open: bool = field(init=False)  # some channels hang on no gate variable
    start: int = field(init=False)  # where its variables start if they are a run of the flat parameter, else -1

    def __post_init__(self) -> None:
        if self.gate is not None:  # few channels hang on several
            self.gate = self.gate[[bool((one != OPEN).any()) for one in self.gate]]
        flat = self.gate.reshape(-1) if self.gate is not None else torch.zeros(0, device="cpu")
        self.has_open = bool((flat == OPEN).any())
        run = flat.numel() == self.ids.numel() and not self.has_open and bool((flat[1:] - flat[:-1] == 1).all())
        self.start = int(flat[0]) if run else -1

    @property
    def shape(self) -> tuple[int, ...]:
        return (-1,) if self.in_norm else tuple(self.ids.shape)


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
    choices: torch.Tensor
    places: torch.Tensor | None  # in attention heads; of a state that is loaded they must be the same

    def __init__(
        self, count: int, table: IdTable, sites: list[Site], choices: torch.Tensor, dtype: torch.dtype,
        device: torch.device,
    ) -> None:  # fmt: skip
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((count,), OPEN_AT, dtype=dtype, device=device))
        self.register_buffer("hard", torch.ones(count, dtype=torch.bool, device=device))
        self.register_buffer("is_hard", torch.zeros((), dtype=torch.bool, device=device))
        self.register_buffer("choices", choices.to(device), persistent=False)
        self.table, self.sites = table, sites
        self.law: Gaussian | None = None  # what is drawn instead of hard-concrete gates
        self.noise = "batch"
        self.generator: torch.Generator | None = None
        self.hardened = False  # what is_hard says, without a look at the device
        self.register_load_state_dict_post_hook(_read_is_hard)  # type: ignore[no-untyped-call]

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

    def kept(self) -> torch.Tensor:
        """The gates that stay open whatever their variables say: the best of each choice."""
        scores = self.scores().detach()
        best = self.choices.gather(1, scores[self.choices].argmax(1, keepdim=True)).reshape(-1)
        return torch.zeros_like(scores, dtype=torch.bool).index_fill(0, best, True)

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
            again = torch.where(value == 0, REOPENED, value)
        else:
            value = self.law.mean()
            again = torch.where(value == 0, self.law.little(), value)
            value = torch.where(kept, again, value)
        return torch.where(self.hard, again, 0.0) if self.hardened else value

    def forward(self, batch: torch.Tensor | None = None) -> list[torch.Tensor]:
        if self.training and not self.hardened:
            return self._sampled(self._draw(batch.shape[0] if self.noise == "sample" and batch is not None else None))
        values = self.values()
        alive = self.table.alive((values.detach() != 0).to(values.dtype))
        padded = torch.cat([values, values.new_ones(1)])
        return [
            (alive[site.ids] * padded[site.gate].prod(0)).reshape(site.shape)
            if site.gate is not None
            else alive[site.ids] > 0
            for site in self.sites
        ]

    def _draw(self, count: int | None) -> torch.Tensor:
        """Gates with noise; a kept one that is drawn shut has its mean value instead."""
        if self.law is not None:
            return self.law.sample(count, self.generator)  # never exactly zero
        if not self.choices.numel():
            return sampled_gate(self.log_alpha, count, self.generator)
        kept = self.kept()
        log_alpha = _clamped(self.log_alpha, kept)
        z = sampled_gate(log_alpha, count, self.generator)
        return torch.where(kept & (z == 0), mean_gate(log_alpha), z)

    def _sampled(self, z: torch.Tensor) -> list[torch.Tensor]:
        """``z``: gate variables, or samples x gate variables."""
        masks = any(site.gate is None for site in self.sites)
        drawn = (z.detach() != 0).to(z.dtype)
        alive = self.table.alive(drawn if z.ndim == 1 else drawn.amax(0)) if masks else z
        padded = torch.cat([z, z.new_ones(*z.shape[:-1], 1)], -1) if any(site.has_open for site in self.sites) else z

        def factor(site: Site, gate: torch.Tensor) -> torch.Tensor:
            run = slice(site.start, site.start + gate.numel())
            own = z[..., run] if site.start >= 0 else padded[..., gate.flatten(1)].prod(-2)
            if z.ndim == 1:
                return own.reshape(site.shape)
            return own.reshape(-1, *site.ids.shape[1:]) if site.samples else own[0].reshape(site.ids.shape)

        return [factor(site, site.gate) if site.gate is not None else alive[site.ids] > 0 for site in self.sites]


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
    if not bank.is_hard.is_meta:
        bank.hardened = bool(bank.is_hard)


def _clamped(log_alpha: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Kept gates are open, and feel the loss wherever their variables are."""
    lifted = torch.where(kept, log_alpha.detach().clamp(min=KEPT_AT), log_alpha.detach())
    return log_alpha + (lifted - log_alpha.detach())


def sampled_gate(log_alpha: torch.Tensor, count: int | None, generator: torch.Generator | None) -> torch.Tensor:
    """Draws of the hard-concrete distribution: one per gate, or ``count`` of them."""
    shape = log_alpha.shape if count is None else (count, *log_alpha.shape)
    uniform = torch.rand(shape, generator=generator, dtype=log_alpha.dtype, device=log_alpha.device)
    noise = torch.logit(uniform, eps=1e-6)
    return (torch.sigmoid((noise + log_alpha) / BETA) * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


def probability(log_alpha: torch.Tensor) -> torch.Tensor:
    """How surely a gate is open.

    >>> probability(torch.tensor([CLOSED_AT, 0.0])).tolist()[0]
    0.5
    """
    return torch.sigmoid(log_alpha - CLOSED_AT)


class _Gated:
    """A batch norm that takes a gate into its affine map: one multiply of vectors instead of one of feature maps."""

    def forward(self: Any, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        if gate.ndim > 1:  # one per sample
            scaled: torch.Tensor = super().forward(x) * gate.to(x.dtype)  # type: ignore[misc]
            return scaled
        weight, bias = self._parameters["weight"], self._parameters["bias"]
        self._check_input_dim(x)
        statistics = self.training or self.running_mean is None
        factor = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
            factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else factor
        track = not self.training or self.track_running_stats
        mean, variance = (self.running_mean, self.running_var) if track else (None, None)
        gate = gate.to(weight.dtype)
        y = nn.functional.batch_norm(x, mean, variance, weight * gate, bias * gate, statistics, factor, self.eps)
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
