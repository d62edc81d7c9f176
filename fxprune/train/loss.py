"""The data loss of a batch, from its labels and the outputs of a teacher."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fxprune.errors import DataError, OptionError
from fxprune.train.data import Batch, call
from fxprune.train.teacher import CachedTeacher


def distillation_loss(
    student: Any,
    teacher: Any,
    labels: torch.Tensor,
    alpha: float = 0.9,
    temperature: float = 4.0,
    *,
    pair: Callable[[Any], torch.Tensor] | None = None,
    ignore_index: int = -100,
) -> torch.Tensor:
    """(1 - alpha) CE(student, labels) + alpha T² CE(student / T, softmax(teacher / T)), a mean over all labels.

    The outputs are logits with the classes along axis 1: one label per sample, or maps of labels (segmentation), where
    ``ignore_index`` marks places that do not count. Other outputs are taken apart by ``pair``, which is called with the
    student's output and with the teacher's and returns the logits.

    >>> logits = torch.tensor([[4.0, 0.0], [0.0, 4.0]])
    >>> round(float(distillation_loss(logits, logits, torch.tensor([0, 1]))), 3)
    8.386
    >>> out = {"logits": logits}
    >>> round(float(distillation_loss(out, out, torch.tensor([0, 1]), alpha=0.0, pair=lambda out: out["logits"])), 3)
    0.018
    """
    check_weights(alpha, temperature)
    if pair is not None:
        student, teacher = pair(student), pair(teacher)
    for output, whose in ((student, "student"), (teacher, "teacher")):
        check_logits(output, f"the {whose}'s output", 'pair=lambda out: out["logits"]')
    if student.shape != teacher.shape:
        raise OptionError(
            f"the student's output is {shape(student)}, the teacher's {shape(teacher)}",
            fix="use a teacher for the same classes, or distillation_loss(..., pair=...) to make the two alike",
        )
    check_labels(student, labels, ignore_index)
    counted = labels != ignore_index
    many = counted.sum().clamp(min=1)  # without any label the loss is 0, not NaN
    hard = F.cross_entropy(student, labels, ignore_index=ignore_index, reduction="sum") / many
    if alpha == 0:
        return hard
    taught = torch.softmax(teacher.detach() / temperature, 1)
    soft = F.cross_entropy(student / temperature, taught, reduction="none")
    return (1 - alpha) * hard + alpha * temperature**2 * (soft * counted).sum() / many


def check_weights(alpha: float, temperature: float) -> None:
    """Check the two numbers of distillation."""
    if not 0 <= alpha <= 1:
        raise OptionError(f"alpha={alpha!r} is not between 0 and 1", fix="write alpha=0.9")
    if not temperature > 0:
        raise OptionError(f"temperature={temperature!r} is not above 0", fix="write temperature=4.0")


def check_logits(output: Any, what: str, fix: str) -> None:
    """Check that it is a tensor with a class axis."""
    if not isinstance(output, torch.Tensor):
        raise OptionError(f"{what} is of type {type(output).__name__}, not a tensor of logits", fix=f"write {fix}")
    if output.ndim < 2:
        raise OptionError(f"{what} is {shape(output)}: there are no classes along axis 1", fix=f"write {fix}")


def check_labels(output: torch.Tensor, labels: Any, ignore_index: int = -100) -> None:
    """Check that there is one label (int64, of an existing class) for each vector of logits."""
    if not isinstance(labels, torch.Tensor):
        raise OptionError(f"the labels are of type {type(labels).__name__}, not a tensor", fix="give a tensor of int64")
    wanted = (output.shape[0], *output.shape[2:])
    if tuple(labels.shape) != wanted or labels.dtype != torch.int64:
        kind = str(labels.dtype).removeprefix("torch.")
        raise OptionError(
            f"labels of {shape(labels)} ({kind}) do not fit an output of {shape(output)}",
            fix=f"give int64 labels of {'x'.join(map(str, wanted))}: one for each vector of logits along axis 1",
        )
    wrong = labels[((labels < 0) | (labels >= output.shape[1])) & (labels != ignore_index)]
    if wrong.numel():
        raise OptionError(
            f"there is a label {int(wrong.reshape(-1)[0])}, but the output has {output.shape[1]} classes",
            fix=f"number the classes from 0; {ignore_index} marks labels that do not count",
        )


def shape(tensor: torch.Tensor) -> str:
    """
    >>> shape(torch.zeros(2, 3))
    '2x3'
    """
    return "x".join(map(str, tensor.shape)) or "a single number"


@dataclass(frozen=True)
class Teaching:
    """``loss(output, target)`` or ``loss(output, target, taught)``; by default cross entropy or distillation."""

    loss: Callable[..., torch.Tensor] | None
    teacher: nn.Module | CachedTeacher | None
    alpha: float
    temperature: float

    def __call__(self, net: nn.Module, batch: Batch) -> torch.Tensor:
        output = call(net, batch.inputs)
        target, taught = self._taught(batch)
        if self.loss is not None:
            value: Any = self.loss(output, target, taught) if self._listens else self.loss(output, target)
            if not isinstance(value, torch.Tensor) or value.numel() != 1:
                is_tensor = isinstance(value, torch.Tensor)
                what = f"a tensor of {tuple(value.shape)}" if is_tensor else type(value).__name__
                raise OptionError(f"the loss returned {what}, not one number", fix="return loss.mean()")
            return value.reshape(())
        if taught is not None:
            return distillation_loss(output, taught, target, self.alpha, self.temperature)
        check_logits(output, "the model's output", "loss=lambda output, target: ...")
        check_labels(output, target)
        return F.cross_entropy(output, target)

    @cached_property
    def _listens(self) -> bool:
        return self.loss is None or takes_teacher(self.loss)

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
        if self.teacher is None or not self._listens:
            return batch.target, None
        with torch.no_grad():
            return batch.target, call(self.teacher, batch.inputs)


def takes_teacher(loss: Callable[..., Any]) -> bool:
    """Whether a third positional argument is required.

    >>> takes_teacher(lambda output, target: 0), takes_teacher(lambda output, target, teacher: 0)
    (False, True)
    """
    try:
        signature = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss)
    except (TypeError, ValueError):  # some builtins have none
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in signature.parameters.values()) > 2
