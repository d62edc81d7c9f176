"""``fxprune cut``: a trained net made smaller without training, by a folder of pictures or samples of the user's."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column, Table
from torch import nn
from torch.utils.data import DataLoader

import fxprune
from fxprune.commands.export import TOLERANCE
from fxprune.commands.options import parse_arguments, parse_budget, writing
from fxprune.commands.pictures import Preprocessing, picture_files, preprocessing, read_pictures
from fxprune.commands.user_code import call, find, load_model, load_module, unprinted
from fxprune.commands.weights import load_weights
from fxprune.cost.model import LATENCY, METRICS
from fxprune.cutting.report import CutReport
from fxprune.cutting.samples import FEWEST, Samples, example_of, read_samples
from fxprune.cutting.score import SCORES
from fxprune.errors import ExportError, InputError, OptionError, first_line
from fxprune.files import as_path, write_atomically
from fxprune.latency.stopwatch import in_turns
from fxprune.modules import evaluating
from fxprune.report.terminal import plain_console
from fxprune.report.text import NAMES, duration, fold_name, human, listing, part_of, percent, plural
from fxprune.save.net_folder import check_replaceable
from fxprune.save.onnx import OnnxNet, installed, require, to_onnx
from fxprune.slim.verify import difference, tensors
from fxprune.slim.verify import run as called
from fxprune.trace import example_arguments

SCHEMA = "fxprune.cut/1"
SAMPLES, ROWS, ROUNDS = 512, 20, 10
TOLD = 5  # pictures that could not be read, by name
HELP = "make a trained net smaller in seconds, without labels and without training"
DESCRIPTION = (
    "Cut a trained net to a budget by some hundred pictures or samples of yours, without labels and without "
    "training: channels go that the others can make up for, and what is left is fitted by least squares."
)
EPILOG = """examples:
  fxprune cut torchvision.models:resnet50 --arg weights=IMAGENET1K_V2 --pictures photos --budget 1/2 --metric flops \\
      --out slim
  fxprune cut net.py:Net --weights net.pth --pictures photos --size 32 --budget 1/4 --out slim --onnx
  fxprune cut net.py:Net --weights net.safetensors --data net.py:samples --budget 1/2 --metric latency --out slim"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("target", metavar="MODEL", help="package.module:name or path/to/file.py:name, of a model or of what makes one")
    add("--weights", metavar="FILE", help="its weights: .safetensors, or a state dict that torch.save wrote")
    add("--arg", action="append", default=[], metavar="NAME=VALUE", help="argument of the callable; repeatable")
    add("--preload", action="append", default=[], metavar="MODULE", help="module or file to import first; repeatable")
    samples = parser.add_mutually_exclusive_group(required=True)
    samples.add_argument("--pictures", type=Path, metavar="FOLDER", help="pictures as samples, of all folders inside")
    samples.add_argument("--data", metavar="TARGET", help="samples: a tensor or a loader, or a function that makes one")
    add("--size", metavar="224", help="height and width of a picture (default: what the model brings)")
    scale: dict[str, Any] = {"type": float, "nargs": "+", "metavar": "X"}
    add("--mean", **scale, help="of each channel of the pictures, from 0 to 1 (default: what the model brings)")
    add("--std", **scale, help="their standard deviations (default: what the model brings)")
    add("--samples", type=int, default=SAMPLES, metavar="N", help=f"at most so many, drawn (default: {SAMPLES})")
    add("--budget", required=True, metavar="1/2", help="fraction of the full cost to keep")
    add("--metric", choices=(*METRICS, LATENCY), default="volume", help="what --budget is about (default: volume)")
    add("--scores", choices=SCORES, default=SCORES[0], help=f"what decides who goes (default: {SCORES[0]})")
    add("--polish", type=int, default=0, metavar="STEPS", help="gradient steps at the end, kept if they help")
    add("--multiple-of", type=int, default=1, metavar="N", help="round widths to multiples (default: 1)")
    add("--ignore", action="append", default=[], metavar="PATTERN", help="layers to keep whole; repeatable")
    add("--leaf", action="append", default=[], metavar="PATTERN", help="submodules not to look into; repeatable")
    add("--seed", type=int, default=0, metavar="N", help="of what is drawn (default: 0)")
    add("--out", type=Path, required=True, metavar="FOLDER", help="where the slim net goes: source and weights")
    add("--onnx", action="store_true", help="write it as ONNX, too, beside the folder")
    add("--json", action="store_true", help="print what was done as JSON (docs/reference/json.md)")


def _size(text: str) -> tuple[int, int]:
    """
    >>> _size("224"), _size("192x256")
    ((224, 224), (192, 256))
    """
    try:
        sides = [int(side) for side in text.split("x")]
        height, width = sides * 2 if len(sides) == 1 else sides
        if min(height, width) < 1:
            raise ValueError(text)
        return height, width
    except ValueError:
        raise OptionError(f"--size {text!r} is no size", fix="write --size 224, or height x width: 192x256") from None


def run(options: argparse.Namespace) -> int:
    budget, onnx = parse_budget(options.budget), _files(options)
    options.size = None if options.size is None else _size(options.size)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    with unprinted(), _warnings_told(console):  # what the model's code prints is not part of the report
        model, source = _model(options)
        samples, given = _samples(options, model, source, console)
        slim = fxprune.cut(
            model, samples.inputs, budget, metric=options.metric, scores=options.scores, polish=options.polish,
            ignore=options.ignore, leaf=options.leaf, multiple_of=options.multiple_of, seed=options.seed,
            progress=console,
        )  # fmt: skip
        example = example_arguments(example_of(samples))
        with evaluating(model):
            seconds = [median(taken) for taken in in_turns([model, slim], example, ROUNDS)]
        data, difference = _as_onnx(slim, example) if onnx is not None else (b"", None)
        fxprune.save(slim, options.out)
        if onnx is not None:
            with writing("--onnx", onnx):
                write_atomically(onnx, data)
    report: CutReport = slim.report  # type: ignore[assignment]
    said = {
        "schema": SCHEMA,
        "model": options.target,
        "weights": options.weights,
        "samples": {**given, "count": report.samples, "held_back": report.held_back},
        "budget": {options.metric: budget},
        "scores": options.scores,
        "polished": report.polished,
        "seed": options.seed,
        "cost": {name: {"before": report.before[name], "after": report.after[name]} for name in report.before},
        "milliseconds": [round(1000 * each, 4) for each in seconds],
        "layers": [_layer(name, report) for name in report.widths],
        "removed": list(report.removed),
        "agreement": report.agreement,
        "missed": report.missed,
        "error": report.error,
        "seconds": {name: round(taken, 3) for name, taken in report.seconds.items()},
        "files": {"folder": str(options.out), "onnx": None if onnx is None else str(onnx), "onnx_error": difference},
    }
    if options.json:
        print(json.dumps(said, indent=2))
    else:
        _show(said)
    return 0


def _files(options: argparse.Namespace) -> Path | None:
    """Refuse what cannot be written before the work. Returns where the ONNX file goes, if there is to be one."""
    for name, least in (("samples", FEWEST), ("multiple_of", 1)):
        if getattr(options, name) < least:
            option = f"--{name.replace('_', '-')}"
            raise OptionError(f"{option} {getattr(options, name)} is too few", fix=f"write {option} {least} or more")
    if options.data is not None:
        for name in ("size", "mean", "std"):
            if getattr(options, name) is not None:
                raise OptionError(f"--{name} is about pictures", fix="leave it out, or give --pictures for --data")
    folder = as_path(options.out, "--out")
    check_replaceable(folder.resolve())
    if not options.onnx:
        return None
    require("--onnx", "onnx", "onnxscript")
    file = folder.resolve().with_name(f"{folder.resolve().name}.onnx")
    if file.is_dir():
        raise OptionError(f"--onnx would write {file}, which is a directory", fix="name another folder with --out")
    return folder.parent / file.name


@contextmanager
def _warnings_told(console: Console) -> Iterator[None]:
    """As one line each, without the place in our code."""
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("default")
        yield
    for text in dict.fromkeys(str(warning.message) for warning in noted):
        console.print(f"warning: {text}")


# ------------------------------------------------------------------ model and samples


def _model(options: argparse.Namespace) -> tuple[nn.Module, Any]:
    """With its weights; and what it was made by."""
    arguments = parse_arguments(options.arg)
    for module in options.preload:
        load_module(module)
    model = load_model(options.target, arguments)
    if options.weights is not None:
        load_weights(model, options.weights, options.target)
    return model, find(options.target, "model")


def _samples(
    options: argparse.Namespace, model: nn.Module, source: Any, console: Console
) -> tuple[Samples, dict[str, Any]]:
    """And what to say of them."""
    if options.pictures is None:
        samples = read_samples(_data(options.data), model)
        if samples.count > options.samples:
            drawn = torch.randperm(samples.count, generator=torch.Generator().manual_seed(options.seed))
            chosen = samples.some(drawn[: options.samples])  # type: ignore[arg-type]
            samples = Samples(chosen, options.samples, samples.device)
        return samples, {"source": options.data, "preprocessing": None, "skipped": {}}
    files = picture_files(options.pictures)
    prepared = preprocessing(model, source, parse_arguments(options.arg), options)
    most = min(options.samples, len(files))
    console.print(f"{most:,} of {plural(len(files), 'picture')} in {options.pictures}: {prepared}")
    console.print(f"  (by {prepared.source}; --size, --mean and --std change that)")
    _try(model, prepared)
    columns = TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("reading", total=most)
        pictures, skipped = read_pictures(
            files, most, options.seed, prepared, lambda count: bars.update(task, completed=count)
        )
    for file, why in list(skipped.items())[:TOLD]:
        console.print(f"skipped {file}: {why}")
    if len(skipped) > TOLD:
        console.print(f"skipped {len(skipped) - TOLD} more")
    told = {"source": str(options.pictures), "preprocessing": vars(prepared), "skipped": skipped}
    return read_samples(pictures, model), told


def _data(target: str) -> Any:
    """What a target names or returns; of (train, val) loaders the first."""
    data = find(target, "data")
    if callable(data) and not isinstance(data, torch.Tensor):
        data = call(target, data, {}, "a default:", "correct it")
    if isinstance(data, (tuple, list)) and data and isinstance(data[0], DataLoader):
        data = data[0]
    return data


def _try(model: nn.Module, prepared: Preprocessing) -> None:
    """On a picture of zeros, before pictures are read."""
    picture = torch.zeros(2, len(prepared.mean), *prepared.size)
    try:
        with torch.no_grad(), evaluating(model):
            model(picture)
    except Exception as error:
        shape = "x".join(map(str, picture.shape[1:]))
        raise InputError(
            f"the model rejects pictures of {shape}: {first_line(error)}",
            fix="write --size as in training, such as --size 32; or --data file.py:samples, if it takes no pictures",
        ) from error


# ------------------------------------------------------------------ what came of it


def _as_onnx(slim: nn.Module, example: Any) -> tuple[bytes, float | None]:
    """And how far ONNX Runtime is from torch, as a fraction of the largest output."""
    data = to_onnx(slim, *example)
    if not installed("onnxruntime"):
        return data, None
    expected = tensors(called(slim, *example))
    outputs = OnnxNet(data, "what was exported")(*example[0], **example[1])
    far = max(map(difference, expected, outputs), default=0.0)
    if not far <= TOLERANCE:
        raise ExportError(
            f"the net in ONNX Runtime is {far:.1e} of the largest output away from the slim net",
            fix="please report this net; nothing was written",
        )
    return data, far


def _layer(name: str, report: CutReport) -> dict[str, Any]:
    fitted = report.layers.get(name)
    return {
        "name": name,
        "width": [len(report.living["layers"][name]["mask"]), report.widths[name]],
        "missed": None if fitted is None else [fitted["before"], fitted["after"]],
        "left": report.left.get(name),
    }


def _show(said: dict[str, Any]) -> None:
    console = plain_console()
    with console.capture() as captured:
        console.print(_costs(said))
        console.print("")
        console.print(_layers(said["layers"], console.width))
        for line in _foot(said):
            console.print(line, soft_wrap=True)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))  # tables fill their last column


def _costs(said: dict[str, Any]) -> Table:
    numbers = (Column(title, justify="right", no_wrap=True) for title in ("before", "after", ""))
    table = Table("cost", *numbers, box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, cost in said["cost"].items():
        if name != LATENCY:
            before, after = cost["before"], cost["after"]
            table.add_row(NAMES[name], human(before), human(after), part_of(after, before))
    full, slim = said["milliseconds"]
    table.add_row("time of 2 samples", f"{full:.2f} ms", f"{slim:.2f} ms", part_of(slim, full))
    return table


def _layers(layers: list[dict[str, Any]], width: int) -> Table:
    """Those that miss most, in the order of the net."""

    def badness(layer: dict[str, Any]) -> tuple[float, float]:
        before, after = layer["width"]
        return layer["missed"][1] if layer["missed"] else -1.0, 1 - after / max(before, 1)

    worst = sorted(layers, key=badness, reverse=True)[:ROWS]
    numbers = (Column(title, justify="right", no_wrap=True) for title in ("channels", "left", "missed", "refitted"))
    table = Table(Column("layer", overflow="fold"), *numbers, box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for layer in layers:
        if layer in worst:
            missed = [f"{percent(share)} %" for share in layer["missed"]] if layer["missed"] else ["-", "-"]
            table.add_row(fold_name(layer["name"], width - 40), *map(str, layer["width"]), *missed)
    return table


def _foot(said: dict[str, Any]) -> Iterator[str]:
    layers, samples, files = said["layers"], said["samples"], said["files"]
    yield ""
    yield "missed, refitted: the share of a layer's variance that is missed, cut only and after its refit"
    if len(layers) > ROWS:
        yield f"{plural(len(layers) - ROWS, 'more layer')} with less than these"
    kept: dict[str, list[str]] = {}
    for layer in layers:
        if layer["left"] is not None:
            kept.setdefault(layer["left"], []).append(layer["name"])
    for why, names in kept.items():
        yield f"not refitted, {why}: {listing(names)}"
    if said["removed"]:
        yield f"gone altogether: {listing(said['removed'])}"
    yield ""
    held = samples["held_back"]
    if said["agreement"] is not None:
        same = f"{round(said['agreement'] * held)} of {plural(held, 'held-back sample')} ({said['agreement']:.1%})"
        yield f"The slim net gives the same answer as the unpruned one to {same}."
    if said["missed"] is not None:
        yield f"Its outputs miss {percent(said['missed'])} % of the variance of the unpruned net's."
    stages = ", ".join(f"{name} {taken:.1f}" for name, taken in said["seconds"].items())
    yield f"{duration(sum(said['seconds'].values()))} on {plural(samples['count'], 'sample')} (seconds: {stages})"
    yield ""
    yield f"wrote {files['folder']}: source and weights, which need torch only; fxprune.load({files['folder']!r})"
    if files["onnx"] is not None:
        tried = "not tried, for onnxruntime is not installed (pip install onnxruntime)"
        if files["onnx_error"] is not None:
            tried = f"in ONNX Runtime {files['onnx_error']:.1e} from it"
        yield f"wrote {files['onnx']}: ONNX, {tried}"
