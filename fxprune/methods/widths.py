"""Scores that scale widths: a threshold on them keeps the same share of every stream."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fxprune.methods.tied import Stream


def scaled(
    streams: Sequence[Stream], values: Sequence[torch.Tensor], widths: Sequence[float] | None = None
) -> dict[str, torch.Tensor]:
    """Scores for ``harden``: of a stream's positions (the largest values first) the first w x width live, for one w.

    ``widths`` are what w multiplies, by default the full ones.
    """
    scores = {}
    for number, (stream, value) in enumerate(zip(streams, values, strict=True)):
        width = len(stream) if widths is None else widths[number]
        rank = torch.argsort(torch.argsort(value, descending=True, stable=True))
        score = -(rank.double() + 0.5) / max(width, 1e-9)
        scores.update({writer.layer.name: score[writer.positions] for writer in stream.writers})
    return scores
