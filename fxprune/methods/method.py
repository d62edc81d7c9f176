"""What a method is: it decides which channels die. Gates, costs, export and training are the same for all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from math import inf
from numbers import Real
from typing import Any, TypeVar

import torch

from fxprune.errors import OptionError, check_choice
from fxprune.gated.wrapped import Wrapped

METHODS: dict[str, type[Method]] = {}
Class = TypeVar("Class", bound="type[Method]")


class Method:
    """One object for one wrapped network and one training run.

    A loop gives its optimizer the ``parameter_groups``, calls ``advance`` before the first step and after every step,
    adds ``penalty`` to the loss, and calls ``decide`` at the end. A method of your own overrides what it needs, and is
    registered by a name:

    >>> import fxprune
    >>> from fxprune.methods import Method, register
    >>> @register("first")
    ... class First(Method):
    ...     '''Keeps the first filters of every layer.'''
    ...     def decide(self):
    ...         self.net.harden({name: -torch.arange(len(gate)) / len(gate) for name, gate in self.net.gates.items()})
    >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3))
    >>> wrapped = fxprune.wrap(net, 1/2, example_inputs=torch.zeros(1, 3, 8, 8))
    >>> First(wrapped).decide()
    >>> wrapped.gates["0"].mask.tolist()
    [True, True, True, False, False, False, False, False]
    """

    law = "hard-concrete"  # what is drawn for the gates
    searchable = False  # whether a strength decides how much is pruned
    looks_at = 0  # how many samples of the training data it wants to see before the first step
    in_checkpoint: tuple[str, ...] = ()  # names of attributes (tensors, numbers, texts) that are kept there

    def __init__(self, net: Wrapped) -> None:
        if not isinstance(net, Wrapped):
            raise OptionError(f"a method takes a wrapped network, not {type(net).__name__}", fix="call fxprune.wrap")
        if net.hardened:
            raise OptionError("the masks of this network are fixed already", fix="wrap the model anew")
        self.net = net
        net.set_law(self.law)

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """Raise a TypeError for options that the method does not have."""
        inspect.signature(cls).bind(None, **options)

    def parameter_groups(self, steps: int) -> list[dict[str, Any]]:
        """What the optimizer moves in a training of so many steps: the weights and, for some methods, the gates."""
        weights, _ = self.net.parameter_groups()
        return [weights]

    def look(self, batches: Sequence[Any]) -> None:
        """At inputs of the training data, before the first step: as many batches as hold ``looks_at`` samples."""

    def advance(self, progress: float) -> None:
        """Training is at ``progress``, from 0 to 1. The gradients of the last step are not cleared yet."""

    def penalty(self) -> torch.Tensor | None:
        """What to add to the loss of this step."""
        return None

    def decide(self) -> None:
        """Fix the masks, on budget."""
        self.net.harden()

    def allowed(self) -> dict[str, float]:
        """Per metric of the budget, the cost allowed at this moment, for the log."""
        full = self.net.full_cost()
        return {name: share * full[name] for name, share in self.shares().items()}

    def shares(self) -> dict[str, float]:
        """The same, as fractions of the full cost."""
        return dict(self.net.target.limits)

    def state_dict(self) -> dict[str, Any]:
        """What the state of the network does not hold: tensors, numbers and texts."""
        return {name: getattr(self, name) for name in self.in_checkpoint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from that state."""
        for name in self.in_checkpoint:
            setattr(self, name, state[name])


def register(name: str) -> Callable[[Class], Class]:
    """Register a method by a name, for ``prune(method=name)`` and TOML files."""

    def add(method: Class) -> Class:
        METHODS[name] = method
        return method

    return add


def make_method(name: str, net: Wrapped, options: Mapping[str, Any]) -> Method:
    """The method of that name for a network."""
    check_choice("method", name, METHODS)
    try:
        METHODS[name].check_options(options)
    except TypeError as error:
        raise OptionError(
            f"method {name!r} cannot take method_options={options!r}: {error}",
            fix="look them up in docs/reference/methods.md",
        ) from error
    return METHODS[name](net, **options)


def positive(name: str, value: Any) -> float:
    """An option that is a number above 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < inf:
        raise OptionError(f"{name}={value!r} is not a number above 0", fix=f"write {name}=1.0, or leave it out")
    return float(value)


def check_progress(progress: Any) -> float:
    """How far training is: a number from 0 to 1."""
    if isinstance(progress, bool) or not isinstance(progress, Real) or not 0 <= float(progress) <= 1:
        raise OptionError(f"progress {progress!r} is not between 0 and 1", fix="write advance(step / steps)")
    return float(progress)
