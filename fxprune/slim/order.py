"""The order of channels is free: choose it so that what a residual block adds to its stream is one contiguous slice.

Channels are sorted by the layer that writes them first, so that a stream only ever grows at its end; among those of one
layer, the ones that the next layer writes too come last, beside its new ones, and so on.
"""

from __future__ import annotations

import networkx as nx
import numpy as np
import numpy.typing as npt

from fxprune.channels import Channels
from fxprune.channels.ids import Ids, Join, Mix


def channel_order(channels: Channels, present: npt.NDArray[np.bool_]) -> dict[str, Ids]:
    """Per layer, the rank of each of its channels in the stream that it writes."""
    streams = nx.Graph()
    sizes: dict[int, int] = {}
    for block in channels.table.blocks:
        out = block.out.reshape(-1)
        start = int(out[0])
        sizes[start] = out.size
        streams.add_node(start)
        for operand in block.operands if isinstance(block, Join) else _followed(block):
            if sizes.get(int(operand[0])) == operand.size and bool((np.diff(operand) == 1).all()):
                streams.add_edge(start, int(operand[0]))
    owners = {int(mixer.ids.flat[0]): mixer for mixer in channels.mixers}
    ranks: dict[str, Ids] = {}
    for part in nx.connected_components(streams):
        writers = [owners[start] for start in sorted(part) if start in owners]
        if len(writers) > 1:
            rank = _rank([present[writer.ids.reshape(-1)] for writer in writers])
            ranks.update({writer.name: rank for writer in writers})
    return ranks


def _followed(block: Mix) -> tuple[Ids, ...]:
    """A depthwise layer keeps its input's order."""
    return (block.inputs[:, 0],) if block.inputs.shape[1] == 1 and block.out.shape[1] == 1 else ()


def _rank(sets: list[npt.NDArray[np.bool_]]) -> Ids:
    members = np.stack(sets)  # writers x channels
    first = np.where(members.any(0), members.argmax(0), len(sets))
    later = members & (np.arange(len(sets))[:, None] > first)
    mirrored = np.logical_xor.accumulate(later)  # 00, 01, 11, 10: what two halves share meets in the middle
    order = np.lexsort((*mirrored[::-1], first))
    rank = np.empty(order.size, dtype=np.int64)
    rank[order] = np.arange(order.size)
    return rank
