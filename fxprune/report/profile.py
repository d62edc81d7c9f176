"""A profile as a table: one row per op, in the order in which they run."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fxprune.latency.profile import Profile
from fxprune.report.text import human, percent

_BAR, _WIDE = 12, 100


def profile_table(found: Profile, width: int, most: int | None = None) -> Table:
    """All ops, or the slowest ``most``; bars where a line of ``width`` has room for them."""
    total = sum(op.seconds for op in found.ops) or 1.0
    slowest = sorted(op.seconds for op in found.ops)[-most:] if most else [0.0]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("layer", overflow="fold")
    for title in ("op", "result"):
        table.add_column(title, no_wrap=True)
    for title in ("µs", "%", "FLOPs", "GFLOP/s", "FLOPs/B"):
        table.add_column(title, justify="right", no_wrap=True)
    bars = width >= _WIDE
    if bars:
        table.add_column("", no_wrap=True)
    longest = max((op.seconds for op in found.ops), default=1.0)
    for op in found.ops:
        if op.seconds < slowest[0]:
            continue
        work = [human(op.flops), f"{op.flops / op.seconds / 1e9:.1f}", f"{op.intensity:.1f}"] if op.flops else [""] * 3
        bar = Text("█" * round(_BAR * op.seconds / longest), style=_COLOURS.get(op.kind, ""))
        table.add_row(
            op.layer, op.op, "x".join(map(str, op.shape)), f"{1e6 * op.seconds:.0f}", percent(op.seconds / total),
            *work, *([bar] if bars else []),
        )  # fmt: skip
    return table


def profile_summary(found: Profile) -> str:
    """One line: the whole, and the share of each kind of op."""
    shares = ", ".join(f"{kind} {percent(share)} %" for kind, share in found.by_kind.items())
    lost = found.by_kind.get("join", 0.0)
    return (
        f"{1e3 * found.seconds:.2f} ms for the whole net. Of the time of its ops: {shares}.\n"
        f"Lost to joins: {percent(lost)} %."
    )


_COLOURS = {"convolution": "blue", "linear": "blue", "join": "red", "norm": "cyan", "activation": "green"}
