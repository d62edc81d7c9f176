"""Programs that failed once, shrunk: what was wrong -> program."""

from __future__ import annotations

from tests.programs import Conv, Depthwise, PadChannels, Program, Reuse

PROGRAMS: dict[str, Program] = {
    "the cost of a second call that nobody reads": Program(
        parts=(
            Conv(x=0, out=2),
            Reuse(part=0, x=0),
        ),
        outputs=(1,),
    ),
    "the cost of a second call of a depthwise layer that nobody reads": Program(
        parts=(
            Depthwise(x=0),
            Reuse(part=0, x=0),
        ),
        outputs=(1,),
    ),
    "zeros as large as a tensor that is gone": Program(
        parts=(
            Conv(x=0, out=2),
            PadChannels(x=1, cat=True),
        ),
        outputs=(0,),
    ),
}
