"""Batches: what a loader gives, checked, moved, and always in the same order for the same epoch."""

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

_PAIR = "let the loader give (inputs, target); several inputs are a tuple or a dict: ((left, right), target)"


@dataclass(frozen=True)
class Batch:
    inputs: Any
    target: Any

    @property
    def size(self) -> int:
        """Samples, by the first axis of the first tensor."""
        found = [leaf for leaf in tree_leaves((self.inputs, self.target)) if isinstance(leaf, torch.Tensor)]
        return int(found[0].shape[0]) if found and found[0].ndim else 1

    def to(self, device: torch.device) -> Batch:
        def moved(leaf: Any) -> Any:
            return leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf

        return Batch(tree_map(moved, self.inputs), tree_map(moved, self.target))


def call(net: nn.Module | Callable[..., Any], inputs: Any) -> Any:
    """A tensor is the argument, a tuple or list several, a dict keyword arguments."""
    if isinstance(inputs, dict):
        return net(**inputs)
    return net(*inputs) if isinstance(inputs, (tuple, list)) else net(inputs)


@contextmanager
def explained(
    what: str, whom: str, fix: str = "call them with that batch yourself to see the whole error"
) -> Iterator[None]:
    """An error of the user's code says which batch it was."""
    try:
        yield
    except FxPruneError:
        raise
    except Exception as error:
        raise DataError(f"{what} does not fit {whom}: {named(error)}", fix=fix) from error


def example_of(batch: Batch, wanted: int | None = None) -> Any:
    """So many samples, for tracing and for taking times; a batch that has fewer gives some of them again. Without a
    number: two, if there are two."""
    many = batch.size
    wanted = min(2, many) if wanted is None else wanted
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise OptionError(f"batch_size={wanted!r} is no number of samples", fix="write batch_size=32")

    def cut(leaf: Any) -> Any:
        fits = isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[0] == many
        return leaf[torch.arange(wanted, device=leaf.device) % many] if fits else leaf

    inputs = tuple(batch.inputs) if isinstance(batch.inputs, list) else batch.inputs
    return tree_map(cut, inputs)


class Batches:
    """A loader. Its order, its workers' seeds and whatever else is drawn depend only on the key of an epoch.

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
            self.count = len(loader)
        except TypeError as error:
            raise DataError(
                f"{name} does not say how many batches it has, and the budget slides with the steps",
                fix="give it a length: def __len__(self): return batches_per_epoch",
            ) from error
        if self.count == 0:
            raise DataError(
                f"{name} is empty: it has no batch", fix="look at its dataset, batch_size and drop_last: len(loader)"
            )
        parts = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
        parts.append(getattr(parts[2], "sampler", None))
        self._ordered = [part for part in parts if hasattr(part, "set_epoch")]
        found = [getattr(part, "generator", None) for part in parts]
        self.generators = list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())

    def __len__(self) -> int:
        return self.count

    def epoch(self, epoch: int, *key: int | str, first: int = 0) -> Iterator[tuple[int, Batch]]:
        """The batches from number ``first`` on, each with its number."""
        if first >= self.count:
            return
        stop_workers(self.loader)
        seed_all(*key, epoch, generators=self.generators)
        for part in self._ordered:
            part.set_epoch(epoch)
        iterator = iter(self.loader)
        for number in range(self.count):
            seed_all(*key, epoch, number)
            found = self._fetch(iterator, number)
            if number >= first:
                yield number, self._checked(found)

    def first(self) -> Batch:
        """One batch, to look at."""
        return next(self.epoch(0, "example"))[1]

    def _fetch(self, iterator: Iterator[Any], number: int) -> Any:
        try:
            return next(iterator)
        except StopIteration:
            raise DataError(
                f"{self.name} says that it has {self.count} batches and gave {number}", fix="correct its __len__"
            ) from None
        except Exception as error:  # of a dataset, in this process or in a worker
            why = said(error)[-1] if "worker process" in first_line(error) else named(error)
            raise DataError(
                f"batch {number} of {self.name} cannot be fetched: {why}",
                fix="make `for batch in loader: pass` work first",
            ) from error

    def _checked(self, found: Any) -> Batch:
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            what = f"has {len(found)} parts" if isinstance(found, (tuple, list)) else f"is a {type(found).__name__}"
            raise DataError(f"a batch of {self.name} {what}, not two", fix=_PAIR)
        return Batch(*found)
