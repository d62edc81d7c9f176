"""The values that passes hand each other. A pass returns a new one instead of changing what it got."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from torch import fx, nn

from fxprune.channels.ids import Ids, IdTable


@dataclass(frozen=True)
class Specialisation:
    """What the model's Python code consumed while it was traced, and the graph therefore asserts."""

    node: str
    kind: str  # "branch", "value" or "training"
    value: Any
    source: str | None


@dataclass(frozen=True)
class Leaf:
    """A submodule kept as one opaque call, because its Python code could not be traced or the user asked for it."""

    path: str
    type: str
    reason: str
    source: str | None
    volume: int = 0  # of the convolutions inside, which are counted but never pruned
    flops: int = 0
    params: int = 0


@dataclass(frozen=True)
class Trace:
    """A model as a graph over a copy without data (``root``).

    Every node's ``meta`` holds ``value`` (a meta tensor, a size ...), ``source`` (file:line) and ``module``.
    """

    graph: fx.Graph
    root: nn.Module
    model: nn.Module = field(repr=False)  # the user's, for the values of constants
    specialisations: tuple[Specialisation, ...] = ()
    leaves: tuple[Leaf, ...] = ()
    example: tuple[tuple[Any, ...], dict[str, Any]] = field(default=((), {}), repr=False)  # without data


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
    is_conv: bool  # gated and counted; also a linear layer that is called on a map, once at least: a 1x1 convolution

    @property
    def groups(self) -> int:
        return int(self.ids.shape[0])

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.inputs.shape[1] == 1


@dataclass(frozen=True, eq=False)
class Affine:
    """Per-channel parameters (a norm's weight and bias, a PReLU's slope): ``count`` of them per channel."""

    node: fx.Node
    name: str
    ids: Ids
    count: int


Part = TypeVar("Part", Mixer, Affine)


def by_name(parts: Iterable[Part]) -> dict[str, list[Part]]:
    """Layer -> its calls."""
    found: dict[str, list[Part]] = {}
    for part in parts:
        found.setdefault(part.name, []).append(part)
    return found


class Frozen(Enum):
    """Why an op freezes, as it is told."""

    NO_RULE = "no rule for this op"
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
    affines: tuple[Affine, ...]
    anchors: dict[fx.Node, fx.Node]
    masks: tuple[fx.Node, ...]
    freezes: tuple[Freeze, ...]
    opaque: frozenset[
        fx.Node
    ]  # ops that run on complete operands: without a rule, or in a use that theirs does not know
    filled: frozenset[fx.Node]  # ops that make something of zeros which no mask takes back
    sized: tuple[tuple[fx.Node, Ids], ...]
    tied: tuple[Ids, ...]
    outputs: tuple[Ids, ...]
