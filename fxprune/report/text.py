"""Numbers, names and places as people read them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from fxprune.cost.model import LATENCY

NAMES = {  # of all that is counted and measured
    "volume": "volume",
    "flops": "FLOPs",
    "params": "params",
    "network_flops": "network FLOPs",
    "network_params": "network params",
    LATENCY: "latency",
}
_UNFIT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def human(number: float) -> str:
    """Three significant digits and a unit.

    >>> [human(n) for n in (0, 12, 999, 43008, 999_999, 2_483_712, 15_087_796_224)]
    ['0', '12', '999', '43.0k', '1.00M', '2.48M', '15.1G']
    """
    for unit in ("", "k", "M", "G", "T"):
        if number < 999.5 or unit == "T":
            break
        number /= 1000
    if not unit:
        return f"{number:.0f}"
    return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f}{unit}"


def percent(share: float) -> str:
    """
    >>> [percent(share) for share in (0, 0.00004, 0.0012, 0.3232, 0.9999, 1, 1.4)]
    ['0', '<0.1', '0.1', '32.3', '>99.9', '100', '140.0']
    """
    if min(share, abs(1 - share)) < 1e-9:  # sums of shares are rounded
        return f"{share * 100:.0f}"
    if share < 0.0005 or 0.9995 <= share < 1:
        return "<0.1" if share < 0.5 else ">99.9"
    return f"{share * 100:.1f}"


def lower_bound(fraction: float) -> str:
    """A budget as one would type it, rounded up: the budget printed can be reached.

    >>> [lower_bound(fraction) for fraction in (0.0054648, 1 / 16, 1 / 8, 0.7231, 1.0)]
    ['1/182', '1/16', '0.125', '0.724', '1']
    """
    if fraction >= 1:
        return "1"
    if 0 < fraction < 0.1:  # a coarser step than a tenth would mislead
        return f"1/{math.floor(1 / fraction + 1e-9)}"
    return f"{math.ceil(fraction * 1000 - 1e-9) / 1000:g}"


def fold_name(name: str, width: int) -> str:
    """A dotted name on as many lines as it needs, broken before dots.

    >>> print(fold_name("features.denseblock1.denselayer1.conv1", 24))
    features.denseblock1
    .denselayer1.conv1
    """
    lines = [""]
    for part in name.replace(".", "\n.").split("\n"):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
        while len(lines[-1]) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return "\n".join(lines)


def listing(names: Iterable[str], limit: int = 4) -> str:
    """
    >>> listing("abcdef"), listing("ab")
    ('a, b, c, d and 2 more', 'a, b')
    """
    every = list(names)
    if len(every) <= limit + 1:  # "and 1 more" would take the place of the one
        return ", ".join(every)
    return ", ".join(every[:limit]) + f" and {len(every) - limit} more"


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "gate"), plural(4800, "gate")
    ('1 gate', '4,800 gates')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def fraction(share: float) -> str:
    """
    >>> fraction(0.25), fraction(1 / 3), fraction(0.3)
    ('1/4', '1/3', '30.0 %')
    """
    whole = round(1 / share) if share > 0 else 0
    return f"1/{whole}" if whole > 1 and abs(share * whole - 1) < 1e-6 else f"{percent(share)} %"


def change(name: str, before: int, after: int | None) -> str:
    """
    >>> change("volume", 4096, 1024), change("volume", 4096, None)
    ('volume 4.10k → 1.02k (25.0 %)', 'volume 4.10k')
    """
    if after is None:
        return f"{name} {human(before)}"
    return f"{name} {human(before)} → {human(after)} ({percent(after / before if before else 0)} %)"


def duration(seconds: float) -> str:
    """
    >>> duration(9.4), duration(754), duration(7320)
    ('9.4 s', '12 min 34 s', '2 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    return f"{minutes} min {int(seconds) % 60} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def number(value: float) -> str:
    """A coordinate.

    >>> number(2), number(2.04), number(-0.01)
    ('2', '2.04', '-0.01')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def clean(text: str) -> str:
    """Without what no file can hold (halves of characters) and no page shows (control characters).

    >>> clean("a\\x00b\\ud800c")
    'a\\ufffdb\\ufffdc'
    """
    return _UNFIT.sub("\ufffd", text)
