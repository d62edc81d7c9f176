"""Drawing a program."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from hypothesis import reject
from hypothesis import strategies as st

from tests.heads import Form
from tests.programs.layers import (
    Act,
    Affine,
    Attend,
    ChannelsLast,
    Conv,
    ConvBn,
    Depthwise,
    GroupNorm,
    InPlace,
    LayerNorm,
    Norm,
    PerChannel,
    Reuse,
    Transposed,
)
from tests.programs.part import ACTIVATIONS, DENSITIES, SIZES, Draw, Part, Values, width
from tests.programs.program import Net, Program
from tests.programs.wiring import (
    Cat,
    ChannelStatistic,
    FlattenHead,
    GlobalPool,
    Join,
    Mlp,
    Mul,
    PadChannels,
    PixelShuffle,
    PixelUnshuffle,
    Pool,
    PoolHead,
    Resize,
    Shuffle,
    Split,
    SqueezeExcite,
    StackSum,
    Upsample,
    Where,
)


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


# How it is written; which options go with what is tried: what does not fit is not drawn.
_PROJECTS = ("unbind", "chunk", "slices", "head by head", "heads inside", "split")
_PRODUCTS = ("product", "product", "sdpa", "values first", "einsum", "linear", "between channels")
_HEADS = ("", "", "", "scale", "shift", "norms", "cosine", "activation")
_BEHIND = ("", "", "gated", "scale of heads", "activation")


def draw_attend(d: Drawing) -> Part:
    x = d.value(lambda v: v.shape[2:].numel() <= MOST_TOKENS)
    token = d.one(False, False, True)
    heads, shared = d.one((2, 1), (3, 1), (1, 1), (4, 2), (2, 2))
    product, with_heads, behind = d.one(*_PRODUCTS), d.one(*_HEADS), d.one(*_BEHIND)
    with_scores = "scale of scores" if product in ("product", "values first", "einsum") and d.flag() else ""
    if shared > 1:
        project, product = d.one("apart", "keys and values"), d.one("product", "sdpa", "grouped")
    else:
        project = d.one(*_PROJECTS, "apart", "apart", "keys and values")
    form = Form(project, product, d.one("reshape", "flatten", "view"), with_heads, with_scores, "", behind)
    other = x
    if project in ("apart", "keys and values") and not token and d.flag():
        c = width(d.values[x])
        other = d.value(lambda v: width(v) == c and v.shape[2:].numel() <= MOST_TOKENS)
    return Attend(x, other, form, heads, d.one(2, 3, 4), shared, token)


def draw_mlp(d: Drawing) -> Part:
    x = d.value(lambda v: v[0].numel() <= 400)
    hidden = tuple(d.width() for _ in range(d.one(1, 2, 2)))
    residual = d.flag() and len(hidden) > 1
    return Mlp(x, hidden, d.flag(), d.flag(), residual)


KINDS = (
    draw_conv, draw_conv, draw_conv, draw_conv_bn, draw_conv_bn, draw_grouped, draw_depthwise, draw_transposed,
    draw_reuse, draw_norm, draw_group_norm, draw_layer_norm, draw_channels_last, draw_act, draw_act, draw_in_place,
    draw_affine, draw_per_channel, draw_join, draw_join, draw_mul, draw_where, draw_cat, draw_cat, draw_stack,
    draw_split, draw_shuffle, draw_pixel_shuffle, draw_pixel_unshuffle, draw_pad, draw_statistic, draw_pool,
    draw_global_pool, draw_upsample, draw_resize, draw_squeeze, draw_attend, draw_attend, draw_attend, draw_mlp,
)  # fmt: skip
MOST_PARTS, WIDEST, LARGEST_MAP, MOST_TOKENS = 12, 24, 600, 120


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
