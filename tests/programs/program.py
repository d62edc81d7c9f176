"""A program, the net that interprets it, and the check of its export."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from fxprune.api import wrap
from tests.exactness import call, check_export, error, random_gates, random_masks
from tests.models import leaves, randomise
from tests.programs.layers import Reuse
from tests.programs.part import CONVOLUTIONS, IMAGE, LARGEST, SIZES, Part, Values


@dataclass(frozen=True)
class Program:
    parts: tuple[Part, ...]
    outputs: tuple[int, ...]
    structure: str = "single"
    batch: int = 1
    size: tuple[int, int] = SIZES[0]
    other: tuple[int, int, int] = (2, 16, 14)  # another batch size and image size
    density: float = 0.4
    seed: int = 0

    def __repr__(self) -> str:
        lines = "".join(f"        {made!r},\n" for made in self.parts)
        rest = [f for f in fields(self)[1:] if f.default != getattr(self, f.name)]
        options = "".join(f"    {f.name}={getattr(self, f.name)!r},\n" for f in rest)
        return f"Program(\n    parts=(\n{lines}    ),\n{options})"


class Net(nn.Module):
    """Interprets a program; its modules are named after the parts' numbers."""

    def __init__(self, batch: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.parts = nn.ModuleDict()
        self.program: list[Part] = []
        self.outputs: tuple[int, ...] = ()
        self.structure = "single"
        self.seen: Values = [torch.zeros(batch, IMAGE, *size)]  # while it is built

    def append(self, made: Part) -> None:
        """Build a part and run it, so that the next one knows the shapes."""
        number = len(self.program)
        module = made.build(self.seen)
        if module is not None:
            self.parts[str(number)] = module.eval()
        self.program.append(made)
        try:
            self.step(number, made, self.seen)
        except Exception:
            self.undo(len(self.seen))
            raise

    def undo(self, count: int) -> None:
        """Drop the last part, and the values beyond ``count``."""
        del self.seen[count:], self.program[-1]
        self.parts._modules.pop(str(len(self.program)), None)

    def step(self, number: int, made: Part, values: Values) -> None:
        owner = made.part if isinstance(made, Reuse) else number
        found = made.run(self.parts._modules.get(str(owner)), values)
        values.extend(found if isinstance(found, tuple) else (found,))

    def values(self, x: torch.Tensor) -> Values:
        values = [x]
        for number, made in enumerate(self.program):
            self.step(number, made, values)
        return values

    def forward(self, x: torch.Tensor) -> Any:
        values = self.values(x)
        found = [values[index] for index in self.outputs]
        if self.structure == "dict":
            return {f"out{position}": value for position, value in enumerate(found)}
        return found[0] if self.structure == "single" else tuple(found)


def build(program: Program) -> Net:
    """The net of a program: float64, eval mode, everything random."""
    with torch.random.fork_rng():
        net = Net(program.batch, program.size)
        for made in program.parts:
            net.append(made)
    net.seen, net.outputs, net.structure = [], program.outputs, program.structure
    randomise(net.double().eval(), torch.Generator().manual_seed(program.seed))
    return net


def inputs(program: Program) -> list[tuple[torch.Tensor]]:
    """The example, another batch size, and another batch and image size."""
    generator = torch.Generator().manual_seed(program.seed + 1)
    batch, *size = program.other
    shapes = [(program.batch, *program.size), (batch, *program.size), (batch, *size)]
    return [(torch.randn(n, IMAGE, h, w, generator=generator, dtype=torch.float64),) for n, h, w in shapes]


def tame(net: Net, given: tuple[torch.Tensor]) -> bool:
    """Does the model itself run, with numbers that double precision holds well?"""
    try:
        with torch.no_grad():
            values = net.values(given[0].clone())
    except (RuntimeError, ValueError):
        return False
    return all(float(value.abs().max()) < LARGEST for value in values if value.numel())


def check(program: Program) -> bool:
    """Fresh, the wrapped net is the model; hardened, its export is exact at every size. False: nothing to see."""
    net = build(program)
    example, *others = inputs(program)
    if not any(isinstance(module, CONVOLUTIONS) for module in net.modules()) or not tame(net, example):
        return False
    given = [example, *(other for other in others if tame(net, other))]
    wrapped = wrap(net, 0.5, example_inputs=example)
    for tensors in given:
        expected = call(net, tensors)
        assert leaves(expected)
        far = error(call(wrapped, tensors), expected)
        assert far <= 1e-12, f"freshly wrapped net differs by {far:.2g} on {tuple(tensors[0].shape)}"
    assert replace(wrapped.cost(), params=0) == replace(wrapped.full_cost(), params=0)
    generator = torch.Generator().manual_seed(program.seed + 2)
    random_gates(wrapped, generator)
    wrapped.set_masks(random_masks(wrapped, program.density, generator))
    slim = check_export(wrapped, given, verify=False)
    also = program.seed % 9  # a ninth of the programs each
    if also == 0:
        check_export(wrapped, given, "dense", verify=False)
    elif also == 1 and any(isinstance(module, CONVOLUTIONS) for module in slim.modules()):
        again = wrap(slim, 0.5, example_inputs=example)
        check_export(again.set_masks(random_masks(again, 0.6, generator)), given, verify=False)
    elif also == 2:  # what is written in place is not needed for gradients
        outputs = [output for output in leaves(slim(*example)) if output.requires_grad]
        if outputs:
            torch.stack([output.square().sum() for output in outputs]).sum().backward()
    return len(wrapped.gates) > 0
