"""How long a convolution takes, over the numbers of channels that it reads and writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fxprune.latency.stopwatch import typical

KINDS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# Machines compute with vectors of 4 to 32 channels: times jump behind the multiples of that, and what is no multiple
# may be slower than the next one. Pruned layers seldom are.
WRITTEN = (1, 8, 15, 17, 31, 33, 47, 49, 63, 88, 120, 184, 248, 376, 504, 760, 1016, 1528, 2040)
READ = (1, 5, 13, 29, 61, 125, 253, 509, 1021, 2045)
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


def grid(full: int, points: tuple[int, ...]) -> list[int]:
    """The widths to measure at, and all channels.

    >>> grid(64, WRITTEN), grid(3, READ)
    ([1, 8, 15, 17, 31, 33, 47, 49, 63, 64], [1, 3])
    """
    return [*(width for width in points if width < full), full]


def measure(conv: Any, shape: tuple[int, ...], device: torch.device) -> tuple[Floats, Floats, Floats]:
    """Widths written, widths read, and nanoseconds at each pair of them; both axes start at 0.

    ``shape`` is that of the input. Grouped convolutions keep the width of their groups: fewer channels, fewer groups.
    """
    per_group, reads = conv.out_channels // conv.groups, conv.in_channels // conv.groups
    if conv.groups > 1:
        groups = [max(1, width // per_group) for width in grid(conv.out_channels, WRITTEN)]
        sizes = [(count * per_group, count * reads, count) for count in sorted(set(groups))]
        taken = [_time(conv, rows, columns, count, shape, device) for rows, columns, count in sizes]
        at = np.array([0.0, *(rows for rows, _, _ in sizes)])
        times = np.array([[0.0, 0.0], *([0.0, seconds] for seconds in taken)]) * 1e9
        return at, np.array([0.0, 1.0]), times
    at_rows, at_columns = grid(conv.out_channels, WRITTEN), grid(conv.in_channels, READ)
    times = np.zeros((len(at_rows) + 1, len(at_columns) + 1))
    for i, rows in enumerate(at_rows, 1):
        for j, columns in enumerate(at_columns, 1):
            times[i, j] = 1e9 * _time(conv, rows, columns, 1, shape, device)
        times[i, 0] = max(times[i, 1] - (times[i, -1] - times[i, 1]) * at_columns[0] / at_columns[-1], 0.0)
    return np.array([0.0, *at_rows]), np.array([0.0, *at_columns]), times


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
