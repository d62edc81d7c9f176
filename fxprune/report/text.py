"""Numbers, names and places as people read them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from fxprune.cost.model import LATENCY

NAMES = {  # of costs, as people read them
    "volume": "volume",
    "flops": "FLOPs",
    "params": "params",
    "network_flops": "network FLOPs",  # these two in runs of before, whose other costs are those of convolutions
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
    if min(share, abs(1 - share)) < 1e-9:  # a sum of shares may be a rounding error away
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
    return "\n".join(re.findall(rf".{{1,{width}}}(?=\.|$)|.{{{width}}}", name))


def listing(names: Iterable[str], limit: int = 4) -> str:
    """
    >>> listing("abcdef"), listing("ab")
    ('a, b, c, d and 2 more', 'a, b')
    """
    every = list(names)
    if len(every) <= limit + 1:  # "and 1 more" is as long as the one name
        return ", ".join(every)
    return ", ".join(every[:limit]) + f" and {len(every) - limit} more"


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "gate"), plural(4800, "gate")
    ('1 gate', '4,800 gates')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def heads(units: Mapping[str, int], *, short: bool = False) -> str:
    """What a layer computes for attention: how many heads, and how many channels of each. A unit is called by its layer
    and what it is, or by its layer alone.

    >>> heads({"qkv.queries": 64, "qkv.heads": 12, "qkv.values": 64})
    '12 heads, queries 64, values 64'
    >>> heads({"qkv.queries": 64, "qkv.heads": 12, "qkv.values": 64, "qkv": 3}, short=True)
    '12h 64q 64v +3'
    """
    kinds = {name.rpartition(".")[2]: count for name, count in units.items()}
    known = {kind: kinds[kind] for kind in ("heads", "queries", "keys", "values") if kind in kinds}
    others = [count for kind, count in kinds.items() if kind not in known]
    if short:
        return " ".join([*(f"{count}{kind[0]}" for kind, count in known.items()), *(f"+{count}" for count in others)])
    told = [plural(count, "head") if kind == "heads" else f"{kind} {count}" for kind, count in known.items()]
    return ", ".join([*told, *(f"others {count}" for count in others)])


def fraction(share: float) -> str:
    """
    >>> fraction(0.25), fraction(1 / 3), fraction(0.3)
    ('1/4', '1/3', '30.0 %')
    """
    whole = round(1 / share) if share > 0 else 0
    return f"1/{whole}" if whole > 1 and abs(share * whole - 1) < 1e-6 else f"{percent(share)} %"


def part_of(part: float, whole: float) -> str:
    """
    >>> part_of(1, 4), part_of(0, 0)
    ('25.0 %', '0 %')
    """
    return f"{percent(part / whole if whole else 0)} %"


def change(name: str, before: int, after: int | None) -> str:
    """
    >>> change("volume", 4096, 1024), change("volume", 4096, None)
    ('volume 4.10k → 1.02k (25.0 %)', 'volume 4.10k')
    """
    return f"{name} {human(before)}" + ("" if after is None else f" → {human(after)} ({part_of(after, before)})")


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
    """A coordinate, with at most two decimals.

    >>> number(2), number(2.04), number(-0.01)
    ('2', '2.04', '-0.01')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def clean(text: str) -> str:
    """Without halves of characters, which no file can hold, and control characters, which no page shows.

    >>> clean("a\\x00b\\ud800c")
    'a\\ufffdb\\ufffdc'
    """
    return _UNFIT.sub("\ufffd", text)
