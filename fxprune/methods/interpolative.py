"""ID, interpolative decomposition: filters that others express are removed; the next layer takes in the factors.

The filters of a stream, with their batch norms in them and side by side as for VQ, are the columns of a matrix. A
QR decomposition with column pivoting chooses the columns that live; the others are fitted by them, and the factors are
multiplied into the layers that read the stream. That is exact where nothing but linear maps stands in between;
a ReLU in between makes it an approximation, which training repairs. Where columns cannot be moved (see VQ) only the
choice is made.
"""

from __future__ import annotations

import torch

from fxprune.methods.halving import Halving
from fxprune.methods.method import register
from fxprune.methods.streams import Stream, merge


@register("id")
class InterpolativeDecomposition(Halving):
    """The pivots stay."""

    def values(self, stream: Stream, alive: torch.Tensor, count: int) -> torch.Tensor:
        places = torch.nonzero(alive).flatten()
        matrix = stream.features()[places].T
        chosen = pivots(matrix, min(count, len(places)))
        if stream.readers is not None and len(chosen) < len(places):
            rest = torch.ones(len(places), dtype=torch.bool)
            rest[chosen] = False
            dying = torch.nonzero(rest).flatten()
            factors = torch.linalg.lstsq(matrix[:, chosen], matrix[:, dying], driver="gelsd").solution
            merge(stream, places[chosen], places[dying], factors)
        value = torch.zeros(len(stream))
        value[places[chosen]] = 1.0
        return value


def pivots(matrix: torch.Tensor, count: int) -> torch.Tensor:
    """The columns that a QR decomposition with column pivoting takes first.

    >>> pivots(torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]), 2).tolist()
    [1, 2]
    """
    left = matrix.clone()
    chosen: list[int] = []
    for _ in range(count):
        sizes = left.square().sum(0)
        sizes[chosen] = -1
        chosen.append(int(sizes.argmax()))
        column = left[:, chosen[-1]]
        if column.norm() > 0:
            direction = column / column.norm()
            left -= direction[:, None] * (direction @ left)[None]
    return torch.tensor(chosen)
