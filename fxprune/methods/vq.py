"""VQ, vector quantization (Gong et al.): filters are clustered to the target width, and the centres become the filters.

Columns of the next layer that read one cluster are added up. A filter is taken with its batch norm in it, since that
is what the next layer sees; for layers that write one residual stream the filters of a position stand side by side, so
that a cluster is one of positions, and merging it is right for every reader. Where filters coincide the network
computes the same as before, through any nonlinearity. Where columns cannot be moved (the stream is read by a grouped
convolution, or also written by a layer without a gate) the filter nearest to each centre lives, unchanged.
"""

from __future__ import annotations

import torch

from fxprune.methods.halving import Halving
from fxprune.methods.method import register
from fxprune.methods.streams import Stream, Writer, merge

ROUNDS = 30


@register("vq")
class VectorQuantization(Halving):
    """k-means, which starts at filters that are far from each other."""

    def values(self, stream: Stream, alive: torch.Tensor, count: int) -> torch.Tensor:
        places = torch.nonzero(alive).flatten()
        features = stream.features()[places]
        count = min(count, len(places))
        centres, cluster = kmeans(features, count)
        chosen = torch.stack([_nearest(features, centres, cluster, number) for number in range(count)])
        living = places[chosen]
        if stream.readers is not None:
            dying = torch.tensor([place for place in range(len(places)) if place not in set(chosen.tolist())]).long()
            factors = (cluster[dying][None] == torch.arange(count)[:, None]).double()
            merge(stream, living, places[dying], factors)
            start = 0
            for writer in stream.writers:
                wide = writer.folded.shape[1]
                _write(writer, living, centres[:, start : start + wide])
                start += wide
        value = torch.zeros(len(stream))
        value[living] = 1.0
        return value


def kmeans(points: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Centres, and the cluster of each point; no cluster is empty.

    >>> centres, cluster = kmeans(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), 2)
    >>> cluster.tolist() in ([0, 0, 1, 1], [1, 1, 0, 0]), sorted(centres.flatten().tolist())[1] > 5
    (True, True)
    """
    first = [int(points.square().sum(1).argmax())]
    distance = (points - points[first[0]]).square().sum(1)
    while len(first) < count:
        distance[first] = -1
        first.append(int(distance.argmax()))
        distance = torch.minimum(distance, (points - points[first[-1]]).square().sum(1))
    centres = points[first].clone()
    cluster = torch.cdist(points, centres).argmin(1)
    cluster[first] = torch.arange(count)
    for _ in range(ROUNDS):
        for number in range(count):
            centres[number] = points[cluster == number].mean(0)
        moved = torch.cdist(points, centres).argmin(1)
        if len(moved.unique()) < count or torch.equal(moved, cluster):
            break
        cluster = moved
    return centres, cluster


def _nearest(points: torch.Tensor, centres: torch.Tensor, cluster: torch.Tensor, number: int) -> torch.Tensor:
    own = torch.nonzero(cluster == number).flatten()
    return own[(points[own] - centres[number]).square().sum(1).argmin()]


def _write(writer: Writer, living: torch.Tensor, centres: torch.Tensor) -> None:
    """Write the centres into filters and biases (of the batch norm, if there is one)."""
    place = torch.full((int(writer.positions.max()) + 1,), -1)
    place[writer.positions] = torch.arange(len(writer.positions))
    known = living < len(place)
    channels, centres = place[living[known]], centres[known]
    channels, centres = channels[channels >= 0], centres[channels >= 0]
    scale = writer.scale[channels]
    usable = scale.abs() > 1e-6
    channels, centres, scale = channels[usable], centres[usable], scale[usable]
    added = centres[:, -1] - writer.shift[channels]
    weight = writer.weight.data
    weight[channels] = (centres[:, :-1] / scale[:, None]).reshape(-1, *weight.shape[1:]).to(weight)
    target = writer.norm.bias if writer.norm is not None and writer.norm.bias is not None else writer.bias
    if target is not None:
        own = torch.ones_like(scale) if target is not writer.bias or writer.norm is None else scale
        target.data[channels] += (added / own).to(target)
