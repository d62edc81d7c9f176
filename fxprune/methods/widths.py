"""Scores that scale widths: a threshold on them keeps the same share of every stream."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fxprune.methods.tied import Stream
from fxprune.wrapped import Wrapped


def scaled(
    net: Wrapped, streams: Sequence[Stream], ranks: Sequence[torch.Tensor], widths: Sequence[float] | None = None
) -> dict[str, torch.Tensor]:
    """Scores for ``harden``: of a stream's positions (ranked from 0, the best) the first w x width live, for one w.

    ``widths`` are what w multiplies, by default the full ones.
    """
    scores = {}
    for number, (stream, rank) in enumerate(zip(streams, ranks, strict=True)):
        width = len(stream) if widths is None else widths[number]
        score = -(rank.double() + 0.5) / max(width, 1e-9)
        scores.update({writer.layer.name: score[writer.positions] for writer in stream.writers})
    return scores
