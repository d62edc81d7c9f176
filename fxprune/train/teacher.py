"""A teacher whose outputs for a fixed dataset are computed once and kept in a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from fxprune.errors import DataError, OptionError, RunError
from fxprune.files import as_path, told
from fxprune.latency.stopwatch import device_of
from fxprune.modules import copy_module
from fxprune.run.checkpoint import load, save
from fxprune.torch_private import tree_leaves
from fxprune.train.data import Batches, call, explained
from fxprune.train.reproduce import checksum, preserved


class Indexed(Dataset[Any]):
    """The same samples with the targets (target, index of the sample)."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        inputs, target = self.dataset[index]
        return inputs, (target, index)


class CachedTeacher:
    """A teacher's logits for every sample of a dataset that does not augment, computed once and mapped from disk.

    ``teacher.dataset`` gives ``(inputs, (target, index))``: make the training loader from it, and hand the teacher to
    ``fxprune.prune(..., teacher=teacher)``; in a loop of your own, ``teacher(index)`` are the logits. The file is
    computed again when the teacher's weights, the number of samples, or what the teacher says of a few of them change.
    Under augmentation a teacher must see what the student sees: hand over the module itself.

    >>> import tempfile
    >>> data = torch.utils.data.TensorDataset(torch.randn(5, 3), torch.zeros(5).long())
    >>> net = nn.Linear(3, 2)
    >>> teacher = CachedTeacher(net, data, Path(tempfile.mkdtemp()) / "logits.pt")
    >>> inputs, (label, index) = teacher.dataset[4]
    >>> torch.allclose(teacher(torch.tensor([index])), net(inputs[None]))
    True
    """

    def __init__(
        self,
        teacher: nn.Module,
        dataset: Any,
        file: str | os.PathLike[str],
        *,
        pair: Callable[[Any], torch.Tensor] | None = None,
        batch_size: int = 128,
    ) -> None:
        path = as_path(file, "file")
        self.dataset = Indexed(dataset)
        self.identity = checksum(teacher)
        _check_fixed(dataset)
        cached = _read(path)
        if cached is None or not self._is_of(cached, teacher, dataset, pair):
            logits = _computed(teacher, dataset, pair, batch_size)
            _write(path, {"teacher": self.identity, "logits": logits})
            cached = load(path, mapped=True)
        self.logits: torch.Tensor = cached["logits"]

    def _is_of(self, cached: dict[str, Any], teacher: nn.Module, dataset: Any, pair: Any) -> bool:
        """Whether the file is of this teacher, and agrees with it on a few samples."""
        if cached.get("teacher") != self.identity or len(cached["logits"]) != len(dataset):
            return False
        some = sorted({len(dataset) * part // 8 for part in range(8)} | {len(dataset) - 1})
        kept, again = cached["logits"][some], _computed(teacher, Subset(dataset, some), pair, len(some))
        alike = kept.shape == again.shape and kept.dtype == again.dtype
        return alike and torch.allclose(kept, again, rtol=1e-3, atol=1e-3)

    def __call__(self, index: torch.Tensor) -> torch.Tensor:
        """The logits of these samples."""
        return self.logits[index.cpu()].to(index.device)


def _read(path: Path) -> dict[str, Any] | None:
    with told("read", path, RunError):
        if not path.exists():
            return None
    cached = load(path, mapped=True)
    if not isinstance(cached.get("logits"), torch.Tensor) or not cached["logits"].ndim:
        raise RunError(f"{path} holds something else than a teacher's logits", fix="name another file")
    return cached


def _write(path: Path, state: dict[str, Any]) -> None:
    """Write the file; other processes may do so at the same time."""
    with told("written", path, RunError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            save(path, state, alone=False)
        except RunError as error:
            raise RunError(f"{path} cannot be written", fix="make room on the disk, or name another file") from error


def _check_fixed(dataset: Any) -> None:
    """Raise unless a few samples are the same when they are read twice."""
    if isinstance(dataset, DataLoader):
        raise DataError("the dataset is a loader", fix="give the dataset itself: loader.dataset")
    if len(dataset) == 0:
        raise DataError("the dataset is empty", fix="look at len(dataset)")
    for index in {0, len(dataset) // 2, len(dataset) - 1}:
        one, other = (tree_leaves(dataset[index]) for _ in range(2))
        for a, b in zip(one, other, strict=True):
            if isinstance(a, (torch.Tensor, np.ndarray, float, int)) and not np.array_equal(a, b):
                raise DataError(
                    f"sample {index} is another one each time: the dataset augments, and cached logits would not fit",
                    fix="hand over the teacher itself, teacher=module, or a dataset that does not augment",
                )


def _computed(
    teacher: nn.Module, dataset: Any, pair: Callable[[Any], torch.Tensor] | None, batch_size: int
) -> torch.Tensor:
    net = copy_module(teacher).eval()
    place, rows = device_of(net), []
    with torch.no_grad(), preserved():
        for _, batch in Batches(DataLoader(dataset, batch_size), "the dataset").epoch(0, "teacher"):
            with explained("a sample", "the teacher", fix="a dataset gives single samples, not batches"):
                output = call(net, batch.to(place).inputs)
            logits = pair(output) if pair is not None else output
            if not isinstance(logits, torch.Tensor):
                raise OptionError(
                    f"the teacher's output is of type {type(logits).__name__}, not a tensor",
                    fix='write pair=lambda out: out["logits"]',
                )
            rows.append(logits.cpu())
    return torch.cat(rows)
