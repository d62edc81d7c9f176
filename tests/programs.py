"""Random networks: small programs of parts, drawn by hypothesis and interpreted by a plain module.

A ``Program`` is a tuple of frozen parts; part number ``n`` reads earlier values by their index (value 0 is the image)
and appends one value, or several. Its repr is Python: a failing example can be pasted into ``tests/regressions.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import reject
from hypothesis import strategies as st
from torch import nn

from fxprune.api import wrap
from tests.exactness import call, check_export, error, random_gates, random_masks
from tests.models import leaves, randomise

Draw = Callable[[Any], Any]
Values = list[torch.Tensor]
DENSITIES = (0.4, 0.7, 0.1, 0.0, 1.0)
SIZES = ((8, 6), (8, 8), (9, 7), (12, 10))
CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
IMAGE = 3  # channels
LARGEST = 1e4  # of all values: beyond it rounding alone may exceed the tolerance


part = dataclass(frozen=True, repr=False)


@part
class Part:
    """A step of a program. ``build`` gives it its module, ``run`` computes; values are read by index."""

    def build(self, values: Values) -> nn.Module | None:
        return None

    def run(self, module: Any, values: Values) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        """Python, without the options that have their defaults."""
        shown = [f for f in fields(self) if f.default != getattr(self, f.name)]
        return f"{type(self).__name__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in shown)})"


class Parameters(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.ones(shape))


def width(x: torch.Tensor) -> int:
    return int(x.shape[1])


MODULES: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
}
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "tanh": torch.tanh,
    "hardswish": F.hardswish,
}
ACTIVATIONS = tuple(FUNCTIONS)


# -------------------------------------------------------------------- convolutions


@part
class Conv(Part):
    x: int
    out: int
    k: int = 1
    stride: int = 1
    bias: bool = True
    groups: int = 1

    def build(self, values: Values) -> nn.Module:
        i = width(values[self.x])
        return nn.Conv2d(i, self.out, self.k, self.stride, self.k // 2, groups=self.groups, bias=self.bias)

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x])


@part
class ConvBn(Conv):
    relu: bool = False

    def build(self, values: Values) -> nn.Module:
        tail = [nn.ReLU()] if self.relu else []
        return nn.Sequential(super().build(values), nn.BatchNorm2d(self.out), *tail)


@part
class Depthwise(Part):
    x: int
    multiplier: int = 1
    k: int = 3
    stride: int = 1
    bias: bool = True

    def build(self, values: Values) -> nn.Module:
        i = width(values[self.x])
        return nn.Conv2d(i, i * self.multiplier, self.k, self.stride, self.k // 2, groups=i, bias=self.bias)

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x])


@part
class Transposed(Part):
    x: int
    out: int
    stride: int = 2
    bias: bool = True
    groups: int = 1

    def build(self, values: Values) -> nn.Module:
        i, k = width(values[self.x]), {1: 3, 2: 4}[self.stride]
        return nn.ConvTranspose2d(i, self.out, k, self.stride, 1, groups=self.groups, bias=self.bias)

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x])


@part
class Reuse(Part):
    """The module of an earlier part, on another value of the same width."""

    part: int
    x: int

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x])


# -------------------------------------------------------------------- norms, activations, parameters


@part
class Norm(Part):
    """Batch norm on a stream."""

    x: int

    def build(self, values: Values) -> nn.Module:
        return nn.BatchNorm2d(width(values[self.x]))

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x])


@part
class GroupNorm(Part):
    x: int
    groups: int = 1

    def build(self, values: Values) -> nn.Module:
        return nn.GroupNorm(self.groups, width(values[self.x]))

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x])


@part
class LayerNorm(Part):
    """Over channels and space: one image size only."""

    x: int

    def build(self, values: Values) -> nn.Module:
        return nn.LayerNorm(list(values[self.x].shape[1:]))

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x])


@part
class ChannelsLast(Part):
    """permute, LayerNorm or Linear (or both), permute back."""

    x: int
    inner: str = "norm"
    out: int = 0  # of the linear layers; 0: as wide as the input

    def build(self, values: Values) -> nn.Module:
        i = width(values[self.x])
        o = self.out or i
        if self.inner == "norm":
            return nn.LayerNorm(i)
        if self.inner == "linear":
            return nn.Linear(i, o)
        return nn.Sequential(nn.LayerNorm(i), nn.Linear(i, 2 * i), nn.GELU(), nn.Linear(2 * i, o))

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x].permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@part
class Act(Part):
    x: int
    kind: str = "relu"
    module: bool = False

    def build(self, values: Values) -> nn.Module | None:
        return MODULES[self.kind]() if self.module else None

    def run(self, module: Any, values: Values) -> Any:
        return (module if self.module else FUNCTIONS[self.kind])(values[self.x])


@part
class InPlace(Part):
    """The operand itself changes; who reads it later reads the new value."""

    x: int
    how: str = "module"
    y: int = 0  # of "add" and "mul"

    def build(self, values: Values) -> nn.Module | None:
        return nn.ReLU(inplace=True) if self.how == "module" else None

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        if self.how == "module":
            return module(x)
        if self.how == "function":
            return F.relu(x, inplace=True)
        if self.how == "method":
            return x.relu_()
        if self.how == "add":
            x += values[self.y]
            return x
        return x.mul_(values[self.y])


@part
class Affine(Part):
    """Constants: a dead channel is no zero behind them."""

    x: int
    scale: float = 1.0
    shift: float = 0.0

    def run(self, module: Any, values: Values) -> Any:
        return values[self.x] * self.scale + self.shift


@part
class PerChannel(Part):
    """A parameter per channel, added or multiplied."""

    x: int
    op: str = "add"
    batch: bool = True  # (1, C, 1, 1) or (C, 1, 1)

    def build(self, values: Values) -> nn.Module:
        return Parameters(*([1] if self.batch else []), width(values[self.x]), 1, 1)

    def run(self, module: Any, values: Values) -> Any:
        return values[self.x] + module.value if self.op == "add" else module.value * values[self.x]


# -------------------------------------------------------------------- joins


@part
class Join(Part):
    a: int
    b: int
    op: str = "add"

    def run(self, module: Any, values: Values) -> Any:
        a, b = values[self.a], values[self.b]
        if self.op == "add":
            return a + b
        if self.op == "sub":
            return a - b
        return torch.maximum(a, b) if self.op == "maximum" else torch.minimum(a, b)


@part
class Mul(Part):
    """The second may be of one channel, or of one pixel."""

    a: int
    b: int
    sigmoid: bool = False

    def run(self, module: Any, values: Values) -> Any:
        b = values[self.b]
        return values[self.a] * (torch.sigmoid(b) if self.sigmoid else b)


@part
class Where(Part):
    condition: int
    a: int
    b: int

    def run(self, module: Any, values: Values) -> Any:
        return torch.where(values[self.condition] > 0.1, values[self.a], values[self.b])


@part
class Cat(Part):
    xs: tuple[int, ...]

    def run(self, module: Any, values: Values) -> Any:
        return torch.cat([values[x] for x in self.xs], 1)


@part
class StackSum(Part):
    xs: tuple[int, ...]
    dim: int = 0

    def run(self, module: Any, values: Values) -> Any:
        return torch.stack([values[x] for x in self.xs], self.dim).sum(self.dim)


# -------------------------------------------------------------------- moving channels


@part
class Split(Part):
    """Appends every piece."""

    x: int
    sizes: tuple[int, ...]
    how: str = "split"

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        if self.how == "chunk":
            return x.chunk(len(self.sizes), 1)
        if self.how == "split":
            return torch.split(x, list(self.sizes), 1)
        starts = [sum(self.sizes[:i]) for i in range(len(self.sizes))]
        return tuple(x[:, start : start + size] for start, size in zip(starts, self.sizes, strict=True))


@part
class Shuffle(Part):
    x: int
    groups: int = 2

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        n, c, h, w = x.shape
        return x.view(n, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(n, c, h, w)


@part
class PixelShuffle(Part):
    x: int

    def build(self, values: Values) -> nn.Module:
        return nn.PixelShuffle(2)

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x])


@part
class PixelUnshuffle(Part):
    x: int

    def run(self, module: Any, values: Values) -> Any:
        return F.pixel_unshuffle(values[self.x], 2)


@part
class PadChannels(Part):
    x: int
    before: int = 0
    after: int = 1
    cat: bool = False

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        if not self.cat:
            return F.pad(x, (0, 0, 0, 0, self.before, self.after))
        n, _, h, w = x.shape
        return torch.cat([x.new_zeros(n, self.before, h, w), x, x.new_zeros(n, self.after, h, w)], 1)


@part
class ChannelStatistic(Part):
    """(N, 1, H, W): spatial attention."""

    x: int
    how: str = "mean"

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        return x.mean(1, keepdim=True) if self.how == "mean" else x.amax(dim=1, keepdim=True)


# -------------------------------------------------------------------- space


@part
class Pool(Part):
    x: int
    kind: str = "max"
    stride: int = 2

    def build(self, values: Values) -> nn.Module | None:
        return nn.MaxPool2d(*((2,) if self.stride == 2 else (3, 1, 1))) if self.kind == "max" else None

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        if self.kind == "max":
            return module(x)
        return F.avg_pool2d(x, 2) if self.stride == 2 else F.avg_pool2d(x, 3, 1, 1)


@part
class GlobalPool(Part):
    x: int
    how: str = "adaptive"

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        if self.how == "adaptive":
            return F.adaptive_avg_pool2d(x, 1)
        return x.mean((2, 3), keepdim=True) if self.how == "mean" else x.amax((2, 3), keepdim=True)


@part
class Upsample(Part):
    x: int

    def build(self, values: Values) -> nn.Module:
        return nn.Upsample(scale_factor=2)

    def run(self, module: Any, values: Values) -> Any:
        return module(values[self.x])


@part
class Resize(Part):
    x: int
    like: int
    mode: str = "nearest"

    def run(self, module: Any, values: Values) -> Any:
        size = values[self.like].shape[2:]
        return F.interpolate(values[self.x], size=size, mode=self.mode)


@part
class SqueezeExcite(Part):
    x: int
    hidden: int = 3
    linear: bool = False
    gate: str = "sigmoid"

    def build(self, values: Values) -> nn.Module:
        i, gate = width(values[self.x]), MODULES[self.gate]()
        if self.linear:
            return nn.Sequential(nn.Linear(i, self.hidden), nn.ReLU(), nn.Linear(self.hidden, i), gate)
        first, second = nn.Conv2d(i, self.hidden, 1), nn.Conv2d(self.hidden, i, 1)
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), first, nn.ReLU(), second, gate)

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        if not self.linear:
            return x * module(x)
        n, c, _, _ = x.shape
        return x * module(x.mean((2, 3))).view(n, c, 1, 1)


# -------------------------------------------------------------------- heads


@part
class PoolHead(Part):
    x: int
    out: int = 3
    hidden: int = 0

    def build(self, values: Values) -> nn.Module:
        i = width(values[self.x])
        if not self.hidden:
            return nn.Linear(i, self.out)
        return nn.Sequential(nn.Linear(i, self.hidden), nn.ReLU(), nn.Linear(self.hidden, self.out))

    def run(self, module: Any, values: Values) -> Any:
        return module(F.adaptive_avg_pool2d(values[self.x], 1).flatten(1))


@part
class FlattenHead(Part):
    x: int
    out: int = 3
    view: bool = False

    def build(self, values: Values) -> nn.Module:
        return nn.Linear(values[self.x][0].numel(), self.out)

    def run(self, module: Any, values: Values) -> Any:
        x = values[self.x]
        return module(x.view(x.shape[0], -1) if self.view else torch.flatten(x, 1))


# -------------------------------------------------------------------- programs


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
    assert wrapped.cost() == wrapped.full_cost()
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


# -------------------------------------------------------------------- drawing


class Drawing:
    """What a drawing function needs: the net so far and which of its values nobody has read."""

    def __init__(self, draw: Draw, net: Net, base: int) -> None:
        self.draw, self.net, self.base = draw, net, base

    @property
    def values(self) -> Values:
        return self.net.seen

    def one(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def flag(self) -> bool:
        return bool(self.draw(st.booleans()))

    def read(self) -> set[int]:
        return {index for made in self.net.program for index in reads(made)}

    def value(self, fits: Callable[[torch.Tensor], bool] = lambda x: True) -> int:
        """A feature map: the latest first, those that nobody has read more often."""
        maps = [i for i, x in enumerate(self.values) if x.ndim == 4 and fits(x)][::-1]
        if not maps:
            raise Unfit
        read = self.read()
        return int(self.one(*maps[:1] * 4, *[i for i in maps if i not in read] * 3, *maps))

    def like(self, x: int) -> int:
        """A value of the same shape, another one if there is any."""
        same = [i for i, v in enumerate(self.values) if v.shape == self.values[x].shape and i != x][::-1]
        return int(self.one(*same, x))

    def width(self) -> int:
        return int(self.one(self.base, self.base, 4, 6, 8, 3, 5, 7))

    def stride(self, x: int) -> int:
        return int(self.one(1, 1, 1, 2)) if min(self.values[x].shape[2:]) > 1 else 1

    def divisor(self, count: int) -> int:
        found = [d for d in (2, 3, 4) if count % d == 0 and d < count]
        if not found:
            raise Unfit
        return int(self.one(*found))


class Unfit(Exception):
    """No value fits the part."""


OPERANDS = ("x", "a", "b", "condition", "like")


def reads(made: Part) -> Iterator[int]:
    for name in OPERANDS:
        if hasattr(made, name):
            yield getattr(made, name)
    if isinstance(made, InPlace) and made.how in ("add", "mul"):
        yield made.y
    yield from getattr(made, "xs", ())


def tidy(parts: list[Part], outputs: list[int]) -> tuple[list[Part], list[int]]:
    """Without the parts that no output depends on."""
    counts = [len(made.sizes) if isinstance(made, Split) else 1 for made in parts]
    starts = [1 + sum(counts[:number]) for number in range(len(parts))]
    wanted, kept = set(outputs), set[int]()
    changed = True
    while changed:
        before = len(kept)
        for number in reversed(range(len(parts))):
            made, written = parts[number], range(starts[number], starts[number] + counts[number])
            changes = isinstance(made, InPlace) and made.x in wanted
            if number in kept or changes or wanted.intersection(written):
                kept.add(number)
                wanted.update(reads(made))
        changed = len(kept) > before
    order = sorted(kept)
    written = [value for number in order for value in range(starts[number], starts[number] + counts[number])]
    values = {old: new for new, old in enumerate([0, *written])}
    alone = [parts[n] for n in order]
    for position, made in enumerate(alone):
        if isinstance(made, Reuse) and made.part not in kept:
            alone[position] = replace(parts[made.part], x=made.x)  # type: ignore[call-arg]
    return [renumbered(made, values, order) for made in alone], [values[value] for value in outputs]


def renumbered(made: Part, values: dict[int, int], order: list[int]) -> Part:
    changes: dict[str, Any] = {name: values[getattr(made, name)] for name in OPERANDS if hasattr(made, name)}
    if hasattr(made, "xs"):
        changes["xs"] = tuple(values[x] for x in made.xs)
    if isinstance(made, InPlace) and made.how in ("add", "mul"):
        changes["y"] = values[made.y]
    if isinstance(made, Reuse):
        changes["part"] = order.index(made.part)
    return replace(made, **changes)


def draw_conv(d: Drawing) -> Part:
    x = d.value()
    return Conv(x, d.width(), d.one(1, 3), d.stride(x), d.flag())


def draw_conv_bn(d: Drawing) -> Part:
    x = d.value()
    return ConvBn(x, d.width(), d.one(1, 3), d.stride(x), d.flag(), relu=d.flag())


def draw_grouped(d: Drawing) -> Part:
    x = d.value(lambda v: width(v) > 3 and width(v) not in (5, 7))
    groups = d.divisor(width(d.values[x]))
    out = groups * d.one(1, 2, 3)
    return d.one(Conv, ConvBn)(x, out, d.one(1, 3), d.stride(x), d.flag(), groups)


def draw_depthwise(d: Drawing) -> Part:
    x = d.value()
    return Depthwise(x, d.one(1, 1, 2), d.one(3, 1), d.stride(x), d.flag())


def draw_transposed(d: Drawing) -> Part:
    x = d.value()
    made = Transposed(x, d.width(), d.one(2, 1), d.flag())
    if made.out % 2 == 0 and width(d.values[x]) % 2 == 0 and d.one(0, 0, 1):
        made = Transposed(x, made.out, made.stride, made.bias, 2)
    return made


REUSABLE = (Conv, ConvBn, Depthwise, Norm, GroupNorm, Transposed)


def draw_reuse(d: Drawing) -> Part:
    makers = [i for i, made in enumerate(d.net.program) if isinstance(made, REUSABLE)][::-1]
    if not makers:
        raise Unfit
    number = d.one(*makers)
    first = width(d.values[d.net.program[number].x])  # type: ignore[attr-defined]
    return Reuse(number, d.value(lambda v: width(v) == first))


def draw_norm(d: Drawing) -> Part:
    return Norm(d.value())


def draw_group_norm(d: Drawing) -> Part:
    x = d.value()
    c = width(d.values[x])
    return GroupNorm(x, d.one(*[g for g in (1, 2, 3, c) if c % g == 0]))


def draw_layer_norm(d: Drawing) -> Part:
    return LayerNorm(d.value())


def draw_channels_last(d: Drawing) -> Part:
    inner = d.one("norm", "linear", "mlp")
    return ChannelsLast(d.value(), inner, 0 if inner == "norm" else d.one(0, d.base))


def draw_act(d: Drawing) -> Part:
    return Act(d.value(), d.one(*ACTIVATIONS), d.flag())


def draw_in_place(d: Drawing) -> Part:
    how = d.one("module", "function", "method", "add", "mul")
    x = d.value(lambda v: v is not d.values[0])
    return InPlace(x, how, d.like(x)) if how in ("add", "mul") else InPlace(x, how)


def draw_affine(d: Drawing) -> Part:
    return Affine(d.value(), d.one(1.0, -0.5), d.one(0.5, 0.0))


def draw_per_channel(d: Drawing) -> Part:
    return PerChannel(d.value(), d.one("add", "mul"), d.flag())


def draw_join(d: Drawing) -> Part:
    op = d.one("add", "add", "sub", "maximum", "minimum")
    a = d.value()
    b = d.like(a)
    if op == "sub" and a == b:
        raise Unfit
    return Join(a, b, op)


def draw_mul(d: Drawing) -> Part:
    a = d.value()
    n, c, h, w = d.values[a].shape
    shapes = {(n, c, h, w), (n, 1, h, w), (n, c, 1, 1)}
    b = d.value(lambda v: tuple(v.shape) in shapes)
    return Mul(*((a, b) if d.flag() else (b, a)), d.flag())


def draw_where(d: Drawing) -> Part:
    a = d.value()
    return Where(d.like(a), a, d.like(a))


def draw_cat(d: Drawing) -> Part:
    a = d.value()
    space = d.values[a].shape[2:]
    return Cat((a, *(d.value(lambda v: v.shape[2:] == space) for _ in range(d.one(1, 1, 2)))))


def draw_stack(d: Drawing) -> Part:
    a = d.value()
    return StackSum((a, *(d.like(a) for _ in range(d.one(1, 2)))), d.one(0, 1, 2))


def draw_split(d: Drawing) -> Part:
    x = d.value(lambda v: width(v) > 1)
    c = width(d.values[x])
    how = d.one("chunk", "split", "slice")
    even = [n for n in (2, 3, 4) if c % n == 0]
    if even and (how == "chunk" or d.flag()):
        count = d.one(*even)
        return Split(x, (c // count,) * count, how)
    first = d.draw(st.integers(1, c - 1))
    return Split(x, (first, c - first), "slice" if how == "chunk" else how)


def draw_shuffle(d: Drawing) -> Part:
    x = d.value(lambda v: v.is_contiguous())
    return Shuffle(x, d.divisor(width(d.values[x])))


def draw_pixel_shuffle(d: Drawing) -> Part:
    return PixelShuffle(d.value(lambda v: width(v) % 4 == 0))


def draw_pixel_unshuffle(d: Drawing) -> Part:
    return PixelUnshuffle(d.value(lambda v: v.shape[2] % 2 == v.shape[3] % 2 == 0))


def draw_pad(d: Drawing) -> Part:
    return PadChannels(d.value(), d.one(0, 1, 2), d.one(1, 2, 0), d.flag())


def draw_statistic(d: Drawing) -> Part:
    return ChannelStatistic(d.value(), d.one("mean", "amax"))


def draw_pool(d: Drawing) -> Part:
    return Pool(d.value(lambda v: min(v.shape[2:]) > 1), d.one("max", "avg"), d.one(2, 1))


def draw_global_pool(d: Drawing) -> Part:
    return GlobalPool(d.value(), d.one("adaptive", "mean", "amax"))


def draw_upsample(d: Drawing) -> Part:
    return Upsample(d.value())


def draw_resize(d: Drawing) -> Part:
    like = d.value()
    space = d.values[like].shape[2:]
    return Resize(d.value(lambda v: v.shape[2:] != space), like, d.one("nearest", "bilinear"))


def draw_squeeze(d: Drawing) -> Part:
    return SqueezeExcite(d.value(), d.one(3, 4), d.flag(), d.one("sigmoid", "hardsigmoid"))


KINDS = (
    draw_conv, draw_conv, draw_conv, draw_conv_bn, draw_conv_bn, draw_grouped, draw_depthwise, draw_transposed,
    draw_reuse, draw_norm, draw_group_norm, draw_layer_norm, draw_channels_last, draw_act, draw_act, draw_in_place,
    draw_affine, draw_per_channel, draw_join, draw_join, draw_mul, draw_where, draw_cat, draw_cat, draw_stack,
    draw_split, draw_shuffle, draw_pixel_shuffle, draw_pixel_unshuffle, draw_pad, draw_statistic, draw_pool,
    draw_global_pool, draw_upsample, draw_resize, draw_squeeze,
)  # fmt: skip
MOST_PARTS, WIDEST, LARGEST_MAP = 12, 24, 600


def small(made: Values) -> bool:
    return all(width(x) <= WIDEST and x.shape[2:].numel() <= LARGEST_MAP for x in made if x.ndim == 4)


def draw_step(d: Drawing, kind: Callable[[Drawing], Part]) -> None:
    """One more part, if one of this kind fits and torch takes it."""
    before = len(d.values)
    try:
        made = kind(d)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            d.net.append(made)
    except (Unfit, RuntimeError, ValueError):
        return
    if not small(d.values[before:]):
        d.net.undo(before)


@st.composite
def programs(draw: Draw) -> Program:
    batch, size = draw(st.sampled_from((1, 2))), draw(st.sampled_from(SIZES))
    with torch.random.fork_rng():
        d = Drawing(draw, Net(batch, size), draw(st.sampled_from((4, 6, 8, 3, 5, 7))))
        draw_step(d, draw_conv)
        least = draw(st.sampled_from((0, 5, 8, 11)))
        while len(d.net.program) < MOST_PARTS and (len(d.net.program) < least or draw(st.integers(0, 5))):
            draw_step(d, draw(st.sampled_from(KINDS)))
        outputs = [draw_output(d) for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3))))]
    structure = draw(st.sampled_from(("tuple", "dict") if len(outputs) > 1 else ("single",)))
    other = (draw(st.sampled_from((3, 1, 2))), size[0] + draw(st.sampled_from((8, 1, 4))),
             size[1] + draw(st.sampled_from((8, 1, 4))))  # fmt: skip
    parts = d.net.program
    if draw(st.sampled_from((True, True, True, False))):  # code that nobody reads is rare in practice
        parts, outputs = tidy(parts, outputs)
    return Program(
        tuple(parts), tuple(outputs), structure, batch, size, other,
        draw(st.sampled_from(DENSITIES)), draw(st.integers(0, 999)),
    )  # fmt: skip


def draw_output(d: Drawing) -> int:
    """A value as it is, or a head on it."""
    x = d.value()
    head = d.one("conv", "pool", "flatten", "conv", "pool", "raw")
    if head == "raw":
        return x
    before = len(d.values)
    made = Conv(x, 3) if head == "conv" else PoolHead(x, 3, d.one(0, 5)) if head == "pool" else FlattenHead(x, 3)
    try:
        d.net.append(made)
    except RuntimeError:  # torch does not read a piece of a split after the whole was written in place
        reject()
    return before


__all__ = [name for name, value in list(globals().items()) if isinstance(value, type) and issubclass(value, Part)]
__all__ += ["Program", "build", "check", "inputs", "programs"]
