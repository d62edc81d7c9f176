"""Ridge regression in float64, group by group, and what is gained where a ReLU follows.

What is fitted is the difference to the weights as they are: where the samples say little, these stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

RIDGES = (1e-1, 1e-2, 1e-3, 1e-5, 1e-12)  # of the mean diagonal; which of them, held-back samples decide
ROUNDS = 4  # of targets below zero
Maps = torch.Tensor  # groups x columns x rows


@dataclass(frozen=True)
class Activation:
    """What cuts values off behind a layer: below ``low`` and above ``high`` nothing but the side matters."""

    low: float
    high: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(self.low, self.high)

    def target(self, wanted: torch.Tensor, reached: torch.Tensor) -> torch.Tensor:
        """What is as good as ``wanted``, and nearest to what is ``reached``."""
        wanted = torch.where(wanted <= self.low, reached.clamp(max=self.low), wanted)
        return torch.where(wanted >= self.high, reached.clamp(min=self.high), wanted)


@dataclass(frozen=True)
class Rows:
    """What a layer saw and what it should have made of that, at some positions: samples x groups x columns or rows.

    ``given`` is what is added to its output behind it.
    """

    inputs: torch.Tensor
    wanted: torch.Tensor
    given: torch.Tensor | None

    def __len__(self) -> int:
        return self.inputs.shape[0]


@dataclass(frozen=True)
class Affine:
    """``x -> x V + c``, group by group."""

    maps: Maps
    constant: torch.Tensor  # groups x rows

    def __call__(self, rows: Rows) -> torch.Tensor:
        made = torch.einsum("ngd,gdr->ngr", rows.inputs, self.maps.to(rows.inputs)) + self.constant.to(rows.inputs)
        return made if rows.given is None else made + rows.given


BLOCK = 4096  # rows whose products are summed in one step


def covariances(inputs: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Groups x columns x columns: means of products of the inputs without ``shift``."""
    total = torch.zeros(*shift.shape, shift.shape[1], dtype=torch.float64)
    for block in inputs.split(BLOCK):
        centred = (block - shift.to(block)).transpose(0, 1)
        total += centred.transpose(1, 2) @ centred
    return total / len(inputs)


class Summed:
    """Covariances of rows that come in parts, group by group: sums in float64, around the mean of the first of them."""

    def __init__(self) -> None:
        self.count, self.shift, self.parts = 0, torch.empty(0), list[torch.Tensor]()

    def add(self, inputs: torch.Tensor) -> None:
        self.parts.append(inputs)
        if sum(map(len, self.parts)) >= BLOCK // 2:
            self._sum()

    def _sum(self) -> None:
        inputs = torch.cat(self.parts)
        self.parts.clear()
        if self.count == 0:
            self.shift = inputs.double().mean(0)
            self.sums = torch.zeros_like(self.shift)
            self.products = torch.zeros(*self.shift.shape, self.shift.shape[1], dtype=torch.float64)
        self.count += len(inputs)
        centred = (inputs - self.shift.to(inputs)).transpose(0, 1)
        self.sums += centred.double().sum(1)
        self.products += centred.transpose(1, 2) @ centred

    def covariances(self) -> torch.Tensor:
        if self.parts:
            self._sum()
        mean = self.sums / self.count
        return self.products / self.count - mean[:, :, None] * mean[:, None, :]


class Moments:
    """Means, covariances and products with targets, groups by groups, of inputs that are held in the type that they
    have; all sums are in float64. With more columns than rows, products of rows stand for the covariance."""

    def __init__(self, inputs: torch.Tensor, *, centred: bool) -> None:
        mean = inputs.double().mean(0)
        self.inputs, self.mean = inputs, mean
        self.shift = mean if centred else torch.zeros_like(mean)
        self.dual = inputs.shape[2] > len(inputs)
        if self.dual:
            own = (inputs.double() - self.shift).transpose(0, 1)
            self.gram = own @ own.transpose(1, 2) / len(inputs)
        else:
            self.gram = covariances(inputs, self.shift)

    def factors(self, ridge: float) -> torch.Tensor | None:
        """Of the gram matrix with a ridge (a share of the mean variance of the inputs); None if it has none."""
        trace = self.gram.diagonal(dim1=1, dim2=2).sum(1).clamp(min=torch.finfo(torch.float64).tiny)
        unit = torch.eye(self.gram.shape[1], dtype=torch.float64)
        ridged = self.gram + (ridge * trace / self.inputs.shape[2])[:, None, None] * unit
        factor, failed = torch.linalg.cholesky_ex(ridged)
        return None if bool(failed.any()) else factor

    def products(self, target: torch.Tensor) -> torch.Tensor:
        """Of the inputs with ``target`` (rows x groups x outputs)."""
        if self.dual:
            return target.double().transpose(0, 1) / len(self.inputs)
        total = torch.zeros(*self.mean.shape, target.shape[2], dtype=torch.float64)
        for block, wanted in zip(self.inputs.split(BLOCK), target.split(BLOCK), strict=True):
            total += ((block - self.shift.to(block)).permute(1, 2, 0) @ wanted.transpose(0, 1)).double()
        return total / len(self.inputs)

    def solved(self, factor: torch.Tensor, products: torch.Tensor) -> Maps:
        """The maps that are nearest to a target, of which ``products`` are given."""
        weights = torch.cholesky_solve(products, factor)
        return (self.inputs.double() - self.shift).permute(1, 2, 0) @ weights if self.dual else weights

    def variance(self, maps: Maps) -> torch.Tensor:
        """Of what these maps make of the inputs: groups x outputs."""
        total = torch.zeros(maps.shape[0], maps.shape[2], dtype=torch.float64)
        for block in self.inputs.split(BLOCK):
            made = torch.einsum("ngd,gdr->ngr", block - self.mean.to(block), maps.to(block))
            total += made.double().square().sum(0)
        return total / len(self.inputs)


def error(found: torch.Tensor, wanted: torch.Tensor, activation: Activation | None) -> float:
    """The share of the variance that is missed, of all rows together."""
    if activation is not None:
        found, wanted = activation(found), activation(wanted)
    found, wanted = found.double(), wanted.double()
    missed, all_of_it = (found - wanted).square().sum(), (wanted - wanted.mean(0)).square().sum()
    return float(missed / all_of_it) if all_of_it > 0 else float(missed > 0)


def fit(
    fitted: Rows, held: Rows, start: Affine, activation: Activation | None, *, constant: bool
) -> tuple[Affine, Moments]:
    """The map that is best on the ``held`` rows, and what is known of the inputs. The ridge is chosen by these rows,
    and whether to make use of the activation."""
    known = Moments(fitted.inputs, centred=constant)
    given = 0.0 if fitted.given is None else fitted.given

    reached = Affine(start.maps, -torch.einsum("gd,gdr->gr", known.shift, start.maps))(replace(fitted, given=None))

    def solver(target: torch.Tensor) -> Callable[[torch.Tensor], Affine]:
        middle = target.double().mean(0) if constant else torch.zeros_like(start.constant)
        products = known.products(target - middle.to(target) - reached)

        def solved(factor: torch.Tensor) -> Affine:
            maps = start.maps + known.solved(factor, products)
            return Affine(maps, middle - torch.einsum("gd,gdr->gr", known.shift, maps))

        return solved

    def missed(answer: Affine) -> float:
        return error(answer(held), held.wanted, activation)

    best, least, best_factor = start, float("inf"), None
    plain = solver(fitted.wanted - given)
    for ridge in RIDGES:
        factor = known.factors(ridge)
        if factor is None:
            continue
        answer = plain(factor)
        if missed(answer) < least:
            best, least, best_factor = answer, missed(answer), factor
    if activation is not None and best_factor is not None:
        answer = best
        for _ in range(ROUNDS):
            answer = solver(activation.target(fitted.wanted, answer(fitted)) - given)(best_factor)
            if missed(answer) < least:
                best, least = answer, missed(answer)
    return best, known
