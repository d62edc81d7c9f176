"""Calibration samples: read from whatever they come in, checked, and dealt out in chunks."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fxprune.analysis import check_model
from fxprune.errors import DataError, FxPruneError, named
from fxprune.latency.stopwatch import device_of
from fxprune.slim.verify import Example
from fxprune.torch_private import AnyConv, tensors_in, tree_map
from fxprune.trace import example_arguments

CHUNK = 64  # samples that run through the net together
HELD_BACK = 8  # one of so many
FEWEST = 2
MOST = 2048  # samples that are read of a loader or a dataset, which may have millions
_GIVE = "give a tensor of samples, a list of them, or a loader of batches"


@dataclass(frozen=True)
class Samples:
    """Inputs of a model, all along their first axis."""

    inputs: Any  # a tensor, a tuple of positional or a dict of keyword arguments
    count: int
    device: torch.device
    chunk: int = CHUNK  # samples that run together
    fixed: bool = False  # the model takes no other number of them

    def some(self, which: slice) -> Any:
        """Of each tensor these samples."""

        def taken(leaf: Any) -> Any:
            part = leaf[which] if _of_samples(leaf, self.count) else leaf
            return part.to(self.device) if isinstance(part, torch.Tensor) else part

        return tree_map(taken, self.inputs)

    @property
    def fitted(self) -> int:
        """How many are not held back: the first ones."""
        return self.count - max(self.count // HELD_BACK, self.chunk if self.fixed else 1)

    def of(self, part: slice) -> list[Example]:
        """The samples of a part, chunk by chunk."""
        starts = range(part.start, part.stop, self.chunk)
        parts = [slice(start, min(start + self.chunk, part.stop)) for start in starts]
        return [example_arguments(self.some(each)) for each in parts]

    def in_chunks(self, size: int) -> Samples:
        """Without those that fill no chunk: a model may take batches of one size only."""
        whole = self.count // size * size
        return Samples(self.some(slice(0, whole)), whole, self.device, size, fixed=True)

    def in_smaller_chunks(self, most: int) -> Samples:
        """Of at most so many samples, if the model takes them."""
        return self if self.fixed else replace(self, chunk=max(min(self.chunk, most), 2))

    def chunks(self) -> tuple[list[Example], int]:
        """All of them, and the number of the first chunk that is held back."""
        fitted = self.of(slice(0, self.fitted))
        return fitted + self.of(slice(self.fitted, self.count)), len(fitted)


def _of_samples(leaf: Any, count: int) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.ndim > 0 and len(leaf) == count


def read_samples(calibration: Any, model: nn.Module, example: Any = None) -> Samples:
    """``example``, where there is one, tells what a single sample looks like."""
    check_model(model)
    if isinstance(calibration, (torch.Tensor, dict, tuple)):
        batches = [_without_labels(calibration, model)]
    elif hasattr(calibration, "__iter__") or hasattr(calibration, "__getitem__"):
        batches = list(_inputs_of(calibration, model, example))
    else:
        raise DataError(f"calibration is of type {type(calibration).__name__}, which holds no samples", fix=_GIVE)
    sized = [[leaf for leaf in tensors_in(batch) if leaf.ndim] for batch in batches]
    if not batches or not all(leaves and len(leaves[0]) for leaves in sized):
        raise DataError("calibration holds no samples", fix=_GIVE)
    if sized[0][0].ndim == 1 and not sized[0][0].is_floating_point():
        raise DataError(
            "calibration holds labels where inputs are expected", fix="give the inputs first: (inputs, labels)"
        )
    shapes = [[leaf.shape[1:] for leaf in leaves] for leaves in sized]
    for number, other in enumerate(shapes):
        if other != shapes[0]:
            raise DataError(
                f"calibration: batch {number} holds samples of {_told(other)}, batch 0 of {_told(shapes[0])}",
                fix="bring all samples to one size",
            )
    inputs = batches[0] if len(batches) == 1 else _stacked(batches)
    count = next(len(leaf) for leaf in tensors_in(inputs) if leaf.ndim)
    samples = Samples(inputs, count, device_of(model))
    _check(samples)
    return samples


def _told(shapes: list[torch.Size]) -> str:
    return " and ".join("x".join(map(str, shape)) or "numbers" for shape in shapes)


def _stacked(batches: list[Any]) -> Any:
    if isinstance(batches[0], dict):
        return {name: _stacked([batch[name] for batch in batches]) for name in batches[0]}
    if isinstance(batches[0], (tuple, list)):
        return tuple(map(_stacked, map(list, zip(*batches, strict=True))))
    return torch.cat(batches) if isinstance(batches[0], torch.Tensor) else batches[0]


def _inputs_of(calibration: Iterable[Any], model: nn.Module, example: Any) -> Iterator[Any]:
    """Batches without their labels."""
    single = _rank_of_sample(model, example)
    batches, read = iter(calibration), 0
    while read < MOST:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except FxPruneError:
            raise
        except Exception as error:  # of the user's dataset
            fix = "make `for batch in calibration: pass` work first"
            raise DataError(f"the calibration samples cannot be fetched: {named(error)}", fix=fix) from error
        batch = _without_labels(batch, model)
        leaves = tensors_in(batch)
        alone = bool(leaves) and leaves[0].ndim == single
        read += 1 if alone or not leaves or not leaves[0].ndim else len(leaves[0])
        yield tree_map(lambda leaf: leaf[None] if isinstance(leaf, torch.Tensor) else leaf, batch) if alone else batch


def _without_labels(batch: Any, model: nn.Module) -> Any:
    """Of (inputs, labels) the inputs: where the model takes one input, or takes them all and no more."""
    if not isinstance(batch, (tuple, list)):
        return batch
    wanted, most = _parameters(model)
    told = most < 2 or isinstance(batch[0], (tuple, list, dict)) or (wanted < 2 and _labels(batch[1]))
    inputs = batch[0] if len(batch) == 2 and told else batch[:-1] if len(batch) == wanted + 1 > most else batch
    inputs = tuple(inputs) if isinstance(inputs, list) else inputs
    return inputs[0] if isinstance(inputs, tuple) and len(inputs) == 1 else inputs


def _labels(leaf: Any) -> bool:
    return isinstance(leaf, int) or (isinstance(leaf, torch.Tensor) and leaf.ndim < 2 and not leaf.is_floating_point())


def _parameters(model: nn.Module) -> tuple[int, int]:
    """How many inputs the model must get, and how many it may get."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [each for each in inspect.signature(model.forward).parameters.values() if each.kind in kinds]
    return sum(each.default is inspect.Parameter.empty for each in taken), len(taken)


def _rank_of_sample(model: nn.Module, example: Any) -> int:
    """Axes of a single sample's first tensor; -1 where nothing tells."""
    if example is not None:
        return tensors_in(example)[0].ndim - 1 if tensors_in(example) else -1
    first = next((module for module in model.modules() if isinstance(module, (AnyConv, nn.Linear))), None)
    if isinstance(first, nn.Linear):
        return 1
    return -1 if first is None else len(first.kernel_size) + 1


def _check(samples: Samples) -> None:
    leaves = [leaf for leaf in tensors_in(samples.inputs) if _of_samples(leaf, samples.count)]
    if any(leaf.is_floating_point() and not bool(leaf.isfinite().all()) for leaf in leaves):
        raise DataError("calibration holds NaN or infinite values", fix="leave out the samples that do")
    if samples.count < FEWEST:
        raise DataError(
            f"calibration holds {samples.count} sample, and some must be held back", fix="give at least 64 samples"
        )
    if all(bool((leaf == leaf[:1]).all()) for leaf in leaves):
        raise DataError(
            f"all {samples.count} calibration samples are the same", fix="give samples as the net will see them"
        )


def example_of(samples: Samples) -> Any:
    """The first two, as ``wrap`` takes an example."""
    return samples.some(slice(0, 2))
