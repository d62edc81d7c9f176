"""What moves the gates: the loss pulls them up or down, the budget presses them down just as much as it must.

The paper's loss is L_D + λ f(V, a, b) L_S with a constant λ that belongs to one network, one optimizer and one data
loss. Here λ is found while training:

* L_S is scaled so that its gradient is as large as the data loss's own (a running mean), times a *price*;
* the price rises while the network is heading for more than the sliding budget b allows, and falls otherwise. Where it
  is heading is read off the speed of the gates, since a gate takes a while from fully open to closed;
* gates take steps of their own, normalised like Adam's and measured in progress, not in learning rates: whatever
  optimizer holds them and however long training is, a gate can cross its range several times, and none runs away.

How much of each, and which of them at all, is a ``Steering``.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn

from fxprune.cost.model import Cost, CostModel
from fxprune.cost.target import Target
from fxprune.errors import OptionError, check_choice, check_number, check_switch
from fxprune.gated.bank import CLOSED_AT, HIGHEST, KEPT_AT, LOWEST, GateBank, probability
from fxprune.gated.barrier import CEILING, HARDNESS, barrier, fixed_end, sizes, sliding, smallest

STARTS = ("open", "random")
INTERVALS = ("sliding", "fixed")
UNIFORM = 0.01  # the paper's start: log_alpha is drawn between 0 and this
FASTEST, TRAVEL = 0.01, 25.0  # rate of gates that an optimizer moves, at most; and times steps: their range is 7 wide


@dataclass(frozen=True)
class Steering:
    """With the defaults, ``bar`` as it is. ``gain=0`` leaves the price where it starts; ``scaled=False`` measures it
    against the loss as it is (the paper's lambda is half of price x lambda / the full cost); ``own_steps=False`` leaves
    the gates to the optimizer of the weights.
    """

    scaled: bool = True  # the budget's gradient is measured by the data loss's own
    price: float = 0.3  # of the budget, at the beginning
    gain: float = 125.0  # how fast the price rises, per progress, where the cost is over the budget
    ahead: float = 0.04  # of progress: where the network is heading, which is compared with the budget of that moment
    interval: str = "sliding"  # of the barrier: around b; or "fixed": from just below the target, as in the paper, to b
    margin: float = 0.1  # of b: half the width of the sliding interval
    ceiling: float = CEILING  # of the barrier, and of 2 x price x barrier
    own_steps: bool = True  # gates take steps that are measured in progress, not in learning rates
    speed: float = 50.0  # how far a gate can travel by them from progress 0 to 1
    rate: float | None = None  # of gates that the optimizer moves; by default what suits Adam (gate_rate)
    start: str = "open"  # of the gates; or "random": near 0, as in the paper, where they let half through
    hardness: float = HARDNESS  # of the sigmoid along which the budget slides

    def __post_init__(self) -> None:
        for name in ("scaled", "own_steps"):
            check_switch(name, getattr(self, name))
        check_choice("interval", self.interval, INTERVALS)
        check_choice("start", self.start, STARTS)
        for name, (least, most) in RANGES.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_number(name, getattr(self, name), least, most))


def gate_rate(steps: int) -> float:
    """For gates that Adam moves, by about as much in every step.

    In a long run a gate can cross its range several times. In a short one there is no time for that: steps must stay
    small beside the distance to the threshold (1.6), since all gates that the budget presses on arrive together if
    the data has had no time to part them, and Adam needs ten steps to stop.

    >>> gate_rate(60_000) * 60_000, gate_rate(100)
    (25.0, 0.01)
    """
    return min(FASTEST, TRAVEL / max(steps, 1))


RANGES = {
    "price": (1e-4, 1e3), "gain": (0, 1e6), "ahead": (0, 0.5), "margin": (1e-3, 0.5), "ceiling": (1e-3, 1e30),
    "speed": (1e-3, 1e6), "rate": (1e-12, 1e3), "hardness": (0.1, 100),
}  # fmt: skip


Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SMOOTH = 0.01  # of progress: over which the speed of gates is averaged
LONGEST = 1.0  # step of a gate, of its range of 7
REFRESH = 10  # steps between two looks at what a gate costs (through everything that hangs on it)
MEMORY = 0.008  # of progress: of the gates' momentum, which must be shorter than the look ahead
BETA_1, BETA_2, BETA_SCALE = 0.9, 0.99, 0.95
NUMBERS = ("progress", "asked_at", "steps", "scale", "passes", "pushed")  # and prices: in this order in early states


class Holder(Protocol):
    """Who keeps guarded layers open."""

    def hold(self, opened: Bools, scores: Floats) -> Bools: ...


class Network(Protocol):
    """What there is to know about the network."""

    @property
    def costs(self) -> CostModel: ...

    @property
    def full_cost(self) -> Cost: ...

    @property
    def guards(self) -> Holder: ...


class Pressure(nn.Module):
    """The state of the budget's side of training; all of it is in ``state_dict``."""

    mean: torch.Tensor
    square: torch.Tensor
    speed: torch.Tensor
    seen: torch.Tensor
    push: torch.Tensor
    place: torch.Tensor
    weights: torch.Tensor
    progress: torch.Tensor  # at the last step
    asked_at: torch.Tensor  # progress at the last loss
    steps: torch.Tensor
    scale: torch.Tensor  # of the data loss's gradient
    passes: torch.Tensor  # backward passes since the last step
    pushed: torch.Tensor  # how often the push entered them
    prices: torch.Tensor  # one per limit

    def __init__(self, bank: GateBank, target: Target, network: Callable[[], Network]) -> None:
        super().__init__()
        self.network, self.target = network, target
        self.schedule, self.steering = "sigmoid", Steering()
        object.__setattr__(self, "bank", bank)  # not a submodule: it has its own place
        start = bank.log_alpha.detach()
        # of the gradient and its square; travel per progress; gradient since the last step, and the budget's part in it
        for name in ("mean", "square", "speed", "seen", "push"):
            self.register_buffer(name, torch.zeros_like(start))
        self.register_buffer("place", start.clone())  # of the gates after their last step
        self.register_buffer("weights", start.new_zeros(len(target.limits), start.numel()))
        for name in NUMBERS:
            self.register_buffer(name, torch.zeros((), dtype=torch.float64, device=start.device))
        self.register_buffer("prices", self.progress.new_full((len(target.limits),), self.steering.price))
        self.register_load_state_dict_pre_hook(_name)  # type: ignore[no-untyped-call]
        self._counted: tuple[CostModel, Bools, Cost] | None = None  # the last net that was, and what it costs
        self._channels: dict[str, float] = {}  # what the cheapest channel costs, where that was asked for
        self._seen_by: Any = None  # the parameter that has our hook, by a weak reference

    bank: GateBank

    @torch.no_grad()
    def steer(self, steering: Steering) -> None:
        """Begin with these settings."""
        self.steering = steering
        self.prices.fill_(steering.price)
        if steering.start == "random":
            self.place.copy_(self.bank.log_alpha.uniform_(0, UNIFORM))

    # ------------------------------------------------------------ the gates' own steps

    def _watch(self, gates: nn.Parameter) -> None:
        """Loading a state dict or moving a module may put another parameter in its place."""
        if self._seen_by is None or self._seen_by() is not gates:
            gates.register_hook(self._see)
            self._seen_by = weakref.ref(gates)

    def _see(self, gradient: torch.Tensor) -> torch.Tensor:
        """Every backward pass comes by here, also in micro-batches. Nothing is left to clip or, unless the gates are to
        be moved by it, for an optimizer."""
        with torch.no_grad():
            self.seen.add_(gradient.detach())
            self.passes.add_(1)
            return torch.zeros_like(gradient) if self.steering.own_steps else gradient

    @torch.no_grad()
    def step(self, progress: float) -> None:
        """Training is at ``progress``: move the gates by what was seen since the last call."""
        gates = self.bank.log_alpha
        numbers = (self.progress, self.steps, self.scale, self.passes, self.pushed)
        last, steps, scale, passes, pushed = torch.stack(numbers).tolist()  # waits for the device once
        passed = progress - last
        if passes == 0 or passed <= 0:
            if passed < 0 or passes == 0:
                self.progress.fill_(progress)
            return
        if self.steering.own_steps:
            gates.copy_(self.place)  # whatever an optimizer did to them
        gradient = self._together(self.seen.clone()) / (pushed or 1.0)  # a gradient scaler multiplies both parts
        self.seen.zero_()
        self.progress.fill_(progress)
        self.passes.zero_(), self.pushed.zero_()
        alive = gates > CLOSED_AT
        felt = torch.where(alive, gradient - self.push if pushed else gradient, 0.0)
        about = (torch.isfinite(gradient).all(), felt.square().sum(), alive.sum())
        finite, squares, number = torch.stack([each.double() for each in about]).tolist()  # and here once more
        if not finite:
            return
        size = math.sqrt(squares / number) if number else 0.0
        steps += 1
        beta = min(BETA_1, math.exp(-passed / MEMORY))
        self.mean.lerp_(gradient, 1 - beta)
        self.square.lerp_(gradient.square(), 1 - BETA_2)
        root = (self.square / (1 - BETA_2**steps)).sqrt() + 1e-30
        direction = (self.mean / (1 - beta**steps) / root).clamp(-1, 1)
        if self.steering.own_steps:
            gates.sub_(min(self.steering.speed * passed, LONGEST) * direction).clamp_(LOWEST, HIGHEST)
        self.speed.lerp_((gates - self.place) / passed, 1 - math.exp(-passed / SMOOTH))
        gates.copy_(torch.where(self.bank.kept(), gates.clamp(min=KEPT_AT), gates))
        self.place.copy_(gates)
        self.steps.fill_(steps)
        self.scale.fill_(size if steps == 1 else BETA_SCALE * scale + (1 - BETA_SCALE) * size)

    def _together(self, gradient: torch.Tensor) -> torch.Tensor:
        """Every process sees its part of the batch; all move the gates alike."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(gradient)
            gradient = gradient / dist.get_world_size()
        return gradient

    # ------------------------------------------------------------ the loss

    def budgets(self, progress: float) -> list[float]:
        """The sliding budget b of each limit."""
        full, hardness = self.network().full_cost, self.steering.hardness
        return [
            sliding(full[name], share * full[name], progress, self.schedule, hardness)
            for name, share in self.target.limits
        ]

    def _interval(self, number: int, b: float) -> tuple[float, float]:
        """Where the barrier rises: around b, or from just below the target, where the paper has its a, to b."""
        if self.steering.interval == "sliding":
            return (1 - self.steering.margin) * b, (1 + self.steering.margin) * b
        name, share = self.target.limits[number]
        full = self.network().full_cost[name]
        return fixed_end(full, share * full, self._channel(name)), b

    def _channel(self, name: str) -> float:
        if name not in self._channels:
            (size,) = sizes(self.network().costs, self.place.numel(), [name])
            self._channels[name] = smallest(size)
        return self._channels[name]

    def _cost(self, log_alpha: Floats) -> list[float]:
        """What the net costs whose gates stand there. From one step to the next that is often the same net."""
        network = self.network()
        costs, opened = network.costs, network.guards.hold(log_alpha > CLOSED_AT, log_alpha)
        if self._counted is None or self._counted[0] is not costs or not np.array_equal(self._counted[1], opened):
            self._counted = costs, opened, costs.exact(opened)
        return [self._counted[2][name] for name, _ in self.target.limits]

    def loss(self) -> torch.Tensor:
        """λ f L_S / V_F, summed over the limits; its gradient presses on the gates."""
        gates = self.bank.log_alpha
        if not gates.requires_grad:
            raise OptionError(
                "the gates are frozen, so the budget cannot move them",
                fix="write net.bank.log_alpha.requires_grad_(True) after freezing what you meant to freeze",
            )
        self._watch(gates)
        steering, limits = self.steering, len(self.target.limits)
        # All that is wanted of the device comes here at once, and goes back at once: between them nothing waits.
        numbers = torch.stack((self.progress, self.asked_at, self.steps, self.scale))
        parts = (numbers, self.prices, gates.detach(), self.speed, self.weights.reshape(-1))
        host = torch.cat([part.to(numbers) for part in parts]).cpu().numpy()
        (progress, last, steps, scale), prices, place, speed, weights = np.split(
            host, np.cumsum([4, limits, gates.numel(), gates.numel()])
        )
        weights = weights.reshape(limits, -1)
        p, alive = probability(torch.from_numpy(place)).numpy(), place > CLOSED_AT
        if steps % REFRESH == 0 or not weights.any():
            weights = self._weigh(p)
        heading = place + speed * min(steering.ahead, 1 - progress)
        push, total = np.zeros_like(place), 0.0
        budgets = self.budgets(min(progress + steering.ahead, 1.0))
        for number, (cost, b) in enumerate(zip(self._cost(heading), budgets, strict=True)):
            error = min(max((cost - b) / b, -0.5), 0.5)
            rise = math.exp(steering.gain * error * max(progress - last, 0))
            prices[number] = min(max(prices[number] * rise, 1e-4), 1e3)
            slope = weights[number] * p * (1 - p)
            size = float(np.sqrt(np.square(slope[alive]).mean())) if alive.any() else 0.0
            f = barrier(cost, *self._interval(number, b), steering.ceiling)
            force = min(2 * prices[number] * f, steering.ceiling)
            if steering.scaled:
                force = force * scale / size if size > 0 else 0.0
            push += force * slope
            total += force * (weights[number] * p).sum()
        back = torch.from_numpy(np.concatenate([[progress, total], prices, push])).to(gates.device)
        self.asked_at.copy_(back[0])
        self.prices.copy_(back[2 : 2 + limits])
        back = back.to(gates.dtype)
        return _Press.apply(gates, back[2 + limits :], back[1], self)  # type: ignore[no-any-return, no-untyped-call]

    def _weigh(self, p: Floats) -> Floats:
        """What another bit of each gate costs, in the expectation over all gates: the gradient of L_S / V_F."""
        network, names = self.network(), [name for name, _ in self.target.limits]
        slopes = network.costs.slopes(torch.from_numpy(p), names)
        weights = torch.stack([slope / network.full_cost[name] for name, slope in zip(names, slopes, strict=True)])
        self.weights.copy_(weights)
        found: Floats = weights.numpy()
        return found


def _name(pressure: Pressure, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Early states have the numbers in one tensor."""
    dials = state.pop(f"{prefix}dials", None)
    if dials is not None:
        state.update({prefix + name: dials[place] for place, name in enumerate(NUMBERS)})
        state[f"{prefix}prices"] = dials[len(NUMBERS) :]


class _Press(torch.autograd.Function):
    """A number whose gradient is given; notes how strongly the backward pass asks for it."""

    @staticmethod
    def forward(ctx: Any, gates: torch.Tensor, push: torch.Tensor, total: torch.Tensor, pressure: Pressure) -> Any:
        ctx.push, ctx.pressure = push, pressure
        return total.clone()

    @staticmethod
    def backward(ctx: Any, asked: torch.Tensor) -> Any:
        ctx.pressure.push.copy_(ctx.push)
        ctx.pressure.pushed.add_(asked)
        return ctx.push * asked, None, None, None
