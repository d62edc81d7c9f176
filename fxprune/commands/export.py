"""``fxprune export``: the slim net of a run as ONNX, as source, with batch norms folded."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fxprune import __version__
from fxprune.commands.check import Comparison, compare
from fxprune.commands.options import check_outside, check_writable, writing
from fxprune.commands.user_code import unprinted
from fxprune.errors import ExportError, OptionError
from fxprune.files import write_atomically
from fxprune.run.folder import Run
from fxprune.run.layout import SLIM
from fxprune.save.net_folder import duplicate, write
from fxprune.save.onnx import OnnxNet, installed, require, to_onnx
from fxprune.slim.fuse import fuse_batch_norms
from fxprune.trace import graph_module, trace

SCHEMA = "fxprune.export/1"
TOLERANCE = 1e-4  # of the largest output, in float32
HELP = "write the slim net of a run as ONNX or as source"
DESCRIPTION = "Write the slim net of a run as ONNX, as source and weights, or both."
EPILOG = """examples:
  fxprune export runs/resnet --onnx slim.onnx
  fxprune export runs/resnet --onnx slim.onnx --source slim --fuse --json"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", metavar="RUN", help="the folder of a pruning run")
    add("--onnx", type=Path, metavar="FILE", help="write ONNX with a free batch size, and try it in ONNX Runtime")
    add("--source", type=Path, metavar="FOLDER", help="write readable source and weights, which need torch only")
    add("--fuse", action="store_true", help="fold batch norms into convolutions; for inference only")
    add("--json", action="store_true", help="print what was done as JSON (docs/reference/json.md)")


def run(options: argparse.Namespace) -> int:
    if options.onnx is None and options.source is None:
        raise OptionError("nothing was asked for", fix="add --onnx FILE, --source FOLDER, or both")
    if options.onnx is not None:
        require("--onnx", "onnx", "onnxscript")
        check_writable("--onnx", options.onnx, "slim.onnx")
    said = write_files(Run(options.folder), onnx=options.onnx, source=options.source, fuse=options.fuse)
    print(json.dumps(said, indent=2) if options.json else "\n".join(_lines(said)))
    return 0


def write_files(
    run: Run, *, onnx: Path | None = None, source: Path | None = None, fuse: bool = False
) -> dict[str, Any]:
    """Write a run's slim net, compared with what the run holds; returns what was done."""
    for option, path in (("--onnx", onnx), ("--source", source)):
        check_outside(option, path, run)
    said: dict[str, Any] = {"schema": SCHEMA, "run": str(run.folder), "fused": None, "source": None, "onnx": None}
    with unprinted():  # what the net's code prints is not part of the report
        slim = net = run.slim().float()
        if fuse:
            args, kwargs = run.example(dtype=torch.float32)
            net = graph_module(trace(slim, kwargs or args), slim)
            said["fused"] = fuse_batch_norms(net)
            _compared(run, slim, net, "the net with folded batch norms")
        if onnx is not None:
            data = to_onnx(net, *run.example(max(run.batch, 2), torch.float32))
            said["onnx"] = {"file": str(onnx), "error": None, "batches": []}
            if installed("onnxruntime"):
                outcome = _compared(run, slim, OnnxNet(data, "what was exported"), "the net in ONNX Runtime")
                said["onnx"].update(error=outcome.differences[SLIM], batches=outcome.batches)
        if source is not None:
            with writing("--source", source):
                write(net, source, __version__) if fuse else duplicate(run.folder / SLIM, source)
            said["source"] = str(source)
        if onnx is not None:
            with writing("--onnx", onnx):
                write_atomically(onnx, data)
    return said


def _compared(run: Run, slim: nn.Module, other: Any, what: str) -> Comparison:
    """Against the run's net as it is; what differs is not written."""
    outcome = compare(other, {SLIM: slim}, run, torch.float32)
    far = outcome.differences[SLIM]
    if far is None or far > TOLERANCE:
        how = outcome.problem or f"it is {far:.1e} of the largest output away from the run's slim net"
        raise ExportError(f"{what} is not the run's: {how}", fix="please report this net; nothing was written")
    return outcome


def _lines(said: dict[str, Any]) -> list[str]:
    lines = [] if said["fused"] is None else [f"folded {said['fused']} batch norm{'s' * (said['fused'] != 1)}"]
    if said["source"] is not None:
        lines.append(f"wrote {said['source']}: source and weights")
    if (onnx := said["onnx"]) is not None:
        tried = "not tried, for onnxruntime is not installed (pip install onnxruntime)"
        if onnx["error"] is not None:
            sizes = " and ".join(map(str, onnx["batches"]))
            tried = f"in ONNX Runtime {onnx['error']:.1e} from the run's slim net at batch sizes {sizes}"
        lines.append(f"wrote {onnx['file']}: ONNX, {tried}")
    return lines
