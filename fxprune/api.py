"""The public calls: lists of passes, nothing else."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from fxprune.budget.target import Target
from fxprune.emit.folder import read, write
from fxprune.errors import OptionError
from fxprune.inspection import Inspection, describe
from fxprune.passes.analysis import analyse
from fxprune.passes.fuse import fuse_batch_norms
from fxprune.passes.verify import verify as verify_slim
from fxprune.wrapped import Wrapped, compile_wrapped


def wrap(
    model: nn.Module,
    budget: float | Mapping[str, float],
    *,
    example_inputs: Any = None,
    metric: str = "volume",
    ignore: Sequence[str] = (),
    leaf: Sequence[str | type] = (),
) -> Wrapped:
    """A copy of ``model`` with a gate on every prunable channel; the model itself is not touched.

    ``budget`` is a fraction of the full cost in (0, 1], or several: ``{"volume": 1/8, "flops": 1/20}``; ``metric`` is
    ``"volume"``, ``"flops"`` or ``"params"``. Without ``example_inputs`` the areas of the feature maps are read off the
    first forward pass.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> wrapped = wrap(net, budget=1/2)
    >>> list(wrapped.gates), len(wrapped.gates["0"])
    (['0'], 8)
    """
    target = Target.of(budget, metric)
    analysis = analyse(model, example_inputs, ignore=tuple(ignore), leaf=tuple(leaf))
    options = {"ignore": tuple(ignore), "leaf": tuple(leaf), "guessed": example_inputs is None}
    return Wrapped(model, analysis, target, options)


def export(wrapped: Wrapped, *, connectivity: str = "mixed", fuse: bool = False, verify: bool = True) -> fx.GraphModule:
    """Compile a wrapped network into a plain, smaller module that computes the same (``slim.report`` says how exactly).

    A network that is not hardened yet is copied and hardened first. ``connectivity="dense"`` keeps every channel that
    a residual add joins on both sides (the regular block, for comparison). ``fuse`` folds batch norms for deployment.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 10))
    >>> wrapped = wrap(net, 1/2, example_inputs=torch.zeros(1, 3, 8, 8))
    >>> slim = export(wrapped)
    >>> slim.report.after["volume"] <= slim.report.before["volume"] / 2
    True
    """
    if connectivity not in ("mixed", "dense"):
        raise OptionError(f"connectivity={connectivity!r} is unknown", fix='use "mixed" or "dense"')
    if not isinstance(wrapped, Wrapped):
        raise OptionError(
            f"export() takes a wrapped network, not {type(wrapped).__name__}", fix="call fxprune.wrap first"
        )
    if not wrapped.hardened:
        wrapped = copy.deepcopy(wrapped).harden()
    slim, report = compile_wrapped(wrapped, dense=connectivity == "dense")
    if verify:  # in float64, where only rounding is left to differ
        exact = copy.deepcopy(wrapped).double()
        compiled, _ = compile_wrapped(exact, dense=connectivity == "dense")
        report.error, report.batches = verify_slim(exact, compiled, *wrapped.analysis.channels.trace.example)
    report.fused = fuse_batch_norms(slim) if fuse else 0
    slim.report = report  # type: ignore[assignment]
    return slim


def inspect(
    model: nn.Module, example_inputs: Any, *, ignore: Sequence[str] = (), leaf: Sequence[str | type] = ()
) -> Inspection:
    """Which convolutions can be pruned, what each costs, which are guarded or frozen, and why.

    ``example_inputs`` is a tensor, a tuple of positional or a dict of keyword arguments. ``ignore`` names convolutions
    (shell patterns) that keep all their channels, ``leaf`` submodules that are not looked into. The model is untouched.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1))
    >>> [(layer.name, layer.ungated) for layer in inspect(net, torch.zeros(1, 3, 4, 4)).layers]
    [('0', None), ('1', 'writes a model output')]
    """
    analysis = analyse(model, example_inputs, ignore=tuple(ignore), leaf=tuple(leaf))
    return describe(analysis, type(model).__name__, example_inputs)


def save(slim: nn.Module, folder: str | os.PathLike[str]) -> Path:
    """Write an exported net as a folder of readable source (``model.py``) and weights (``weights.pt``).

    The folder needs torch only: ``load()`` of its ``model.py`` gives the net in eval mode. It appears completely or not
    at all, in place of an older one; a folder that holds anything else is left alone.

    >>> import tempfile
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> slim = export(wrap(net, 1/2, example_inputs=torch.zeros(1, 3, 8, 8))).eval()
    >>> folder = save(slim, tempfile.mkdtemp())
    >>> sorted(file.name for file in folder.iterdir())
    ['model.py', 'weights.pt']
    >>> picture = torch.randn(2, 3, 8, 8)
    >>> torch.equal(load(folder)(picture), slim(picture))
    True
    """
    from fxprune import __version__

    return write(slim, folder, __version__)


def load(folder: str | os.PathLike[str], device: str | torch.device = "cpu") -> nn.Module:
    """The net that ``save`` wrote, in eval mode. This runs the folder's ``model.py``: load only what you trust."""
    return read(folder, device)
