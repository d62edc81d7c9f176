"""The public calls: lists of passes, nothing else."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import fx, nn

from fxprune.analysis import analyse, check_data, check_finite, check_model, named_tensors
from fxprune.analysis.inspection import Inspection, describe
from fxprune.cost.target import Share, Target
from fxprune.errors import OptionError, check_choice, several
from fxprune.gated.bank import NOISES
from fxprune.gated.barrier import SCHEDULES
from fxprune.modules import collected_later
from fxprune.report.page import write_page
from fxprune.save.folder import read, write
from fxprune.slim.agreement import check_agreement
from fxprune.slim.fuse import fuse_batch_norms
from fxprune.slim.verify import comparing, in_float64
from fxprune.slim.verify import verify as verify_slim
from fxprune.slimming import compile_wrapped, present_ids, report_on
from fxprune.torch_private import COMPILED, COPIED
from fxprune.trace import example_arguments
from fxprune.train.loop import Pruned, Tools, run_all
from fxprune.train.search import with_strength
from fxprune.train.settings import MakeOptimizer, Settings, adam, three
from fxprune.train.teacher import CachedTeacher
from fxprune.wrapped import Wrapped


def wrap(
    model: nn.Module,
    budget: Share | Mapping[str, Share],
    *,
    example_inputs: Any = None,
    metric: str = "volume",
    ignore: Sequence[str] = (),
    leaf: Sequence[str | type] = (),
    noise: str = "batch",
    schedule: str = "sigmoid",
    verify: bool = True,
) -> Wrapped:
    """A copy of ``model`` with a gate on every prunable channel; the model itself is not touched.

    ``budget`` is a fraction of the full cost in (0, 1] (``"1/8"`` and ``"12.5%"`` are fine, too), or several:
    ``{"volume": 1/8, "flops": 1/20}``; ``metric`` is ``"volume"``, ``"flops"``, ``"params"`` or ``"latency"``
    (of the example's batch, measured on this machine, which takes some seconds the first time). Gates start fully open.
    ``ignore`` names convolutions (shell patterns) that get none; they still go where nobody reads them any more.
    Without ``example_inputs`` the areas of the feature maps are read off the first forward pass. While training, gates
    are drawn per ``"batch"`` or per ``"sample"`` (``noise``), and the budget slides to its target along a
    ``schedule``: ``"sigmoid"``, ``"linear"`` or ``"exponential"``. That the wrapped net computes what the model
    computes is checked on noise of the example's shapes (on the example, if the model refuses noise; without an
    example at the first forward pass), unless ``verify`` is False.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> wrapped = wrap(net, budget=1/2)
    >>> list(wrapped.gates), len(wrapped.gates["0"])
    (['0'], 8)
    """
    check_choice("noise", noise, NOISES)
    check_choice("schedule", schedule, SCHEDULES)
    target = Target.of(budget, metric)
    ignored, leaves = several("ignore", ignore, str), several("leaf", leaf, (str, type))
    options = {"ignore": ignored, "leaf": leaves, "guessed": example_inputs is None, "verify": verify}
    with collected_later():
        analysis = analyse(model, example_inputs, ignore=ignored, leaf=leaves)
        wrapped = Wrapped(model, analysis, target, {**options, "noise": noise, "schedule": schedule})
    if verify and example_inputs is not None:
        check_agreement(wrapped.unwrap(), wrapped, example_arguments(example_inputs))
    return wrapped


@torch.inference_mode(False)  # tensors made inside of it could never be trained
def export(
    wrapped: Wrapped,
    *,
    connectivity: str = "mixed",
    fuse: bool = False,
    verify: bool = True,
    prepare: Callable[[nn.Module], nn.Module] | None = None,
) -> fx.GraphModule:
    """Compile a wrapped network into a plain, smaller module that computes the same (``slim.report`` says how exactly).

    A network that is not hardened yet is copied and hardened first. ``connectivity="dense"`` keeps every channel that
    a residual add joins on both sides (the regular block, for comparison); ``"auto"`` does so, or on one side, where
    that measures faster on this machine than mixed connectivity. Both compute more than the budget counts:
    ``slim.report.after`` says how much. (Its ``"network_params"`` are those of the slim net, counted.) What ``"auto"``
    measures are eager nets, unless it is told how you ``prepare`` yours to run: ``prepare=torch.compile``. ``fuse``
    folds batch norms for deployment.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 10))
    >>> wrapped = wrap(net, 1/2, example_inputs=torch.zeros(1, 3, 8, 8))
    >>> slim = export(wrapped)
    >>> slim.report.after["volume"] <= slim.report.before["volume"] / 2
    True
    """
    check_choice("connectivity", connectivity, ("mixed", "dense", "auto"))
    if prepare is not None and connectivity != "auto":
        raise OptionError(
            f"export() times no nets for connectivity={connectivity!r}, so it has none to prepare",
            fix='write connectivity="auto", or prepare the slim net yourself',
        )
    if not isinstance(wrapped, Wrapped):
        inside = [name for name in (COMPILED, "module") if isinstance(getattr(wrapped, name, None), Wrapped)]
        raise OptionError(
            f"export() takes a wrapped network, not {type(wrapped).__name__}",
            fix=f"write export(net.{inside[0]}): the wrapped network is in it" if inside else "call fxprune.wrap first",
        )
    check_data(named_tensors(wrapped))
    check_finite(wrapped.bank)
    if not wrapped.hardened:
        wrapped = copy.deepcopy(wrapped).harden()
    present = present_ids(wrapped, connectivity, prepare)
    with collected_later():
        slim, joined = compile_wrapped(wrapped, present)
    check_finite(slim)  # what is dead may hold anything
    error, batches = None, list[int]()
    if verify:
        with comparing():
            exact = in_float64(copy.deepcopy(wrapped))  # where only rounding is left to differ
            compiled = in_float64(compile_wrapped(exact, present)[0])
            if fuse:
                fuse_batch_norms(compiled)
            error, batches = verify_slim(exact, compiled, *wrapped.analysis.channels.trace.example)
    fused = fuse_batch_norms(slim) if fuse else 0
    report = report_on(slim, wrapped.analysis, present, joined, fused=fused, error=error, batches=batches)
    slim.report = report  # type: ignore[assignment]
    slim.meta[COPIED] = {"report": report}
    return slim


def prune(
    model: nn.Module,
    train: Any,
    val: Any,
    *,
    budget: Share | Mapping[str, Share],
    metric: str = "volume",
    epochs: Sequence[int] = (80, 40, 10),
    method: str = "bar",
    method_options: Mapping[str, Any] | None = None,
    teacher: nn.Module | CachedTeacher | str | None = "self",
    run: str | os.PathLike[str] | None = None,
    resume: bool = True,
    optimizer: MakeOptimizer | None = None,
    loss: Callable[..., torch.Tensor] | None = None,
    metric_fn: Any = None,
    alpha: float = 0.9,
    temperature: float = 4.0,
    example_inputs: Any = None,
    batch_size: int | None = None,
    ignore: Sequence[str] = (),
    leaf: Sequence[str | type] = (),
    noise: str = "batch",
    schedule: str = "sigmoid",
    seed: int = 0,
    checkpoint_minutes: float = 5,
    device: torch.device | str | None = None,
    progress: bool | Console = True,
) -> Pruned:
    """Prune a model to a budget: train it with gates, compile the slim net, fine-tune that. The model is untouched.

    ``train`` and ``val`` give batches ``(inputs, target)`` and have a length (``val`` may be None). ``epochs`` are
    those of pruning, of fine-tuning the slim net, and of fine-tuning at a tenth of the learning rate. The ``teacher``
    of the distillation is the model as it comes (``"self"``), the model trained first (``"train"``), another module,
    or None. ``loss(output, target)`` or ``loss(output, target, teacher_output)`` replaces cross entropy and
    distillation, ``metric_fn(output, target)`` the accuracy, ``optimizer(groups)`` Adam. With a folder, ``run``,
    everything is kept there, and the same call goes on with a run that was cut off, bit for bit. ``method`` decides
    what dies (docs/reference/methods.md), and ``method_options`` are its own. The example is cut from the first batch,
    unless ``example_inputs`` are given; a budget of latency is about the time of its ``batch_size`` samples (two).

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 10))
    >>> batches = [(torch.randn(4, 3, 8, 8), torch.arange(4)) for _ in range(5)]
    >>> pruned = prune(net, batches, batches, budget=1/2, epochs=(2, 1, 0), progress=False)
    >>> pruned.slim(torch.randn(1, 3, 8, 8)).shape, pruned.report["cost"]["volume"]["after"] <= 416 / 2
    (torch.Size([1, 10]), True)
    """
    check_model(model)
    settings = Settings(
        three(epochs), method, {} if method_options is None else method_options, teacher, optimizer or adam, loss,
        metric_fn, noise, schedule, alpha, temperature, seed, checkpoint_minutes,
    )  # fmt: skip
    how: dict[str, Any] = {"metric": metric, "ignore": ignore, "leaf": leaf, "noise": noise, "schedule": schedule}
    tools = Tools(lambda net, example: wrap(net, budget, example_inputs=example, **how), export, write_page)
    console = progress if isinstance(progress, Console) else Console() if progress else None

    def go(settings: Settings, folder: Any) -> Pruned:
        return run_all(
            model, train, val, settings, tools,
            example_inputs=example_inputs, batch_size=batch_size, folder=folder, resume=resume, device=device,
            console=console,
        )  # fmt: skip

    return go(with_strength(settings, run, go, console.print if console else lambda text: None), run)


def inspect(
    model: nn.Module, example_inputs: Any, *, ignore: Sequence[str] = (), leaf: Sequence[str | type] = ()
) -> Inspection:
    """Which convolutions can be pruned, what each costs, which are guarded or frozen, and why.

    ``example_inputs`` is a tensor, a tuple of positional or a dict of keyword arguments. ``ignore`` names convolutions
    (shell patterns) that get no gate, ``leaf`` submodules that are not looked into. The model is untouched.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1))
    >>> [(layer.name, layer.ungated) for layer in inspect(net, torch.zeros(1, 3, 4, 4)).layers]
    [('0', None), ('1', 'writes a model output')]
    """
    ignored, leaves = several("ignore", ignore, str), several("leaf", leaf, (str, type))
    analysis = analyse(model, example_inputs, ignore=ignored, leaf=leaves)
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
