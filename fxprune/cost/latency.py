"""Time as a cost: what each op of the slim net takes, as a function of how many channels it reads and writes.

The numbers are measured elsewhere (``fxprune/latency``). Here they are only looked up: one formula for whole numbers of
channels and, differentiable, for expected ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from fxprune.channels.ids import Ids
from fxprune.cost.formula import Segments

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Table:
    """A layer: nanoseconds over the channels that it writes and reads, measured at some numbers of them."""

    rows: Ids
    columns: Ids
    at_rows: Floats  # widths that were measured; the first is 0, where it takes no time
    at_columns: Floats
    times: Floats


@dataclass(frozen=True, eq=False)
class Line:
    """An op that takes ``once`` if it is there at all and ``each`` per channel."""

    ids: Ids
    once: float
    each: float


@dataclass(frozen=True, eq=False)
class Meeting:
    """An add of two tensors that may have different channels.

    It takes ``once``, ``each`` per channel of the narrower one, and ``copied`` per channel of the result if the
    narrower one has channels that the other has not: then the result is a tensor of its own.
    """

    one: Ids
    other: Ids
    result: Ids
    once: float
    each: float
    copied: float


@dataclass(eq=False)
class Latency:
    """The time of a network, in nanoseconds.

    >>> line = Line(np.array([2, 3]), once=10.0, each=5.0)
    >>> at_rows, at_columns, times = np.array([0.0, 2]), np.array([0.0, 1]), np.array([[0, 0], [0, 40.0]])
    >>> table = Table(np.array([2, 3]), np.array([0]), at_rows, at_columns, times)
    >>> found = Latency(tables=(table,), lines=(line,), rest=100.0)
    >>> found.exact(np.array([[True, True], [False, False], [True, True], [False, True]])).tolist()
    [135.0, 160.0]
    >>> p = torch.tensor([1.0, 0.0, 1.0, 0.5], requires_grad=True)
    >>> found.expected(p).item()
    147.5
    """

    tables: tuple[Table, ...] = ()
    lines: tuple[Line, ...] = ()
    meetings: tuple[Meeting, ...] = ()
    scale: float = 1.0
    rest: float = 0.0  # what is always there
    power: float = 1.0  # of the sum of all that, so that two nets can take what they were seen to take

    def exact(self, present: npt.NDArray[np.bool_]) -> Floats:
        """For networks that compute these ids (ids x networks)."""
        return self.at(self.widths(present))

    def widths(self, present: npt.NDArray[np.bool_]) -> Floats:
        """What the time is a function of (widths x networks)."""
        return self._segments.count(present).astype(np.float64)

    def at(self, widths: Floats) -> Floats:
        times: Floats = self._of(torch.from_numpy(widths)).numpy()
        return times

    def expected(self, present: torch.Tensor) -> torch.Tensor:
        """For a network that computes each id with some probability."""
        return self._of(self._segments.expected(present.double())[:, None])[0]

    def _of(self, counts: torch.Tensor) -> torch.Tensor:
        return self.scale * self._sum(counts) ** self.power

    def _sum(self, counts: torch.Tensor) -> torch.Tensor:
        rows, columns, widths, one, other, result = self._by_part(counts)
        once, each, meet_once, meet_each, copied = self._numbers
        narrow, new = torch.minimum(one, other), (result - torch.maximum(one, other)).detach().clamp(0, 1)
        total: torch.Tensor = (
            self.rest
            + self._looked_up(rows, columns).sum(0)
            + once @ widths.clamp(max=1) + each @ widths
            + meet_once @ narrow.clamp(max=1) + meet_each @ narrow + copied @ (result * new)
        )  # fmt: skip
        return total

    def _by_part(self, counts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Rows and columns of tables, widths of lines, both operands and results of meetings."""
        t, n, m = len(self.tables), len(self.lines), len(self.meetings)
        parts: tuple[torch.Tensor, ...] = counts.split([t, t, n, m, m, m])
        return parts

    def smooth(self, present: torch.Tensor) -> torch.Tensor:
        """What to follow while training: a slope like that of ``expected``, but more channels never take less time.

        Measured times go up and down from one width to the next, by vector units and by chance. The slope between two
        points of a table says little about where it leads; ``a rows columns + b rows + c columns + d`` near it does.
        """
        counts = self._segments.expected(present.double())
        steep = self.scale * self.power * self._sum(counts.detach()[:, None]) ** (self.power - 1)
        return steep[0] * self._even(counts)

    def _even(self, counts: torch.Tensor) -> torch.Tensor:
        rows, columns, widths, one, other, _ = self._by_part(counts)
        both, written, read = self._planes
        _, each, _, meet_each, _ = self._numbers
        total: torch.Tensor = (
            both @ (rows * columns) + written @ rows + read @ columns
            + each @ widths + meet_each @ torch.minimum(one, other)
        )  # fmt: skip
        return total

    def worth(self, around: Floats) -> Callable[[Floats], Floats]:
        """What networks of some widths (widths x networks) are worth beside the one ``around``, which is worth 0.

        That one's widths are taken to be the best for a smooth time. The simplest function which is largest there is a
        sum of logarithms of widths, each weighted by the time that it takes.
        """
        with torch.enable_grad():
            given = torch.from_numpy(around).requires_grad_()
            (slopes,) = torch.autograd.grad(self._even(given), given)
        times: Floats = slopes.numpy() * around
        there = times > 0
        weights, before = times[there] / times.sum(), around[there, None]

        def worth(widths: Floats) -> Floats:
            answer: Floats = weights @ np.log(np.maximum(widths[there], 0.5) / before)  # nothing is half a channel
            return answer

        return worth

    def fit(self, present: npt.NDArray[np.bool_], times: Floats) -> None:
        """Let two networks (ids x 2), the slower one last, take exactly these times."""
        totals = (self.exact(present) / self.scale) ** (1 / self.power)
        if totals[0] < totals[1] and times[0] < times[1]:
            self.power = float(np.log(times[1] / times[0]) / np.log(totals[1] / totals[0]))
        self.scale = float(times[1] / totals[1] ** self.power)

    def _looked_up(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Between four measured points: linear in each direction."""
        at_rows, at_columns, times = self._grids
        (i, r), (j, c) = _between(at_rows, rows), _between(at_columns, columns)
        table = torch.arange(len(times))[:, None]
        low = times[table, i, j] * (1 - c) + times[table, i, j + 1] * c
        high = times[table, i + 1, j] * (1 - c) + times[table, i + 1, j + 1] * c
        return low * (1 - r) + high * r

    @cached_property
    def _planes(self) -> tuple[torch.Tensor, ...]:
        """Of each table: what a pair of channels, a written and a read one take."""
        planes = []
        for table in self.tables:
            rows, columns = (grid.reshape(-1) for grid in np.meshgrid(table.at_rows, table.at_columns, indexing="ij"))
            features = np.stack([rows * columns, rows, columns, np.ones_like(rows)], 1)
            inside = (rows > 0) & (columns > 0)
            planes.append(not_negative(features[inside], table.times.reshape(-1)[inside])[:3])
        return torch.tensor(planes, dtype=torch.float64).reshape(-1, 3).unbind(1)

    @cached_property
    def _segments(self) -> Segments:
        lists = [table.rows for table in self.tables] + [table.columns for table in self.tables]
        lists += [line.ids for line in self.lines]
        for part in ("one", "other", "result"):
            lists += [getattr(meeting, part) for meeting in self.meetings]
        return Segments(lists)

    @cached_property
    def _numbers(self) -> list[torch.Tensor]:
        lines, meetings = self.lines, self.meetings
        lists = [[x.once for x in lines], [x.each for x in lines], [x.once for x in meetings]]
        lists += [[x.each for x in meetings], [x.copied for x in meetings]]
        return [torch.tensor(each, dtype=torch.float64) for each in lists]

    @cached_property
    def _grids(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """All tables in one, those with fewer points filled up behind their last one, where nobody looks."""
        deep = max((table.at_rows.size for table in self.tables), default=2)
        wide = max((table.at_columns.size for table in self.tables), default=2)
        at_rows, at_columns = np.zeros((len(self.tables), deep)), np.zeros((len(self.tables), wide))
        times = np.zeros((len(self.tables), deep, wide))
        for n, table in enumerate(self.tables):
            more, wider = deep - table.at_rows.size, wide - table.at_columns.size
            at_rows[n] = np.append(table.at_rows, table.at_rows[-1] + 1 + np.arange(more))
            at_columns[n] = np.append(table.at_columns, table.at_columns[-1] + 1 + np.arange(wider))
            times[n] = np.pad(table.times, ((0, more), (0, wider)), mode="edge")
        return torch.from_numpy(at_rows), torch.from_numpy(at_columns), torch.from_numpy(times)


def not_negative(features: Floats, times: Floats) -> list[float]:
    """Least squares of relative errors, with coefficients of at least 0: what would be negative is left out.

    >>> np.round(not_negative(np.array([[1.0, 1], [1, 2], [1, 4]]), np.array([5.0, 7, 11])), 6).tolist()
    [3.0, 2.0]
    """
    there = times > 0
    weighted, ones = features[there] / times[there, None], np.ones(int(there.sum()))
    used = list(range(features.shape[1]))
    answer = np.zeros(features.shape[1])
    while used:
        part = np.linalg.lstsq(weighted[:, used], ones, rcond=None)[0]
        if (part >= 0).all():
            answer[used] = part
            break
        used.pop(int(part.argmin()))
    return [float(each) for each in answer]


def _between(grid: torch.Tensor, widths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which measured width is below, and how far it is from there to the next."""
    below = (torch.searchsorted(grid, widths.detach().contiguous(), right=True) - 1).clamp(0, grid.shape[1] - 2)
    start, end = grid.gather(1, below), grid.gather(1, below + 1)
    return below, (widths - start) / (end - start)
