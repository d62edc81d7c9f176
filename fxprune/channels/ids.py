"""The id table: what makes each channel alive, and who needs it.

Every channel that an op computes gets an id. A block of ids is born with one of three kinds:

* **mix**: a row of a convolution or linear layer: alive if its gate is open and any input of its group lives;
* **any**: an add: alive if any operand is;
* **all**: a multiply: alive if all operands are.

``ONE`` always lives (an input of the model), ``ZERO`` never does (zero padding along channels), ``FIXED`` always lives
but says nothing of the input (a class token that is concatenated). One pass forwards
over the blocks answers who is alive, one pass backwards who is needed: ``cost/exact.py`` for masks,
``cost/expectation.py`` for probabilities.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

ONE, ZERO, FIXED = 0, 1, 2
OPEN = -1  # the gate of a row that has none
HEADS = 1 << 16  # ids of a grid of heads x channels, at most


def immortal(ids: Ids) -> npt.NDArray[np.bool_]:
    """Which ids live whatever the gates are."""
    return np.logical_or(np.equal(ids, ONE), np.equal(ids, FIXED))


def distinct(rows: Ids) -> tuple[Ids, Ids]:
    """The different rows, in the order in which they come first, and which of them each row is.

    >>> distinct(np.array([[3, 4], [1, 2], [3, 4]]))
    (array([[3, 4],
           [1, 2]]), array([0, 1, 0]))
    """
    if rows.shape[0] == 0:
        return rows, np.zeros(0, dtype=np.int64)
    # Sorting one number per row instead of rows: hundreds of times faster on tokens by channels.
    factors = np.random.default_rng(0).integers(1 << 63, size=rows.shape[1], dtype=np.uint64) | np.uint64(1)
    keys = (rows.astype(np.uint64) * factors).sum(1, dtype=np.uint64)
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    found = rows[first[order]]
    which = np.argsort(order)[which.reshape(-1)]
    if not np.array_equal(found[which], rows):  # two rows with the same number
        found, which = np.unique(rows, axis=0, return_inverse=True)
    return found, which.reshape(-1)


def _are_heads(ids: Ids) -> bool:
    """Whether every head has channels of its own, or shares them with as many others. Of tokens most are alike."""
    for axis in range(ids.ndim):
        counts = np.bincount(distinct(np.moveaxis(ids, axis, 0).reshape(ids.shape[axis], -1))[1])
        if (counts != counts[0]).any():
            return False
    return True


@dataclass(eq=False)
class Mix:
    """``out[g, r]`` reads every ``inputs[g, :]`` and hangs on the gate variables ``gate[:, g, r]``: one, or two where
    a channel dies with its attention head or with its place inside of all heads."""

    out: Ids
    inputs: Ids
    gate: Ids
    owner: str
    of_size: bool = False  # nothing but the size of what it reads is asked for: one channel of that is enough


@dataclass(eq=False)
class Join:
    """``out[i]`` joins ``operands[k][i]`` over k: any of them, or all of them."""

    kind: str  # "any" or "all"
    out: Ids
    operands: tuple[Ids, ...]
    scalers: frozenset[int] = frozenset()  # operands that only scale the others (a sigmoid's output)


class IdTable:
    """Grows while rules relate ops; afterwards it only answers questions.

    >>> table = IdTable()
    >>> stem = table.mix(np.array([[ONE, ONE, ONE]]), rows=4, owner="stem")
    >>> conv = table.mix(stem, rows=4, owner="conv")
    >>> stream = table.any(stem[0], conv[0])
    >>> stem[0].tolist(), conv[0].tolist(), stream.tolist()
    ([3, 4, 5, 6], [7, 8, 9, 10], [11, 12, 13, 14])
    >>> table.source(9) == (table.blocks[1], 2)
    True
    """

    def __init__(self) -> None:
        self.size = 3
        self.blocks: list[Mix | Join] = []
        self.starts: list[int] = []  # the first id of each

    # ------------------------------------------------------------ building

    def _new(self, count: int) -> Ids:
        """Of the next block."""
        self.starts.append(self.size)
        ids = np.arange(self.size, self.size + count, dtype=np.int64)
        self.size += count
        return ids

    def mix(self, inputs: Ids, rows: int, owner: str) -> Ids:
        """``rows`` new ids for each group of ``inputs`` (groups x inputs); returns groups x rows."""
        groups = inputs.shape[0]
        if inputs.shape[1] == 0:  # of an empty tensor
            inputs = np.full((groups, 1), ONE, dtype=np.int64)
        out = self._new(groups * rows).reshape(groups, rows)
        self.blocks.append(Mix(out, inputs, np.full_like(out[None], OPEN), owner))
        return out

    def size_of(self, ids: Ids, owner: str) -> Ids:
        """One id that lives as long as any of these does."""
        read = np.unique(ids)
        if read.size == 1:
            return read
        self.mix(read[None], rows=1, owner=owner)
        block = self.blocks[-1]
        assert isinstance(block, Mix)
        block.of_size = True
        return block.out.reshape(1)

    def any(self, *operands: Ids) -> Ids:
        """Alive where one operand is; operands broadcast."""
        return self._join("any", operands, frozenset())

    def all(self, *operands: Ids, scalers: frozenset[int] = frozenset()) -> Ids:
        """Alive where all operands are; operands broadcast."""
        return self._join("all", operands, scalers)

    def _join(self, kind: str, operands: tuple[Ids, ...], scalers: frozenset[int]) -> Ids:
        wide = np.broadcast_arrays(*(self._bounded(ids) for ids in operands))
        if all(bool(immortal(ids).all()) for ids in wide):
            return np.where(np.logical_or.reduce([ids == ONE for ids in wide]), ONE, FIXED)
        kept = [
            (i, ids) for i, ids in enumerate(wide)
            if not bool(((ids == ZERO) if kind == "any" else immortal(ids)).all())
        ]  # fmt: skip
        if not kept:
            return np.array(wide[0], dtype=np.int64)
        if all(np.array_equal(ids, kept[0][1]) for _, ids in kept):
            return np.array(kept[0][1], dtype=np.int64)
        flat = np.stack([np.asarray(ids).reshape(-1) for _, ids in kept])
        which = np.arange(flat.shape[1])
        if sum(size > 1 for size in wide[0].shape) > 1:  # the same channels at many positions
            rows, which = distinct(flat.T)
            flat = rows.T
        out = self._new(flat.shape[1])
        self.blocks.append(Join(kind, out, tuple(flat), frozenset(n for n, (i, _) in enumerate(kept) if i in scalers)))
        # What is made of nothing but padding is padding itself, and not merely dead under every mask.
        zeros = [np.asarray(ids) == ZERO for _, ids in kept]
        padding = np.logical_and.reduce(zeros) if kind == "any" else np.logical_or.reduce(zeros)
        return np.where(padding, ZERO, out[which.reshape(-1)].reshape(wide[0].shape))

    def _bounded(self, ids: Ids) -> Ids:
        """Ids that vary along several axes (tokens x channels) collapse before they multiply; those of heads do not."""
        if ids.ndim == 0 or ids.size <= 16 * max(ids.shape) or (ids.size <= HEADS and _are_heads(ids)):
            return ids
        return self.collapse(ids)

    def collapse(self, ids: Ids) -> Ids:
        """*any* over all axes but the one along which the ids differ most: the channels."""
        if sum(size > 1 for size in ids.shape) < 2:
            return ids
        folded = [np.moveaxis(ids, axis, 0).reshape(ids.shape[axis], -1) for axis in range(ids.ndim)]
        axis = int(np.argmax([len(distinct(slices)[0]) for slices in folded]))
        shape = [1] * ids.ndim
        shape[axis] = ids.shape[axis]
        return self.any(*distinct(folded[axis].T)[0]).reshape(shape)

    # ------------------------------------------------------------ asking

    def source(self, identity: int) -> tuple[Mix | Join, int] | None:
        """The block that an id comes out of, and its place there; the ids that are always there come out of none."""
        number = bisect_right(self.starts, identity) - 1
        return (self.blocks[number], identity - self.starts[number]) if number >= 0 else None

    def is_grid(self, ids: Ids) -> bool:
        """Whether the rows of one layer, or what one op made of them, lie along two axes, none of them twice: heads and
        their channels. Where one of the axes is that of tokens, channels come again and again."""
        if sum(size > 1 for size in ids.shape) != 2 or ids.size > HEADS or np.unique(ids).size < ids.size:
            return False
        first, last = self.source(int(ids.min())), self.source(int(ids.max()))
        return first is not None and last is not None and first[0] is last[0]

    def scaled(self, sources: Iterable[Ids]) -> npt.NDArray[np.bool_]:
        """Per id, whether it is one of the sources, multiplied with something or not."""
        marked = np.zeros(self.size, dtype=bool)
        for ids in sources:
            marked[ids] = True
        for block in self.blocks:
            if isinstance(block, Join) and block.kind == "all":
                marked[block.out] |= np.logical_or.reduce([marked[operand] for operand in block.operands])
        return marked
