"""How long a convolution takes, over the numbers of channels that it reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fxprune.latency.stopwatch import typical

KINDS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
STEPS = (1, 4, 8, 16, 32)  # widths of vectors that machines have
Floats = npt.NDArray[np.float64]


def key(conv: Any, shape: tuple[int, ...]) -> str:
    """Convolutions with the same one take the same time."""
    weight, last = conv.weight, channels_last(conv.weight)
    names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
    parts = [getattr(conv, name) for name in names]
    return f"{kind_of(conv).__name__} {parts} {conv.bias is not None} {weight.dtype} {last} on {tuple(shape)}"


def kind_of(conv: nn.Module) -> type[nn.Module]:
    return next(kind for kind in KINDS if isinstance(conv, kind))


def channels_last(weight: torch.Tensor) -> bool:
    last = weight.ndim == 4 and weight.is_contiguous(memory_format=torch.channels_last)
    return last and not weight.is_contiguous()


def grid(full: int, step: int) -> list[int]:
    """Widths to measure at: multiples of ``step``, twice as far apart each time, and all of them.

    >>> grid(64, 16), grid(96, 8), grid(3, 16)
    ([16, 32, 64], [8, 16, 32, 64, 96], [3])
    """
    widths, width = [], step
    while width < full:
        widths.append(width)
        width *= 2
    return [*widths, full]


def measure(conv: Any, shape: tuple[int, ...], device: torch.device) -> tuple[Floats, Floats, Floats, int]:
    """Widths written, widths read, nanoseconds at each pair of them (both axes start at 0), and the step of the first.

    ``shape`` is that of the input. Grouped convolutions keep the width of their groups: fewer channels, fewer groups.
    """
    step = vector_width(device, conv.weight.dtype)
    per_group, reads = conv.out_channels // conv.groups, conv.in_channels // conv.groups
    if conv.groups > 1:
        groups = [max(1, width // per_group) for width in grid(conv.out_channels, step)]
        sizes = [(count * per_group, count * reads, count) for count in sorted(set(groups))]
        taken = [_time(conv, rows, columns, count, shape, device) for rows, columns, count in sizes]
        at = np.array([0.0, *(rows for rows, _, _ in sizes)])
        times = np.array([[0.0, 0.0], *([0.0, seconds] for seconds in taken)]) * 1e9
        return at, np.array([0.0, 1.0]), times, step
    at_rows, at_columns = grid(conv.out_channels, step), grid(conv.in_channels, 8)
    times = np.zeros((len(at_rows) + 1, len(at_columns) + 1))
    for i, rows in enumerate(at_rows, 1):
        for j, columns in enumerate(at_columns, 1):
            times[i, j] = 1e9 * _time(conv, rows, columns, 1, shape, device)
        times[i, 0] = max(times[i, 1] - (times[i, -1] - times[i, 1]) * at_columns[0] / at_columns[-1], 0.0)
    return np.array([0.0, *at_rows]), np.array([0.0, *at_columns]), times, step


def _time(conv: Any, rows: int, columns: int, groups: int, shape: tuple[int, ...], device: torch.device) -> float:
    kind: Any = kind_of(conv)
    options: dict[str, Any] = {"output_padding": conv.output_padding} if conv.transposed else {}
    made = kind(
        columns, rows, conv.kernel_size, conv.stride, conv.padding, dilation=conv.dilation, groups=groups,
        bias=conv.bias is not None, padding_mode=conv.padding_mode, dtype=conv.weight.dtype, device=device, **options,
    )  # fmt: skip
    x = torch.randn(shape[0], columns, *shape[2:], dtype=conv.weight.dtype, device=device)
    if channels_last(conv.weight):
        made, x = made.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        return typical(lambda: made(x), device)


@cache
def vector_width(device: torch.device, dtype: torch.dtype) -> int:
    """A convolution that writes 17 channels takes as long as one that writes 32, where vectors have 16 entries."""
    x = torch.randn(1, 32, 14, 14, device=device, dtype=dtype)
    widths = np.arange(1, 65, 3)

    def call(width: int) -> Callable[[], Any]:
        conv = nn.Conv2d(32, width, 3, padding=1, bias=False, device=device, dtype=dtype)
        return lambda: conv(x)

    with torch.inference_mode():
        times = np.array([typical(call(int(width)), device, least=9, seconds=0.003) for width in widths])
    return best_step(widths, times)


def best_step(widths: npt.NDArray[Any], times: Floats) -> int:
    """The step whose multiples explain the times best.

    >>> best_step(np.arange(1, 65), 100 + 5.0 * (16 * np.ceil(np.arange(1, 65) / 16)))
    16
    """

    def misfit(step: int) -> float:
        found = np.stack([np.ones(len(widths)), np.ceil(widths / step) * step], 1)
        answer = np.linalg.lstsq(found, times, rcond=None)[0]
        return float(np.square(found @ answer - times).sum())

    return min(STEPS, key=misfit)
