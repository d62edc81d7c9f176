"""Hand the part of dying channels to those that live: columns of the layers that read them are added up."""

from __future__ import annotations

import torch

from fxprune.methods.tied import Stream


def merge(stream: Stream, living: torch.Tensor, dying: torch.Tensor, factors: torch.Tensor) -> None:
    """``factors`` (living x dying): how much of each living position a dying one is."""
    for reader in stream.readers or ():
        weight = reader.weight.data.transpose(0, reader.axis)  # a view: columns first
        to, of = (reader.columns[part].to(weight.device) for part in (living, dying))
        taken = weight[of]  # dying x columns of one position x ...
        moved = torch.einsum("ij,j...->i...", factors.to(taken), taken)
        weight.index_add_(0, to.reshape(-1), moved.flatten(0, 1))
        weight[of.reshape(-1)] = 0  # handed over, also where a dying one is still half written
