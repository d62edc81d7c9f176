"""What a run is asked to do, checked before anything is trained, and the facts that tell two runs apart."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fxprune.cost.model import LATENCY, METRICS
from fxprune.count import batch_size
from fxprune.errors import OptionError, check_choice
from fxprune.gated.bank import NOISES
from fxprune.gated.barrier import SCHEDULES
from fxprune.gated.wrapped import Wrapped
from fxprune.methods import METHODS
from fxprune.train.loss import check_weights, takes_teacher
from fxprune.train.reproduce import checksum
from fxprune.train.teacher import CachedTeacher

TEACHERS = ("self", "train")
_OPTIMIZER = "write optimizer=lambda groups: torch.optim.Adam(groups, lr=1e-3)"
CHOICES = {"metric": (*METRICS, LATENCY), "noise": NOISES, "schedule": SCHEDULES}  # one of a few values
Groups = list[dict[str, Any]]
MakeOptimizer = Callable[[Groups], torch.optim.Optimizer]


def adam(groups: Groups) -> torch.optim.Optimizer:
    """The optimizer of the paper."""
    return torch.optim.Adam(groups, lr=1e-3, weight_decay=5e-4)


@dataclass(frozen=True)
class Settings:
    """What a run is asked to do, except for the networks, the budget and the data."""

    epochs: Sequence[int]
    method: str
    method_options: Mapping[str, Any]
    teacher: nn.Module | CachedTeacher | str | None
    optimizer: MakeOptimizer
    loss: Callable[..., torch.Tensor] | None
    metric_fn: Any
    alpha: float
    temperature: float
    seed: int
    checkpoint_minutes: float

    def __post_init__(self) -> None:
        check_choice("method", self.method, METHODS)
        if not isinstance(self.method_options, Mapping):
            raise OptionError(f"method_options={self.method_options!r} is no dict", fix='write {"strength": 0.1}')
        if not are_epochs(self.epochs):
            raise OptionError(
                f"epochs={self.epochs!r} is not what three phases take",
                fix="write epochs=(80, 40, 10): pruning (at least 1), fine-tuning, and that at a tenth of the rate",
            )
        is_given = isinstance(self.teacher, (nn.Module, CachedTeacher))
        if not is_given and self.teacher not in (*TEACHERS, None):
            raise OptionError(
                f"teacher={self.teacher!r} is unknown" if isinstance(self.teacher, str)
                else f"teacher is of type {type(self.teacher).__name__}",
                fix='give a module, "self" (the model as it comes), "train" (train it first) or None (in TOML "none")',
            )  # fmt: skip
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise OptionError(f"seed={self.seed!r} is not a whole number", fix="write seed=0")
        for name in ("alpha", "temperature", "checkpoint_minutes"):
            value = getattr(self, name)
            fits = name == "alpha" or (isinstance(value, (int, float)) and 0 <= value <= sys.float_info.max)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not fits:
                raise OptionError(f"{name}={value!r} is not a number that makes sense", fix=f"leave {name} out")
        check_weights(self.alpha, self.temperature)
        for name, value in (("loss", self.loss), ("metric_fn", self.metric_fn)):
            if isinstance(value, type):
                raise OptionError(f"{name} is the class {value.__name__}", fix=f"make one: {name}={value.__name__}()")
            if value is not None and not callable(value) and not hasattr(value, "update"):
                kind = type(value).__name__
                raise OptionError(f"{name} is of type {kind}", fix=f"write {name}=lambda output, target: ...")
        if isinstance(self.optimizer, str):
            raise OptionError(f"optimizer={self.optimizer!r} is a text", fix=_OPTIMIZER)
        if not callable(self.optimizer):
            kind = type(self.optimizer).__name__
            raise OptionError(
                f"optimizer is of type {kind}: it holds the parameters of one network, and several are trained",
                fix=f"write optimizer=lambda groups: torch.optim.{kind}(groups, lr=1e-3)",
            )
        if is_given and self.loss is not None and not takes_teacher(self.loss):
            raise OptionError(
                "there is a teacher, but the loss takes no output of it",
                fix="write loss=lambda output, target, taught: ..., or teacher=None",
            )

    def make_optimizer(self, groups: Groups) -> torch.optim.Optimizer:
        """The user's optimizer, for these parameters."""
        optimizer = self.optimizer([dict(group) for group in groups])
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise OptionError(f"optimizer returned {type(optimizer).__name__}, not an optimizer", fix=_OPTIMIZER)
        wanted, held = (
            {id(parameter) for group in each for parameter in group["params"]}
            for each in (groups, optimizer.param_groups)
        )
        if not wanted & held:
            raise OptionError(
                "optimizer holds none of the parameters that are to be trained",
                fix="give it those that it is called with: optimizer=lambda groups: torch.optim.Adam(groups, lr=1e-3)",
            )
        return optimizer

    def facts(self, model: nn.Module, wrapped: Wrapped, batches: int) -> dict[str, Any]:
        """What must be the same to go on with a run."""
        optimizer = self.make_optimizer([{"params": [nn.Parameter(torch.zeros(1))]}])
        plain = (bool, int, float, str, tuple, list, type(None))
        defaults = [f"{name}={value}" for name, value in optimizer.defaults.items() if isinstance(value, plain)]
        teachers: dict[type, Callable[[Any], str]] = {
            type(None): lambda _: "none",
            str: lambda name: f"the model itself, {checksum(model)}" if name == "self" else name,
            CachedTeacher: lambda cached: cached.identity,
        }
        facts = {
            "model": type(model).__name__,
            "parameters": sum(p.numel() for p in model.parameters()),
            "budget": dict(wrapped.target.limits),
            "ignore": list(wrapped.options["ignore"]),
            "leaf": [leaf if isinstance(leaf, str) else leaf.__qualname__ for leaf in wrapped.options["leaf"]],
            "batches": batches,
            "teacher": teachers.get(type(self.teacher), checksum)(self.teacher),
            "epochs": list(self.epochs),
            "method": self.method,
            # a checkpoint holds numbers of Python, none of numpy
            "method_options": {k: v.item() if isinstance(v, np.generic) else v for k, v in self.method_options.items()},
            "optimizer": f"{type(optimizer).__name__}({', '.join(defaults)})",
            "noise": wrapped.options["noise"],
            "schedule": wrapped.options["schedule"],
            "alpha": float(self.alpha),
            "temperature": float(self.temperature),
            "seed": self.seed,
        }
        if LATENCY in facts["budget"]:
            facts["batch_size"] = batch_size(*wrapped.analysis.channels.trace.example)
        return facts


def are_epochs(given: Any, many: int = 3) -> bool:
    """Whether these are epochs of so many phases. Of three phases the first prunes: it has at least one.

    >>> are_epochs((1, 0, 0)), are_epochs((0, 1, 1)), are_epochs([0, 4], 2)
    (True, False, True)
    """
    whole = isinstance(given, Sequence) and all(isinstance(n, int) and not isinstance(n, bool) for n in given)
    return whole and len(given) == many and min(given) >= 0 and (many < 3 or given[0] > 0)
