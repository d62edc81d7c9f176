"""What a run is asked to do, checked before anything is trained, and how two runs are told apart."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fxprune.errors import OptionError, check_choice
from fxprune.gated.bank import NOISES
from fxprune.gated.barrier import SCHEDULES
from fxprune.methods import METHODS
from fxprune.train.loss import takes_teacher
from fxprune.train.teacher import CachedTeacher

TEACHERS = ("self", "train")
Groups = list[dict[str, Any]]
MakeOptimizer = Callable[[Groups], torch.optim.Optimizer]


def adam(groups: Groups) -> torch.optim.Optimizer:
    """The paper's optimizer."""
    return torch.optim.Adam(groups, lr=1e-3, weight_decay=5e-4)


@dataclass(frozen=True)
class Settings:
    """Everything about a run except the networks and the data."""

    epochs: tuple[int, int, int]
    method: str
    method_options: Mapping[str, Any]
    teacher: nn.Module | CachedTeacher | str | None
    optimizer: MakeOptimizer
    loss: Callable[..., torch.Tensor] | None
    metric_fn: Any
    noise: str
    schedule: str
    alpha: float
    temperature: float
    seed: int
    checkpoint_minutes: float

    def check(self) -> None:
        check_choice("method", self.method, METHODS)
        if not isinstance(self.method_options, Mapping):
            raise OptionError(f"method_options={self.method_options!r} is no dict", fix='write {"strength": 0.1}')
        check_choice("noise", self.noise, NOISES)
        check_choice("schedule", self.schedule, SCHEDULES)
        if not are_epochs(self.epochs):
            raise OptionError(
                f"epochs={self.epochs!r} is not what three phases take",
                fix="write epochs=(80, 40, 10): pruning (at least 1), fine-tuning, and that at a tenth of the rate",
            )
        if self.teacher not in TEACHERS and not isinstance(self.teacher, (nn.Module, CachedTeacher, type(None))):
            raise OptionError(
                f"teacher={self.teacher!r} is unknown" if isinstance(self.teacher, str)
                else f"teacher is of type {type(self.teacher).__name__}",
                fix='give a module, "self" (the model as it comes), "train" (train it first) or None (in TOML "none")',
            )  # fmt: skip
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise OptionError(f"seed={self.seed!r} is not a whole number", fix="write seed=0")
        if isinstance(self.alpha, (int, float)) and not 0 <= self.alpha <= 1:
            raise OptionError(f"alpha={self.alpha!r} is not between 0 and 1", fix="write alpha=0.9")
        if self.temperature == 0:
            raise OptionError("temperature=0 is not above 0", fix="write temperature=4.0")
        for name in ("alpha", "temperature", "checkpoint_minutes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= sys.float_info.max:
                raise OptionError(f"{name}={value!r} is not a number that makes sense", fix=f"leave {name} out")
        for name in ("loss", "metric_fn"):
            value = getattr(self, name)
            if isinstance(value, type):
                raise OptionError(f"{name} is the class {value.__name__}", fix=f"make one: {name}={value.__name__}()")
            if value is not None and not callable(value) and not hasattr(value, "update"):
                kind = type(value).__name__
                raise OptionError(f"{name} is of type {kind}", fix=f"write {name}=lambda output, target: ...")
        if isinstance(self.optimizer, str):
            raise OptionError(
                f"optimizer={self.optimizer!r} is a text",
                fix="write optimizer=lambda groups: torch.optim.Adam(groups, lr=1e-3)",
            )
        if not callable(self.optimizer):
            kind = type(self.optimizer).__name__
            raise OptionError(
                f"optimizer is of type {kind}: it holds the parameters of one network, and several are trained",
                fix=f"write optimizer=lambda groups: torch.optim.{kind}(groups, lr=1e-3)",
            )
        given = isinstance(self.teacher, (nn.Module, CachedTeacher))
        if given and self.loss is not None and not takes_teacher(self.loss):
            raise OptionError(
                "there is a teacher, but the loss takes no output of it",
                fix="write loss=lambda output, target, taught: ..., or teacher=None",
            )

    def make_optimizer(self, groups: Groups) -> torch.optim.Optimizer:
        """The user's, of these parameters and no others."""
        made = self.optimizer([dict(group) for group in groups])
        if not isinstance(made, torch.optim.Optimizer):
            raise OptionError(
                f"optimizer returned {type(made).__name__}, not an optimizer",
                fix="write optimizer=lambda groups: torch.optim.Adam(groups, lr=1e-3)",
            )
        wanted = {id(parameter) for group in groups for parameter in group["params"]}
        if not wanted & {id(parameter) for group in made.param_groups for parameter in group["params"]}:
            raise OptionError(
                "optimizer holds none of the parameters that are to be trained",
                fix="give it those that it is called with: optimizer=lambda groups: torch.optim.Adam(groups, lr=1e-3)",
            )
        return made

    def facts(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """What must be the same to go on with a run."""
        plain = (bool, int, float, str, tuple, list, type(None))
        options = {name: value for name, value in optimizer.defaults.items() if isinstance(value, plain)}
        return {
            "epochs": list(self.epochs),
            "method": self.method,
            "method_options": {name: _plain(value) for name, value in self.method_options.items()},
            "optimizer": f"{type(optimizer).__name__}({', '.join(f'{k}={v}' for k, v in options.items())})",
            "noise": self.noise,
            "schedule": self.schedule,
            "alpha": float(self.alpha),
            "temperature": float(self.temperature),
            "seed": self.seed,
        }


def _plain(value: Any) -> Any:
    """A number of numpy's as one of Python's: a checkpoint holds no others."""
    return value.item() if isinstance(value, np.generic) else value


def three(epochs: Any) -> tuple[int, int, int]:
    """As a tuple, whatever sequence it came in; ``check`` looks at what is in it."""
    given: Any = epochs
    return tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else given


def are_epochs(given: Any, many: int = 3) -> bool:
    """Of so many phases, or of a teacher's two; of three, the first prunes.

    >>> are_epochs((1, 0, 0)), are_epochs((0, 1, 1)), are_epochs([0, 4], 2)
    (True, False, True)
    """
    whole = isinstance(given, (tuple, list)) and all(isinstance(n, int) and not isinstance(n, bool) for n in given)
    return whole and len(given) == many and min(given) >= 0 and (many < 3 or given[0] > 0)
