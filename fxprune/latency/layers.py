"""How long a convolution or linear layer takes, over the numbers of channels that it reads and writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fxprune.latency.stopwatch import typical

KINDS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)
# Machines compute with vectors of 4 to 32 channels: times jump behind multiples of that, and up to the next one more
# channels take no more time. Both sides of the large jumps are measured, so that such channels are found.
_JUMPS = (1, 4, 8, 9, 16, 17, 32, 33, 48, 64)
WRITTEN = (*_JUMPS, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
READ = (*_JUMPS, 128, 256, 512, 1024, 2048)
Floats = npt.NDArray[np.float64]


def key(layer: Any, shape: tuple[int, ...]) -> str:
    """Layers with the same one take the same time."""
    weight, last = layer.weight, channels_last(layer.weight)
    parts = (*widths(layer), settings(layer), layer.bias is not None, weight.dtype, last)
    return f"{kind_of(layer).__name__} {parts} on {tuple(shape)}"


def kind_of(layer: nn.Module) -> type[nn.Module]:
    return next(kind for kind in KINDS if isinstance(layer, kind))


def widths(layer: Any) -> tuple[int, int, int]:
    """Channels that it writes and reads, and its groups."""
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features, 1
    return layer.out_channels, layer.in_channels, layer.groups


def settings(layer: Any) -> dict[str, Any]:
    if isinstance(layer, nn.Linear):
        return {}
    names = ("kernel_size", "stride", "padding", "dilation", "padding_mode", "output_padding")
    return {name: getattr(layer, name) for name in names[: None if layer.transposed else -1]}


def channels_last(weight: torch.Tensor) -> bool:
    last = weight.ndim == 4 and weight.is_contiguous(memory_format=torch.channels_last)
    return last and not weight.is_contiguous()


def grid(full: int, points: tuple[int, ...]) -> list[int]:
    """The widths to measure at, and all channels.

    >>> grid(64, WRITTEN), grid(3, READ)
    ([1, 4, 8, 9, 16, 17, 32, 33, 48, 64], [1, 3])
    """
    return [*(width for width in points if width < full), full]


def measure_layer(layer: Any, shape: tuple[int, ...], device: torch.device) -> tuple[Floats, Floats, Floats]:
    """Widths written, widths read, and nanoseconds at each pair of them; both axes start at 0.

    ``shape`` is that of the input. Grouped convolutions keep the width of their groups: fewer channels, fewer groups.
    """
    writes, reads, groups = widths(layer)
    if groups > 1:
        per_group = writes // groups
        counts = sorted({max(1, width // per_group) for width in grid(writes, WRITTEN)})
        sizes = [(count * per_group, count * (reads // groups), count) for count in counts]
        taken = [_time(layer, rows, columns, count, shape, device) for rows, columns, count in sizes]
        at = np.array([0.0, *(rows for rows, _, _ in sizes)])
        times = np.array([[0.0, 0.0], *([0.0, seconds] for seconds in taken)]) * 1e9
        return at, np.array([0.0, 1.0]), times
    at_rows, at_columns = grid(writes, WRITTEN), grid(reads, READ)
    times = np.zeros((len(at_rows) + 1, len(at_columns) + 1))
    for i, rows in enumerate(at_rows, 1):
        for j, columns in enumerate(at_columns, 1):
            times[i, j] = 1e9 * _time(layer, rows, columns, 1, shape, device)
        times[i, 0] = max(times[i, 1] - (times[i, -1] - times[i, 1]) * at_columns[0] / at_columns[-1], 0.0)
    return np.array([0.0, *at_rows]), np.array([0.0, *at_columns]), times


def _time(layer: Any, rows: int, columns: int, groups: int, shape: tuple[int, ...], device: torch.device) -> float:
    kind, more = kind_of(layer), settings(layer)  # type: Any, dict[str, Any]
    if groups > 1:
        more["groups"] = groups
    made = kind(columns, rows, bias=layer.bias is not None, dtype=layer.weight.dtype, device=device, **more)
    sizes = (*shape[:-1], columns) if kind is nn.Linear else (shape[0], columns, *shape[2:])
    x = torch.randn(sizes, dtype=layer.weight.dtype, device=device)
    if channels_last(layer.weight):
        made, x = made.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        return typical(lambda: made(x), device)
