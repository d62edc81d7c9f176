"""The public calls: lists of passes, nothing else."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import fx, nn

from fxprune import __version__
from fxprune.analysis import (
    Analysis,
    check_data,
    check_finite,
    check_model,
    leaf_test,
    logits,
    named_tensors,
    warn_of_hooks,
)
from fxprune.analysis.gates import place_gates
from fxprune.analysis.guards import find_guards
from fxprune.analysis.inspection import Inspection, describe
from fxprune.analysis.relate import relate
from fxprune.cost.model import CostModel
from fxprune.cost.target import Share, Target
from fxprune.count import batch_size
from fxprune.cutting.polish import check_steps, polished
from fxprune.cutting.refit import Refitted, memory, refit_layers
from fxprune.cutting.report import compare, extended, stages, tried
from fxprune.cutting.samples import example_of as example_of_samples
from fxprune.cutting.samples import read_samples
from fxprune.cutting.score import ScoresGiven, scores_by
from fxprune.errors import OptionError, check_choice, named, several
from fxprune.gated.bank import NOISES
from fxprune.gated.barrier import SCHEDULES
from fxprune.gated.insert import insert_gates
from fxprune.gated.names import check_names
from fxprune.gated.wrapped import Wrapped, taken_names, uncut
from fxprune.latency.auto import faster_joins
from fxprune.modules import collected_later, copy_module, evaluating
from fxprune.report.page import write_page
from fxprune.save.net_folder import read, write
from fxprune.slim.compile import compile_slim
from fxprune.slim.connectivity import present_ids, regular_blocks
from fxprune.slim.fuse import fuse_batch_norms
from fxprune.slim.report import report_on
from fxprune.slim.verify import check_agreement, comparing, in_float64
from fxprune.slim.verify import verify as verify_slim
from fxprune.torch_private import COMPILED, COPIED
from fxprune.trace import example_arguments, trace, trace_without_example
from fxprune.train.data import example_of
from fxprune.train.loop import Pruned, begun
from fxprune.train.search import with_strength
from fxprune.train.settings import MakeOptimizer, Settings, adam
from fxprune.train.teacher import CachedTeacher


def analyse(
    model: nn.Module,
    example: Any,
    *,
    ignore: tuple[str, ...] = (),
    leaf: tuple[str | type, ...] = (),
    places: Mapping[str, Sequence[int]] | None = None,
) -> Analysis:
    """The passes of both ``wrap`` and ``inspect``; without an example everything but the areas is known.

    ``places`` say which channel of a head each of its places is, where an earlier analysis has decided that.
    """
    check_model(model)
    is_leaf = leaf_test(model, leaf)
    traced = trace_without_example(model, leaf=is_leaf) if example is None else trace(model, example, leaf=is_leaf)
    warn_of_hooks(model, traced)
    channels = relate(traced)
    layers = place_gates(channels, ignore, places)
    costs = CostModel(channels, sum(parameter.numel() for parameter in model.parameters()), logits(layers))
    guards = find_guards(channels, layers, costs.logic)
    return Analysis(channels, layers, guards, costs)


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
    ``ignore`` names layers (shell patterns) that get none, or of attention kinds of gates (``"*.heads"``); they still
    go where nobody reads them any more. Without ``example_inputs`` the areas of the feature maps are read off the first
    forward pass. While training, gates are drawn per ``"batch"`` or per ``"sample"`` (``noise``), and the budget slides
    to its target along a ``schedule``: ``"sigmoid"``, ``"linear"`` or ``"exponential"``. That the wrapped net computes
    what the model computes is checked on noise of the example's shapes (on the example, if the model refuses noise;
    without an example at the first forward pass), unless ``verify`` is False.

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
    options |= {"noise": noise, "schedule": schedule}
    analysed = partial(analyse, ignore=ignored, leaf=leaves)
    with collected_later():
        analysis = analysed(model, example_inputs)
        check_names(model, analysis.channels.trace.graph, taken_names())
        gated = insert_gates(model, analysis)
        wrapped = Wrapped(gated, analysis, target, options, analysed)
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
    ``slim.report.after`` says how much. What ``"auto"``
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
    net, channels = uncut(wrapped), wrapped.analysis.channels
    present = present_ids(net.analysis, net.opened)
    if connectivity == "dense":
        present = regular_blocks(channels, present)
    if connectivity == "auto":
        present = faster_joins(channels, present, lambda present: compile_slim(net, present)[0], prepare)
    with collected_later():
        slim, joined = compile_slim(net, present)
    check_finite(slim)  # removed channels may hold NaN: only what remains is checked
    error, batches = None, list[int]()
    if verify:
        with comparing():
            exact = in_float64(copy.deepcopy(wrapped))  # where only rounding is left to differ
            compiled = in_float64(compile_slim(replace(uncut(exact), double=True), present)[0])
            if fuse:
                fuse_batch_norms(compiled)
            error, batches = verify_slim(exact, compiled, *channels.trace.example)
    fused = fuse_batch_norms(slim) if fuse else 0
    report = report_on(slim, net.analysis, present, joined, fused=fused, error=error, batches=batches)
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
        tuple(epochs) if isinstance(epochs, list) else epochs, method,
        {} if method_options is None else method_options, teacher, optimizer or adam, loss, metric_fn, alpha,
        temperature, seed, checkpoint_minutes,
    )  # fmt: skip
    how: dict[str, Any] = {"metric": metric, "ignore": ignore, "leaf": leaf, "noise": noise, "schedule": schedule}
    console = progress if isinstance(progress, Console) else Console() if progress else None

    def passes(settings: Settings, folder: str | os.PathLike[str] | None) -> Pruned:
        with begun(model, train, val, settings, device, console) as pruning:
            example = example_of(pruning.first, batch_size) if example_inputs is None else example_inputs
            pruning.open(wrap(pruning.base, budget, example_inputs=example, **how), folder, resume)
            pruning.teach()
            wrapped = wrap(pruning.base, budget, example_inputs=example, **how)
            pruning.prune(wrapped)
            slim = export(wrapped.eval())
            pruning.fine_tune(wrapped, slim)
            pruned = pruning.finish(wrapped, slim)
            if pruned.run is not None:
                try:
                    write_page(pruned.run)
                except Exception as error:  # whatever is wrong with a page, the run is done
                    instead = f"fxprune report {pruned.run} -o report.html"
                    pruning.trainer.display.note(f"no page was written ({named(error)}); try {instead}")
            return pruned

    return passes(with_strength(settings, run, passes, console.print if console else lambda text: None), run)


def cut(
    model: nn.Module,
    calibration: Any,
    budget: Share | Mapping[str, Share],
    *,
    metric: str = "volume",
    scores: ScoresGiven = "reconstruction",
    refit: bool = True,
    polish: int = 0,
    example_inputs: Any = None,
    ignore: Sequence[str] = (),
    leaf: Sequence[str | type] = (),
    multiple_of: int = 1,
    seed: int = 0,
    progress: bool | Console = True,
    verify: bool = True,
) -> fx.GraphModule:
    """Cut a trained net to a budget, without labels and without training. Returns the slim net in eval mode.

    ``calibration`` are some hundred inputs as the net sees them in use: a tensor, a list, or a loader (of which at most
    2,048 samples are read), with or without labels (which are left out); a tuple holds several inputs, a dict keyword
    arguments. Channels go whose loss the others can make up for (``scores="reconstruction"``), or the smallest of each
    layer (``"magnitude"``), or any (``"random"``), or those that are low in a mapping of your own (layer name -> a
    number per gate variable). Then the weights of what is left are fitted by least squares, layer by layer, to what the
    unpruned net computes. A layer keeps its weights where that does not lower the error on samples that are held back.
    ``polish=300`` are as many gradient steps on the same samples, towards the unpruned net's outputs, at the end; they
    are kept if its outputs are nearer then on the samples that are held back.
    ``slim.report`` tells all that (docs/how-to/cut.md). Budget, metric, ``ignore`` and ``leaf`` are those of ``wrap``,
    ``multiple_of`` is that of ``harden``. The model is untouched.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 10))
    >>> slim = cut(net, torch.randn(256, 3, 8, 8), 1/2, progress=False)
    >>> slim.report.after["volume"] <= slim.report.before["volume"] / 2, slim.report.samples
    (True, 256)
    """
    check_steps(polish)
    with stages(progress) as stage:
        samples = read_samples(calibration, model, example_inputs)
        example = example_of_samples(samples) if example_inputs is None else example_inputs
        full = copy_module(model).eval()
        samples = tried(full, samples, batch_size(*example_arguments(example)))
        wrapped = wrap(
            model, budget, example_inputs=example, metric=metric, ignore=ignore, leaf=leaf, verify=verify
        ).eval()
        needed = memory(wrapped, samples)
        stage.needs(needed)
        stage.end("wrap")
        chosen = scores_by(scores, wrapped, samples, seed, stage.begin("choosing", len(wrapped.analysis.layers)))
        wrapped.harden(chosen, multiple_of=multiple_of)
        stage.end("choose")
        refitted = Refitted()
        if refit:
            refitted = refit_layers(wrapped, samples, seed, stage.begin("refitting", len(wrapped.analysis.layers)))
        stage.end("refit")
        stage.begin("exporting")
        slim = export(wrapped, verify=verify)
        stage.end("export")
        helped = None
        if polish:
            stage.begin("polishing")
            helped = polished(slim, full, samples, polish, seed)
            stage.end("polish")
        compared = compare(full, slim, samples)
    report = extended(slim.report, refitted, samples, compared, helped, needed, stage.seconds)  # type: ignore[arg-type]
    slim.report = report  # type: ignore[assignment]
    slim.meta[COPIED] = {"report": report}
    return slim


def refit(
    wrapped: Wrapped, calibration: Any, *, seed: int = 0, progress: bool | Console = True
) -> dict[str, dict[str, float]]:
    """Fit the weights that a hardened net has left, by least squares, to what it computes with all of its gates open.

    ``wrapped`` is changed; its masks are not. ``calibration`` is that of ``cut``. Returns, per layer, the share of its
    variance that was missed ``before`` and is missed ``after``, on samples that are held back.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 10))
    >>> wrapped = wrap(net, 1/2, example_inputs=torch.zeros(1, 3, 8, 8)).harden()
    >>> list(refit(wrapped, torch.randn(256, 3, 8, 8), progress=False))
    ['0', '2', '4']
    """
    if not isinstance(wrapped, Wrapped) or not wrapped.hardened:
        raise OptionError("refit() takes a hardened network", fix="call wrapped.harden() first")
    with stages(progress) as stage, evaluating(wrapped):
        full = wrapped.unwrap()
        samples = read_samples(calibration, full)
        samples = tried(full, samples, batch_size(*wrapped.analysis.channels.trace.example))
        refitted = refit_layers(wrapped, samples, seed, stage.begin("refitting", len(wrapped.analysis.layers)))
    return {name: vars(layer) for name, layer in refitted.layers.items()}


def inspect(
    model: nn.Module, example_inputs: Any, *, ignore: Sequence[str] = (), leaf: Sequence[str | type] = ()
) -> Inspection:
    """Which layers can be pruned, what each costs, which are guarded or frozen, and why.

    ``example_inputs`` is a tensor, a tuple of positional or a dict of keyword arguments. ``ignore`` names layers
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
    return write(slim, folder, __version__)


def load(folder: str | os.PathLike[str], device: str | torch.device = "cpu") -> nn.Module:
    """The net that ``save`` wrote, in eval mode. This runs the folder's ``model.py``: load only what you trust."""
    return read(folder, device)
