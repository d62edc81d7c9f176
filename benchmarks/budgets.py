"""Is a budget one to anybody who counts: FLOPs by torch's own counter, parameters by numel.

    python benchmarks/budgets.py [--only NET ...] [--resume] [--budgets 1/2 1/4 1/10]

Whole networks of all kinds, untrained, cut at random to shares of their FLOPs and of their parameters. What fxprune
says that a slim net costs stands beside what ``torch.utils.flop_counter`` counts while it runs one sample, and beside
``sum(p.numel())``; each over the same number of the unpruned net. A budget that cannot be met is replaced by the
smallest one that the error tells. Every net has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from timing import machine
from torchvision_ops import declare_torchvision_ops

sys.path.insert(0, str(Path(__file__).parents[1]))
import fxprune
from fxprune.errors import FxPruneError, OptionError

RESULT = Path(__file__).parent / "results" / "budgets"
METRICS = ("flops", "params")
STEPS = ("wrap", "harden", "export")
LEAST = 0.97  # of a budget is used where granularity allows
Row = dict[str, Any]
Built = tuple[nn.Module, tuple[torch.Tensor, ...]]

# ---------------------------------------------------------------------------------------------------------- the nets


class One(nn.Module):
    """A net that gives one of the results of another one: else all of them had to keep their channels."""

    def __init__(self, net: nn.Module, result: str) -> None:
        super().__init__()
        self.net, self.result = net, result

    def forward(self, x: torch.Tensor) -> Any:
        return getattr(self.net(x), self.result)


def picture(size: int = 224) -> tuple[torch.Tensor, ...]:
    return (torch.randn(1, 3, size, size),)


def of_torchvision(name: str) -> Callable[[], Built]:
    def build() -> Built:
        declare_torchvision_ops()
        import torchvision

        return torchvision.models.get_model(name, weights=None), picture()

    return build


def of_timm(name: str) -> Callable[[], Built]:
    def build() -> Built:
        declare_torchvision_ops()
        import timm

        return timm.create_model(name, pretrained=False), picture()

    return build


def mlp() -> Built:
    widths = (784, 1024, 1024, 512)
    hidden = [
        part
        for one, other in pairwise(widths)
        for part in (nn.Linear(one, other), nn.BatchNorm1d(other), nn.ReLU(), nn.Dropout(0.1))
    ]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(512, 10)), (torch.randn(1, 1, 28, 28),)


def tokens(count: int, words: int) -> tuple[torch.Tensor, ...]:
    return (torch.randint(words, (1, count)),)


def bert() -> Built:
    declare_torchvision_ops()
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig()
    return One(BertForSequenceClassification(config), "logits"), tokens(128, config.vocab_size)


def clip_text() -> Built:
    declare_torchvision_ops()
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    config = CLIPTextConfig()
    return One(CLIPTextModelWithProjection(config), "text_embeds"), tokens(77, config.vocab_size)


def clip_vision() -> Built:
    declare_torchvision_ops()
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    return One(CLIPVisionModelWithProjection(CLIPVisionConfig()), "image_embeds"), picture()


NETS: dict[str, Callable[[], Built]] = {
    "ResNet-50": of_torchvision("resnet50"),
    "VGG-16": of_torchvision("vgg16"),
    "AlexNet": of_torchvision("alexnet"),
    "MobileNetV3-Large": of_torchvision("mobilenet_v3_large"),
    "EfficientNet-B0": of_torchvision("efficientnet_b0"),
    "ConvNeXt-T": of_torchvision("convnext_tiny"),
    "ViT-B/16": of_torchvision("vit_b_16"),
    "Swin-T": of_torchvision("swin_t"),
    "DeiT-Ti": of_timm("deit_tiny_patch16_224"),
    "Mixer-S/32": of_timm("mixer_s32_224"),
    "MLP": mlp,
    "BERT-base": bert,
    "CLIP text": clip_text,
    "CLIP vision": clip_vision,
}


def scrambled(net: nn.Module) -> nn.Module:
    """Norms, biases and scales that are not ones and zeros, no classifier of zeros: else they hide what is wrong."""
    for module in net.modules():
        if isinstance(getattr(module, "running_var", None), torch.Tensor):
            module.running_mean.normal_(0, 0.1)  # type: ignore[operator, union-attr]
            module.running_var.uniform_(0.5, 1.5)  # type: ignore[operator, union-attr]
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.numel() == max(parameter.shape, default=1) or not parameter.any():
                parameter += 0.1 * torch.randn_like(parameter)
    return net


# --------------------------------------------------------------------------------------------------------- counting


def counted(net: nn.Module, args: tuple[torch.Tensor, ...]) -> dict[str, int]:
    """What others count. Attention goes the way on which the counter sees its products."""
    torch.backends.mha.set_fastpath_enabled(False)
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        net(*args)
    return {"flops": counter.get_total_flops(), "params": sum(parameter.numel() for parameter in net.parameters())}


def off(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, relative to the largest number."""
    return float((one - other).abs().max() / other.abs().max())


def hardened(net: nn.Module, args: tuple[torch.Tensor, ...], metric: str, budget: float) -> Any:
    wrapped = fxprune.wrap(net, budget, metric=metric, example_inputs=args)
    generator = torch.Generator().manual_seed(0)
    return wrapped, {name: torch.rand(len(gate), generator=generator) for name, gate in wrapped.gates.items()}


def cut(net: nn.Module, args: tuple[torch.Tensor, ...], full: dict[str, int], metric: str, budget: float) -> Row:
    times = [time.perf_counter()]
    wrapped, scores = hardened(net, args, metric, budget)
    times.append(time.perf_counter())
    wrapped = wrapped.harden(scores).eval()
    times.append(time.perf_counter())
    slim = fxprune.export(wrapped)
    times.append(time.perf_counter())
    report, slim = slim.report, slim.eval()
    with torch.no_grad():
        error = off(slim(*args), wrapped(*args))
    costs = counted(slim, args)
    return {
        "says": report.after[metric] / report.before[metric],
        "says_of": {"full": report.before[metric], "slim": report.after[metric]},
        "counted": costs[metric] / full[metric],
        "counted_of": {"full": full[metric], "slim": costs[metric]},
        "other": costs[next(other for other in METRICS if other != metric)],
        "float32": error,
        "float64": report.error,
        "seconds": {step: round(b - a, 2) for step, (a, b) in zip(STEPS, pairwise(times), strict=True)},
    }


def smallest(error: OptionError) -> float | None:
    """The budget that the error of an unreachable one names."""
    told = re.search(r"smallest that can be reached is ([0-9.e-]+)", str(error))
    return float(told.group(1)) if told else None


def rows_of(name: str, asked: list[tuple[str, str]]) -> Iterator[Row]:
    """One per metric and budget."""
    torch.manual_seed(0)
    net, args = NETS[name]()
    net = scrambled(net).eval()
    full = counted(net, args)
    for metric, budget in asked:
        row: Row = {"net": name, "metric": metric, "budget": budget, "share": float(Fraction(budget))}
        begin = time.perf_counter()
        try:
            try:
                row |= cut(net, args, full, metric, row["share"])
            except OptionError as error:
                least = smallest(error)
                if least is None:
                    raise
                row |= {"refused": str(error).partition("\n")[0], "share": least}
                row |= cut(net, args, full, metric, least)
        except (FxPruneError, RuntimeError, ValueError, TypeError, AssertionError) as error:
            row["failed"] = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        row["total_seconds"] = round(time.perf_counter() - begin, 1)
        yield row


# ---------------------------------------------------------------------------------------------------------- results


def key(row: Row) -> tuple[str, str, str]:
    return row["net"], row["metric"], row["budget"]


def judged(row: Row) -> str:
    """What is wrong, in a word."""
    if "failed" in row:
        return row["failed"]
    used = row["counted"] / row["share"]
    words = ["over the budget"] if used > 1 else [f"{used:.3f} of it used"] if used < LEAST else []
    words += ["inexact"] if row["float64"] > 1e-9 or row["float32"] > 1e-3 else []
    return ", ".join(words)


def markdown(result: Row) -> str:
    where = result["machine"]
    text = [
        "# Budgets, counted by others", "",
        f"Made by `{result['command']}`; do not edit.", "",
        f"{where['processor']}, one thread, torch {where['torch']}; untrained nets, one sample, channels chosen at "
        "random. *Says*: fxprune's cost of the slim net over that of the unpruned one. *Counted*: the same by "
        "`torch.utils.flop_counter` or `sum(p.numel())`. *Used*: counted over the budget. A budget in brackets is the "
        "smallest that can be reached, as the error of the budget before it tells. Errors are the largest difference "
        "from the gated net, relative to the largest output. Seconds passed beside other runs.", "",
        "| net | metric | budget | says | counted | used | float32 | float64 | wrap | harden | export | |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]  # fmt: skip
    for row in result["rows"]:
        budget = row["budget"] + (f" ({row['share']:.4g})" if "refused" in row else "")
        cells = [row["net"], row["metric"], budget]
        if "failed" not in row:
            cells += [f"{row['says']:.4f}", f"{row['counted']:.4f}", f"{row['counted'] / row['share']:.4f}"]
            cells += [f"{row['float32']:.0e}", f"{row['float64']:.0e}"]
            cells += [f"{taken:.1f} s" for taken in row["seconds"].values()]
        text.append("| " + " | ".join([*cells, *[""] * (11 - len(cells)), judged(row)]) + " |")
    return "\n".join(text) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(NETS), metavar="NET", help=", ".join(NETS))
    parser.add_argument("--metrics", nargs="+", choices=METRICS, default=list(METRICS))
    parser.add_argument("--budgets", nargs="+", default=["1/2", "1/4", "1/10"])
    parser.add_argument("--resume", action="store_true", help="go on with what the .json file holds")
    parser.add_argument("--timeout", type=float, default=900, help="seconds per net")
    parser.add_argument("--out", type=Path, default=RESULT, help="path without .json and .md")
    parser.add_argument("--here", action="store_true", help="one net in this process, a row per line: for the script")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    asked = [(metric, budget) for metric in options.metrics for budget in options.budgets]
    names = options.only or list(NETS)
    if options.here:
        for row in rows_of(names[0], asked):
            print(json.dumps(row), flush=True)
        return 0
    file: Path = options.out.with_suffix(".json")
    file.parent.mkdir(parents=True, exist_ok=True)
    held = json.loads(file.read_text())["rows"] if (options.resume or options.only) and file.exists() else []
    rows = {key(row): row for row in held}
    packages = ("torch", "torchvision", "timm", "transformers")
    for name in names:
        if options.resume and all((name, *each) in rows for each in asked):
            continue
        given = ["--only", name, "--metrics", *options.metrics, "--budgets", *options.budgets]
        for row in rows_from([*given, "--here"], options.timeout):
            rows[key(row)] = row
            print(f"{name} {row['metric']} {row['budget']}: {json.dumps(row)}", flush=True)
            order = [(net, *each) for net in NETS for each in asked]
            ordered = sorted(rows.values(), key=lambda row: order.index(key(row)) if key(row) in order else len(order))
            result = {"command": "python benchmarks/budgets.py", "machine": machine(packages), "rows": ordered}
            file.write_text(json.dumps(result, indent=1) + "\n")
            options.out.with_suffix(".md").write_text(markdown(result))
    wrong = [row for row in rows.values() if judged(row)]
    for row in wrong:
        print(f"{row['net']} {row['metric']} {row['budget']}: {judged(row)}")
    return 1 if wrong else 0


def rows_from(given: list[str], timeout: float) -> Iterator[Row]:
    """A process of its own; it is ended when it takes too long."""
    process = subprocess.Popen([sys.executable, __file__, *given], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    begin = time.perf_counter()
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)
        if time.perf_counter() - begin > timeout:
            process.kill()
    if process.wait():
        print(f"{given[1]}: the process ended with {process.returncode}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
