"""From a model to an ONNX file in ONNX Runtime: the same numbers, in less time.

    pip install '.[onnx,demo]'
    python examples/onnx_deployment.py [PICTURES]

The filters with the smallest weights go here (no training: the net stands for one of yours that was trained), and batch
norms are folded. Both nets then run in ONNX Runtime in turns, so that whatever else the machine does falls on both.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime
import torch
from torch import nn

import fxprune
from fxprune.demo import DigitNet


def session(net: nn.Module, file: Path) -> onnxruntime.InferenceSession:
    """The net as a file with a free batch size, loaded."""
    example, batch = torch.zeros(2, 1, 16, 16), torch.export.Dim("batch")
    torch.onnx.export(
        net, (example,), file, dynamo=True, dynamic_shapes=({0: batch},), external_data=False, verbose=False
    )
    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


def answer(session: onnxruntime.InferenceSession, pictures: np.ndarray) -> np.ndarray:
    return session.run(None, {session.get_inputs()[0].name: pictures})[0]


def main(count: int = 64, rounds: int = 30, width: int = 32) -> tuple[float, float]:
    torch.manual_seed(0)
    model = DigitNet(width).eval()
    wrapped = fxprune.wrap(model, budget=1 / 4, example_inputs=torch.zeros(2, 1, 16, 16))
    wrapped.harden({name: model.get_submodule(name).weight.abs().mean((1, 2, 3)) for name in wrapped.gates})
    slim = fxprune.export(wrapped, fuse=True).eval()

    pictures = torch.randn(count, 1, 16, 16)
    with TemporaryDirectory() as folder:
        files = [Path(folder) / "full.onnx", Path(folder) / "slim.onnx"]
        full_net, slim_net = (session(net, file) for net, file in zip((model, slim), files, strict=True))
        sizes = [file.stat().st_size for file in files]
    with torch.no_grad():
        expected = slim(pictures).numpy()
    error = float(np.abs(answer(slim_net, pictures.numpy()) - expected).max() / np.abs(expected).max())
    times: dict[str, list[float]] = {"full": [], "slim": []}
    for _ in range(rounds):
        for name, net in (("full", full_net), ("slim", slim_net)):
            begin = time.perf_counter()
            answer(net, pictures.numpy())
            times[name].append(1000 * (time.perf_counter() - begin))
    full, small = (statistics.median(taken) for taken in times.values())
    print(f"ONNX Runtime differs from torch by {error:.0e} of the largest output")
    print(f"{count} pictures: {full:.1f} ms full, {small:.1f} ms slim; files of {sizes[0]:,} and {sizes[1]:,} bytes")
    return error, small / full


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
