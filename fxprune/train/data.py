"""Batches: what a loader gives, checked, moved to a device, and in the same order whenever an epoch is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fxprune.errors import DataError, FxPruneError, OptionError, first_line, named, said
from fxprune.torch_private import stop_workers, tree_leaves, tree_map
from fxprune.train.reproduce import seed_all


@dataclass(frozen=True)
class Batch:
    inputs: Any
    target: Any

    @property
    def size(self) -> int:
        """Number of samples: the length of the first axis of the first tensor."""
        leaves = tree_leaves((self.inputs, self.target))
        first = next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor)), torch.zeros(()))
        return int(first.shape[0]) if first.ndim else 1

    def to(self, device: torch.device) -> Batch:
        def moved(leaf: Any) -> Any:
            return leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf

        return Batch(tree_map(moved, self.inputs), tree_map(moved, self.target))


def call(net: nn.Module | Callable[..., Any], inputs: Any) -> Any:
    """Call with one argument (a tensor), several (a tuple or list) or keyword arguments (a dict)."""
    if isinstance(inputs, dict):
        return net(**inputs)
    return net(*inputs) if isinstance(inputs, (tuple, list)) else net(inputs)


@contextmanager
def explained(
    what: str, whom: str, fix: str = "call them with that batch yourself to see the whole error"
) -> Iterator[None]:
    """Make an error of the user's code say which batch it was."""
    try:
        yield
    except FxPruneError:
        raise
    except Exception as error:
        raise DataError(f"{what} does not fit {whom}: {named(error)}", fix=fix) from error


def example_of(batch: Batch, batch_size: int | None = None) -> Any:
    """The inputs of the first ``batch_size`` samples (by default two), for tracing and for taking times. If the batch
    has fewer, samples are repeated."""
    many = batch.size
    wanted = min(2, many) if batch_size is None else batch_size
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise OptionError(f"batch_size={wanted!r} is no number of samples", fix="write batch_size=32")

    def cut(leaf: Any) -> Any:
        fits = isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[0] == many
        return leaf[torch.arange(wanted, device=leaf.device) % many] if fits else leaf

    inputs = tuple(batch.inputs) if isinstance(batch.inputs, list) else batch.inputs
    return tree_map(cut, inputs)


class Batches:
    """A loader. Its order, its workers' seeds and all other random numbers depend only on the key of an epoch.

    >>> data = torch.utils.data.TensorDataset(torch.arange(4.0), torch.arange(4))
    >>> batches = Batches(torch.utils.data.DataLoader(data, batch_size=2, shuffle=True), "train")
    >>> whole = [(number, batch.target.tolist()) for number, batch in batches.epoch(0, 7)]
    >>> whole[1:] == [(number, batch.target.tolist()) for number, batch in batches.epoch(0, 7, first=1)]
    True
    """

    def __init__(self, loader: Any, name: str) -> None:
        self.loader, self.name = loader, name
        if not hasattr(loader, "__iter__"):
            raise DataError(f"{name} is of type {type(loader).__name__} and gives no batches", fix="give a DataLoader")
        try:
            self._count = len(loader)
        except TypeError as error:
            raise DataError(
                f"{name} does not say how many batches it has, and the budget slides with the steps",
                fix="give it a length: def __len__(self): return batches_per_epoch",
            ) from error
        if self._count == 0:
            fix = "look at its dataset, batch_size and drop_last: len(loader)"
            raise DataError(f"{name} is empty: it has no batch", fix=fix)
        parts = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
        parts.append(getattr(parts[2], "sampler", None))
        self._ordered = [part for part in parts if hasattr(part, "set_epoch")]
        generators = (getattr(part, "generator", None) for part in parts)
        self.generators = list(dict.fromkeys(each for each in generators if isinstance(each, torch.Generator)))

    def __len__(self) -> int:
        return self._count

    def epoch(self, epoch: int, *key: int | str, first: int = 0) -> Iterator[tuple[int, Batch]]:
        """The batches from number ``first`` on, each with its number."""
        if first >= self._count:
            return
        stop_workers(self.loader)
        seed_all(*key, epoch, generators=self.generators)
        for part in self._ordered:
            part.set_epoch(epoch)
        iterator = iter(self.loader)
        for number in range(self._count):
            seed_all(*key, epoch, number)
            batch = self._fetch(iterator, number)
            if number >= first:
                yield number, self._checked(batch)

    def first(self) -> Batch:
        """One batch, to look at."""
        return next(self.epoch(0, "example"))[1]

    def some(self, samples: int, device: torch.device, *key: int | str) -> list[Any]:
        """The inputs of as many batches as hold so many samples."""
        found, count = [], 0
        for _, batch in self.epoch(0, *key):
            found.append(batch.to(device).inputs)
            count += batch.size
            if count >= samples:
                break
        return found

    def _fetch(self, iterator: Iterator[Any], number: int) -> Any:
        try:
            return next(iterator)
        except StopIteration:
            raise DataError(
                f"{self.name} says that it has {self._count} batches and gave {number}", fix="correct its __len__"
            ) from None
        except Exception as error:  # of a dataset, in this process or in a worker
            why = said(error)[-1] if "worker process" in first_line(error) else named(error)
            raise DataError(
                f"batch {number} of {self.name} cannot be fetched: {why}",
                fix="make `for batch in loader: pass` work first",
            ) from error

    def _checked(self, batch: Any) -> Batch:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            what = f"has {len(batch)} parts" if isinstance(batch, (tuple, list)) else f"is a {type(batch).__name__}"
            fix = "let the loader give (inputs, target); several inputs are a tuple or a dict: ((left, right), target)"
            raise DataError(f"a batch of {self.name} {what}, not two", fix=fix)
        return Batch(*batch)
