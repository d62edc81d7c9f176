"""Programs that failed once, shrunk: what was wrong -> program."""

from __future__ import annotations

from tests.heads import Form
from tests.programs.layers import (
    Act,
    Affine,
    Attend,
    ChannelsLast,
    Conv,
    Depthwise,
    GroupNorm,
    InPlace,
    LayerNorm,
    Norm,
    PerChannel,
    Reuse,
)
from tests.programs.program import Program
from tests.programs.wiring import Cat, Mul, PadChannels, Shuffle, Split, SqueezeExcite, Where

PROGRAMS: dict[str, Program] = {
    # one head of keys and values for all queries, in one call, ran at full width and was counted as if it did not
    "one head of keys for all queries": Program(
        parts=(
            Conv(x=0, out=4, k=1),
            Attend(x=1, a=1, form=Form("apart", "grouped", "reshape"), heads=2, width=2, shared=2),
            Conv(x=2, out=3, k=1, bias=True),
        ),
        outputs=(3,),
        batch=1,
        size=(8, 6),
        other=(3, 16, 14),
        density=0.4,
        seed=2,
    ),
    # a regular block was to compute channels of a layer whose input is dead (a multiple of nine also goes that way)
    "regular blocks of a layer that reads nothing": Program(
        parts=(
            Conv(x=0, out=4, k=1), Conv(x=1, out=4, k=1), Cat(xs=(2, 0, 0)), Shuffle(x=3, groups=2),
            Where(condition=3, a=4, b=3), Conv(x=5, out=3, k=1, bias=True),
        ),
        outputs=(6,),
        size=(8, 6),
        other=(3, 16, 14),
        density=0.1,
        seed=0,
    ),
    # cost() counts every call of a shared layer, the slim net runs only those that something living reads
    "cost of a second call that nobody reads": Program(
        parts=(Conv(x=0, out=2), Reuse(part=0, x=0)),
        outputs=(1,),
    ),
    "cost of a second call that nobody reads, depthwise": Program(
        parts=(Depthwise(x=0), Reuse(part=0, x=0)),
        outputs=(1,),
    ),
    "cost of a call whose reader is pruned away": Program(
        parts=(Depthwise(x=0), Conv(x=1, out=3), Reuse(part=0, x=0), Cat(xs=(2, 3)), Conv(x=4, out=2)),
        outputs=(5,),
        seed=1,
    ),
    "cost of a call whose input is pruned away": Program(
        parts=(Conv(x=0, out=5), Conv(x=0, out=3), Reuse(part=0, x=2), Where(condition=1, a=3, b=1)),
        outputs=(4,),
    ),
    # zeros padded to the channels count as dead, and are masked again behind an op that makes something of zeros
    "padding, then a constant": Program(
        parts=(Conv(x=0, out=2), PadChannels(x=1), Affine(x=2, shift=0.5)),
        outputs=(3,),
    ),
    "padding, then a parameter": Program(
        parts=(Conv(x=0, out=2), PadChannels(x=1), PerChannel(x=2)),
        outputs=(3,),
    ),
    "padding, then batch norm": Program(
        parts=(Conv(x=0, out=2), PadChannels(x=1), Norm(x=2)),
        outputs=(3,),
    ),
    "padding, then batch norm, twice the same": Program(
        parts=(
            Conv(x=0, out=4, k=1), Conv(x=1, out=4, k=1), Conv(x=2, out=4, k=1), Norm(x=3), Conv(x=4, out=4, k=1),
            PadChannels(x=5, before=0, after=1), Norm(x=6), Reuse(part=6, x=7), Conv(x=8, out=3, k=1, bias=True),
        ),
        outputs=(9,),
        size=(8, 6),
        other=(3, 16, 14),
        density=0.4,
        seed=0,
    ),
    "padding, then group norm": Program(
        parts=(Conv(x=0, out=2), PadChannels(x=1), GroupNorm(x=2)),
        outputs=(3,),
    ),
    "padding, then layer norm": Program(
        parts=(Conv(x=0, out=2), PadChannels(x=1), LayerNorm(x=2)),
        outputs=(3,),
    ),
    "padding, then layer norm, channels last": Program(
        parts=(Conv(x=0, out=2), PadChannels(x=1), ChannelsLast(x=2)),
        outputs=(3,),
    ),
    "padding, times its own sigmoid, then a constant": Program(
        parts=(Conv(x=0, out=2), PadChannels(x=1), Mul(a=2, b=2, sigmoid=True), Affine(x=3, shift=0.5)),
        outputs=(4,),
    ),
    "padding, where, then softplus": Program(
        parts=(Conv(x=0, out=2), PadChannels(x=1), Where(condition=2, a=2, b=2), Act(x=3, kind="softplus")),
        outputs=(4,),
    ),
    "padding, a depthwise layer, then a constant": Program(
        parts=(Conv(x=0, out=2), PadChannels(x=1), Depthwise(x=2, bias=False), Affine(x=3, shift=0.5)),
        outputs=(4,),
    ),
    "padding, squeeze and excite, then a constant": Program(
        parts=(Conv(x=0, out=2), PadChannels(x=1), SqueezeExcite(x=2), Affine(x=3, shift=0.5)),
        outputs=(4,),
    ),
    # x.new_zeros(...) of an x that has no living channel
    "zeros like a tensor that is gone": Program(
        parts=(Conv(x=0, out=2), PadChannels(x=1, cat=True)),
        outputs=(0,),
    ),
    "zeros like a tensor that is gone, only they are read": Program(
        parts=(Conv(x=0, out=2), PadChannels(x=1, before=2, cat=True), Split(x=2, sizes=(1, 4), how="slice")),
        outputs=(3,),
    ),
    "zeros like a shuffled tensor that is gone": Program(
        parts=(Conv(x=0, out=2), Shuffle(x=1), Shuffle(x=1), PadChannels(x=3, cat=True)),
        outputs=(0,),
    ),
    "zeros like a permuted tensor that is gone": Program(
        parts=(Conv(x=0, out=2), ChannelsLast(x=0, inner="mlp"), PadChannels(x=2, cat=True)),
        outputs=(0,),
    ),
}

# Refused with an error that names the tensor: one view is written in place, then another one is read (TraceError);
# zeros that the model padded are split off and made something of, when nothing is left to take their size from.
REFUSED: dict[str, Program] = {
    "the padding alone, then a constant": Program(
        parts=(
            Conv(x=0, out=2),
            PadChannels(x=1, after=2),
            Split(x=2, sizes=(2, 2)),
            Affine(x=4, shift=0.5),
        ),
        outputs=(5,),
    ),
    "a slice of what is written in place": Program(
        parts=(Conv(x=0, out=4), Split(x=1, sizes=(2, 2), how="slice"), InPlace(x=1)),
        outputs=(2,),
    ),
    "what a piece of it is written to in place": Program(
        parts=(Split(x=0, sizes=(1, 1, 1)), InPlace(x=1), Conv(x=0, out=2)),
        outputs=(4,),
    ),
}
