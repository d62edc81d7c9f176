"""Everything that can be called on a wrapped net, in any order: what is promised holds after every call."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.robustness import machine

SHORT, STEPS = 12, 12
LONG = int(os.environ.get("FXPRUNE_FUZZ_LIVES", "300"))


def live(lives: int, steps: int, start: int) -> Counter[str]:
    """So many nets, each through so many calls, the same ones on every run with the same ``start``."""
    machine.seen.clear()
    quick = settings(
        max_examples=lives,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(start)(machine.Life), settings=quick)
    return machine.seen


def report(seen: Counter[str]) -> str:
    nets = ", ".join(f"{seen[name]} {name}" for name in sorted(machine.NETS))
    lives = sum(seen[name] for name in machine.NETS)
    return (
        f"lives: {lives} wrapped nets ({nets}) through {seen['steps']} calls, "
        f"{seen['exact']} times hardened and exact; {seen['refused']} calls refused, "
        f"{seen['unreachable']} budgets out of reach"
    )


def test_short_lives(capsys: pytest.CaptureFixture[str]) -> None:
    seen = live(SHORT, STEPS, start=0)
    with capsys.disabled():
        print(f"\n{report(seen)}")
    assert seen["exact"] > SHORT


@pytest.mark.fuzz
def test_long_lives(capsys: pytest.CaptureFixture[str]) -> None:
    seen = live(LONG, 40, start=int(os.environ.get("FXPRUNE_FUZZ_SEED", "1")))
    with capsys.disabled():
        print(f"\n{report(seen)}")
    assert seen["exact"] > LONG
