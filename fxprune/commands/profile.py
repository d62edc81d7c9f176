"""``fxprune profile``: where the time of a net goes, layer by layer."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fxprune
from fxprune.commands.options import add_model_options, model_and_example
from fxprune.commands.user_code import load_model, unprinted
from fxprune.errors import InputError, OptionError, TargetError, first_line
from fxprune.latency.cache import description
from fxprune.latency.profile import ROUNDS, profile
from fxprune.latency.stopwatch import Inputs, device_of
from fxprune.report.terminal import plain_console, profile_summary, profile_table
from fxprune.torch_private import tree_map

SCHEMA = "fxprune.profile/1"
HELP = "show where the time of a net goes"
DESCRIPTION = "Run a net on this machine and show what each of its ops takes, and what joins cost."
EPILOG = """examples:
  fxprune profile runs/resnet/slim --input 1x3x32x32
  fxprune profile torchvision.models:resnet18 --input 32x3x224x224 --channels-last --top 20"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("net", metavar="SLIM", help="folder of a saved net, or package.module:name or file.py:name of a model")
    add_model_options(parser)
    add("--channels-last", action="store_true", help="weights and inputs in that memory format")
    add("--threads", type=int, metavar="N", help="of torch (default: its own choice)")
    add("--rounds", type=int, default=ROUNDS, metavar="N", help=f"medians of so many runs (default: {ROUNDS})")
    add("--top", type=int, metavar="N", help="only the slowest N ops")
    add("--json", action="store_true", help="print everything as JSON")


def run(options: argparse.Namespace) -> int:
    for name in ("threads", "rounds", "top"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise OptionError(f"--{name} {getattr(options, name)} is too few", fix=f"write --{name} 1 or more")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    with unprinted():  # what the model's code prints is not part of the report
        net, example = model_and_example(options, options.net, _net)
        inputs: Inputs = ((), example) if isinstance(example, dict) else (example, {})
        net.eval()
        if options.channels_last:
            net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            inputs = tree_map(_last, inputs)
        _try(net, inputs)
        taken = profile(net, inputs, options.rounds)
    if options.json:
        print(json.dumps({"schema": SCHEMA, "machine": description(device_of(net)), **taken.as_dict()}, indent=2))
    else:
        console = plain_console()
        console.print(profile_table(taken, console.width, options.top))
        console.print(profile_summary(taken), soft_wrap=True)
    return 0


def _net(text: str, arguments: dict[str, Any]) -> nn.Module:
    if Path(text).is_dir():
        return fxprune.load(text)
    if ":" not in text:
        raise TargetError(
            f"there is no folder {text}, and it names no model",
            fix="name a folder that fxprune.save wrote, such as runs/resnet/slim, or package.module:function",
        )
    return load_model(text, arguments)


def _last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def _try(net: nn.Module, inputs: Inputs) -> None:
    try:
        with torch.inference_mode():
            net(*inputs[0], **inputs[1])
    except Exception as error:
        fix = "give --input the shape that it expects, such as 1x3x224x224"
        raise InputError(f"the net rejects these inputs: {first_line(error)}", fix=fix) from error
