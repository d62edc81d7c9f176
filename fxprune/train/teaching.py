"""The data loss of a batch: labels, and what a teacher says about them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fxprune.errors import DataError, OptionError
from fxprune.train.cached import CachedTeacher
from fxprune.train.data import Batch, call
from fxprune.train.distillation import check_labels, check_logits, distillation_loss

Teacher = nn.Module | CachedTeacher | None


class Teaching:
    """``loss(output, target)`` or ``loss(output, target, taught)``; by default cross entropy or distillation."""

    def __init__(
        self, loss: Callable[..., torch.Tensor] | None, teacher: Teacher, alpha: float, temperature: float
    ) -> None:
        self.loss, self.teacher = loss, teacher
        self.alpha, self.temperature = alpha, temperature
        self.listens = loss is None or takes_teacher(loss)

    def __call__(self, net: nn.Module, batch: Batch) -> torch.Tensor:
        output = call(net, batch.inputs)
        target, taught = self._taught(batch)
        if self.loss is not None:
            found = self.loss(output, target, taught) if self.listens else self.loss(output, target)
            return _number(found)
        if taught is not None:
            return distillation_loss(output, taught, target, self.alpha, self.temperature)
        check_logits(output, "the model's output", "loss=lambda output, target: ...")
        check_labels(output, target)
        return F.cross_entropy(output, target)

    def _taught(self, batch: Batch) -> tuple[Any, Any]:
        """The target, and the teacher's output."""
        if isinstance(self.teacher, CachedTeacher):
            if not isinstance(batch.target, (tuple, list)) or len(batch.target) != 2:
                raise DataError(
                    "the training batches do not say which samples they hold, and the teacher's logits are cached",
                    fix="make the training loader from the teacher's dataset: DataLoader(teacher.dataset, ...)",
                )
            target, index = batch.target
            return target, self.teacher(index)
        if self.teacher is None or not self.listens:
            return batch.target, None
        with torch.no_grad():
            return batch.target, call(self.teacher, batch.inputs)


def takes_teacher(loss: Callable[..., Any]) -> bool:
    """Whether a third positional argument is required.

    >>> takes_teacher(lambda output, target: 0), takes_teacher(lambda output, target, teacher: 0)
    (False, True)
    """
    if isinstance(loss, nn.Module):
        loss = loss.forward
    try:
        parameters = inspect.signature(loss).parameters.values()
    except (TypeError, ValueError):  # some builtins have none
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters) > 2


def _number(found: Any) -> torch.Tensor:
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        what = f"a tensor of {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise OptionError(f"the loss returned {what}, not one number", fix="return loss.mean()")
    return found.reshape(())
