"""Random programs of parts: whatever they compute, the slim net computes the same at the cost that was said."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, assume, given, seed, settings

from fxprune.errors import ExportError, TraceError
from tests.programs import Program, check, programs
from tests.regressions import PROGRAMS, REFUSED

SHORT = 120
LONG = int(os.environ.get("FXPRUNE_FUZZ_EXAMPLES", "2000"))


def search(examples: int, start: int) -> Counter[str]:
    """Check so many random programs, the same ones on every run with the same ``start``; what was counted."""
    seen: Counter[str] = Counter()

    @seed(start)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(programs())
    def run(program: Program) -> None:
        seen["drawn"] += 1
        try:
            gated = check(program)
        except (TraceError, ExportError) as error:
            if "written in place" not in str(error) and "cannot be written" not in str(error):
                raise
            seen["refused"] += 1
            gated = False
        seen["gated" if gated else "no gate"] += 1
        assume(gated)
        seen["parts"] += len(program.parts)
        seen[f"density {program.density}"] += 1

    run()
    return seen


def report(seen: Counter[str]) -> str:
    shares = ", ".join(f"{count} at {name[8:]}" for name, count in sorted(seen.items()) if name.startswith("density"))
    mean = seen["parts"] / max(seen["gated"], 1)
    return (
        f"fuzz: {seen['gated']} random nets exact ({shares}), {mean:.1f} parts on average; "
        f"{seen['drawn']} drawn, {seen['no gate']} without a gate or refused ({seen['refused']})"
    )


def test_random_programs(capsys: pytest.CaptureFixture[str]) -> None:
    seen = search(SHORT, start=0)
    with capsys.disabled():
        print(f"\n{report(seen)}")
    assert seen["gated"] >= SHORT


@pytest.mark.fuzz
def test_many_random_programs(capsys: pytest.CaptureFixture[str]) -> None:
    seen = search(LONG, start=int(os.environ.get("FXPRUNE_FUZZ_SEED", "1")))
    with capsys.disabled():
        print(f"\n{report(seen)}")
    assert seen["gated"] >= LONG


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_regressions(name: str) -> None:
    check(PROGRAMS[name])


@pytest.mark.parametrize("name", list(REFUSED))
def test_refusals(name: str) -> None:
    with pytest.raises((TraceError, ExportError), match=r"written in place through another view|cannot be written"):
        check(REFUSED[name])


def test_programs_can_be_pasted() -> None:
    """The repr of a program is the program."""
    from tests.programs import drawing

    @seed(0)
    @settings(max_examples=20, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(programs())
    def run(program: Program) -> None:
        assert eval(repr(program), vars(drawing)) == program

    run()
