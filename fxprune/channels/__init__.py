"""Who a channel is: its identity, and what the analysis of a model found out about its channels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from torch import fx

from fxprune.channels.ids import Ids, IdTable, Join
from fxprune.trace import Trace


@dataclass(frozen=True, eq=False)
class Mixer:
    """One call of a convolution or linear layer: which ids it reads and writes, and what a channel costs."""

    node: fx.Node
    name: str  # path of the module that owns the weight
    ids: Ids  # written: groups x rows
    inputs: Ids  # read: groups x columns
    kernel: int  # weights per input and output channel
    area: int  # positions of an output channel, per sample
    sites: int  # positions at which the kernel is applied, per sample
    bias: bool
    is_conv: bool  # a linear layer is none

    @property
    def groups(self) -> int:
        return int(self.ids.shape[0])

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.inputs.shape[1] == 1


@dataclass(frozen=True, eq=False)
class Affine:
    """Parameters that are cut with channels (of a norm or PReLU, position tables): ``count`` of them per channel.

    ``ids`` are groups x channels. Every group of the slim net that has any has as many as the one with the most.
    """

    node: fx.Node
    name: str
    ids: Ids
    count: int
    read: Ids  # the slim net runs the op if it computes any of these


@dataclass(frozen=True, eq=False)
class Product:
    """A product of two tensors that both depend on the input: ``factor`` FLOPs per id and sample.

    ``ids`` are groups x channels (heads x width) along which it is cut, as in ``Affine``.
    """

    node: fx.Node
    ids: Ids
    factor: int
    read: Ids  # as in ``Affine``
    needs: Ids  # it runs in full where none of these is there
    same_width: bool = False  # groups have as many channels as those of the node's other products, if these have more


@dataclass(frozen=True, eq=False)
class Uncut:
    """What an op costs that the slim net runs in full, or not at all if it computes none of its ``ids``."""

    node: fx.Node
    name: str  # of the module or tensor that holds the parameters: they count once
    ids: Ids
    read: Ids  # as in ``Affine``
    params: int
    flops: int  # per sample


Part = TypeVar("Part", Mixer, Affine, Uncut)


def by_name(parts: Iterable[Part]) -> dict[str, list[Part]]:
    """Layer -> its calls."""
    calls: dict[str, list[Part]] = {}
    for part in parts:
        calls.setdefault(part.name, []).append(part)
    return calls


class Role(Enum):
    QUERIES = "queries"
    KEYS = "keys"
    VALUES = "values"
    RESULTS = "results"


@dataclass(frozen=True, eq=False)
class Heads:
    """Of a product that attention computes head by head, the ids (heads x channels) of an operand or of the result.
    Every head has the same width in the slim net, however many of its channels live."""

    role: Role
    ids: Ids
    partners: Ids | None = None  # of queries: the keys that they meet


class Zeros(Enum):
    """What an op turns zeros into (of dead channels, and of padding) if they do not stay zeros."""

    MASKED = "other numbers, which the mask behind the op makes zeros again"
    DATA = "other numbers, and the mask does not make all of them zeros again"
    UNKNOWN = "nobody knows: no rule for the op, or for this use of it"


class Frozen(Enum):
    """Why an op freezes, as it is told."""

    NO_RULE = "no rule for this op"
    RECURRENT = "a recurrent layer keeps all channels that it reads and writes"
    NEEDS_ALL = "this use of the op needs every channel"
    LEAF = "not looked into: {}"


@dataclass(frozen=True)
class Freeze:
    """An op that needs every channel, as far as we know: what reaches it is kept."""

    node: str
    op: str
    source: str | None
    kind: Frozen
    reason: str  # of a leaf: why it was not looked into
    ids: Ids = field(repr=False, compare=False)

    @property
    def why(self) -> str:
        return self.kind.value.format(self.reason)


@dataclass(frozen=True, eq=False)
class Channels:
    """The channel analysis of a traced model."""

    trace: Trace
    table: IdTable
    flows: dict[fx.Node, Any]
    mixers: tuple[Mixer, ...]
    heads: tuple[Heads, ...]
    anchors: dict[fx.Node, fx.Node]  # layer -> the batch norm behind which its gate stands
    zeros: dict[fx.Node, Zeros]  # ops behind which zeros are no longer zeros
    freezes: tuple[Freeze, ...]
    sized: tuple[tuple[fx.Node, Ids], ...]  # tensors whose size the model reads
    tied: tuple[Ids, ...]  # groups x channels that a group norm treats together
    seen: tuple[tuple[fx.Node, Ids], ...]  # where a class token is read alone, the channels that tell it of the input
    outputs: tuple[Ids, ...]
    affines: tuple[Affine, ...] = ()
    products: tuple[Product, ...] = ()
    uncut: tuple[Uncut, ...] = ()

    @cached_property
    def masked(self) -> tuple[fx.Node, ...]:
        """Ops behind which a mask makes dead channels zero again, in the order of the graph."""
        return tuple(node for node, became in self.zeros.items() if became is not Zeros.UNKNOWN)

    @cached_property
    def whole(self) -> frozenset[fx.Node]:
        """Ops that the slim net runs on complete operands, whatever is removed."""
        return frozenset(node for node, became in self.zeros.items() if became is not Zeros.MASKED)

    @cached_property
    def of_heads(self) -> npt.NDArray[np.bool_]:
        """Per id, whether it is a channel of attention heads, or makes one of them."""
        marked = np.zeros(self.table.size, dtype=bool)
        for heads in self.heads:
            marked[heads.ids] = True
        for block in reversed(self.table.blocks):
            if isinstance(block, Join):
                for operand in block.operands:
                    marked[operand[marked[block.out]]] = True
        return marked
