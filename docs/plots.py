"""The figures of the explanation, drawn from the package's own functions.

    make docs-plots    # writes docs/images/*.svg, which are committed
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

mpl.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

from fxprune.gated.bank import CLOSED_AT, mean_gate, probability  # noqa: E402
from fxprune.gated.barrier import CEILING, SCHEDULES, barrier, sliding  # noqa: E402
from fxprune.gated.pressure import Steering  # noqa: E402

INK, BLUE, RED, GREY, GREEN = "#78909c", "#0f8b8d", "#d1495b", "#90a4ae", "#edae49"  # readable on white and on black


def figure(title: str, x: str, y: str) -> tuple[plt.Figure, plt.Axes]:
    plt.rcParams.update({
        "svg.fonttype": "path", "svg.hashsalt": "fxprune", "font.size": 11, "text.color": INK, "axes.labelcolor": INK,
        "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.spines.top": False,
        "axes.spines.right": False, "legend.frameon": False, "lines.linewidth": 2,
    })  # fmt: skip
    made, axes = plt.subplots(figsize=(6.4, 3.4))
    axes.set(title=title, xlabel=x, ylabel=y)
    return made, axes


def gates() -> plt.Figure:
    made, axes = figure("A gate over its parameter", "log α", "")
    at = torch.linspace(-4, 4, 400)
    axes.plot(at, mean_gate(at), color=BLUE, label="value in eval mode")
    axes.plot(at, probability(at), color=RED, label="chance of being open")
    axes.axvline(CLOSED_AT, color=GREY, linestyle=":", linewidth=1)
    axes.text(CLOSED_AT - 0.1, 0.9, "closed", color=INK, ha="right")
    axes.text(CLOSED_AT + 0.1, 0.9, "open", color=INK, ha="left")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.04))
    return made


def barriers() -> plt.Figure:
    made, axes = figure("What the budget asks for, as b slides", "cost V, as a share of the full cost", "f(V, a, b)")
    at, margin = np.linspace(0.0, 1.05, 1500), Steering().margin
    for progress, colour in ((0.3, GREY), (0.5, GREEN), (0.7, RED), (1.0, BLUE)):
        b = sliding(1.0, 0.125, progress)
        axes.plot(at, [barrier(v, (1 - margin) * b, (1 + margin) * b) for v in at], color=colour,
                  label=f"{progress:.1f}: b = {b:.3f}")  # fmt: skip
    axes.set_ylim(0, 6)
    axes.text(0.27, 5.3, f"all end at {CEILING:.0f}", color=INK)
    axes.legend(loc="center", bbox_to_anchor=(0.41, 0.5), fontsize=10, title="progress")
    return made


def schedules() -> plt.Figure:
    made, axes = figure("The sliding budget, from all to 1/8", "progress", "budget b, as a share of the full cost")
    at = np.linspace(0, 1, 300)
    for name, colour in zip(SCHEDULES, (BLUE, GREEN, RED), strict=True):
        axes.plot(at, [sliding(1.0, 0.125, t, name) for t in at], color=colour, label=name)
    axes.set_ylim(0, 1.02)
    axes.legend()
    return made


# ------------------------------------------------------------------ a residual block, before and after

SIZE, STEP, TOP = 22, 28, 84  # of a channel, from one to the next, and where columns begin
STREAM, BLOCK = "#0f8b8d", "#e07a3f"


class Drawing:
    """SVG, line by line."""

    def __init__(self, width: int, height: int) -> None:
        self.lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            'font-family="system-ui, sans-serif" font-size="15">',
            "<title>A residual block before and after pruning</title>",
            "<style>text{fill:#687d89}@media(prefers-color-scheme:dark){text{fill:#9db2bd}}</style>",
        ]

    def add(self, text: str) -> None:
        self.lines.append(text)

    def text(self, x: float, y: float, said: str, size: int = 15, weight: int = 400, anchor: str = "middle") -> None:
        look = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
        self.add(f'<text x="{x:g}" y="{y:g}" {look}>{said}</text>')

    def channel(self, x: float, y: float, kind: str) -> None:
        """A feature map: of the stream, of the block, both added up, or dead."""
        at = f'x="{x:g}" y="{y:g}" width="{SIZE}" height="{SIZE}" rx="5"'
        if kind == "dead":
            self.add(f'<rect {at} fill="none" stroke="#90a4ae" stroke-width="1.5" stroke-dasharray="3 3"/>')
        elif kind == "sum":
            half = SIZE / 2
            self.add(f'<rect {at} fill="{STREAM}"/>')
            edge = f"h{half - 5:g}a5 5 0 0 1 5 5v{SIZE - 10}a5 5 0 0 1 -5 5h{5 - half:g}z"
            self.add(f'<path d="M{x + half:g} {y:g}{edge}" fill="{BLOCK}"/>')
        else:
            self.add(f'<rect {at} fill="{STREAM if kind == "stream" else BLOCK}"/>')

    def column(self, x: float, kinds: list[str], top: float = TOP) -> list[tuple[float, float]]:
        """Channels below each other; where the living ones are."""
        for row, kind in enumerate(kinds):
            self.channel(x, top + row * STEP, kind)
        return [(x, top + row * STEP + SIZE / 2) for row, kind in enumerate(kinds) if kind != "dead"]

    def convolution(self, left: list[tuple[float, float]], right: list[tuple[float, float]]) -> None:
        """Everything that lives reads everything that lives."""
        for x, y in left:
            for to_x, to_y in right:
                self.curve((x, y), (to_x, to_y), 'stroke-opacity="0.45" stroke-width="1.3"')

    def lanes(self, left: list[tuple[float, float]], right: list[tuple[float, float]]) -> None:
        """One channel to one channel."""
        for one, other in zip(left, right, strict=True):
            self.curve(one, other, 'stroke-width="2.2"')

    def curve(self, one: tuple[float, float], other: tuple[float, float], look: str) -> None:
        (x, y), (to_x, to_y) = one, other
        middle = (x + SIZE + to_x) / 2
        way = f"M{x + SIZE + 3:g} {y:g}C{middle:g} {y:g} {middle:g} {to_y:g} {to_x - 3:g} {to_y:g}"
        self.add(f'<path d="{way}" fill="none" stroke="{BLOCK}" {look}/>')

    def identity(self, x: float, to_x: float) -> None:
        """The stream goes past the block."""
        y, end = TOP - 10, TOP - 34
        self.add(f'<path d="M{x + SIZE / 2:g} {y}V{end + 10}q0 -10 10 -10H{to_x + SIZE / 2 - 10:g}q10 0 10 10V{y - 2}" '
                 f'fill="none" stroke="{STREAM}" stroke-width="2.6"/>')  # fmt: skip
        self.add(f'<path d="M{to_x + SIZE / 2 - 5:g} {y - 6}l5 7l5 -7" fill="none" stroke="{STREAM}" '
                 'stroke-width="2.6" stroke-linejoin="round" stroke-linecap="round"/>')  # fmt: skip

    def residual(self, shift: float, x: Any, one: Any, two: Any, out: Any, computed: str) -> None:
        """What joins four columns to a block, and their names."""
        self.convolution(x, one)
        self.convolution(one, two)
        self.lanes(two, out[2:])
        self.identity(30 + shift, 346 + shift)
        for at, name in ((147, "conv1"), (253, "conv2"), (41, "stream"), (357, "sum")):
            self.text(at + shift, TOP + 6 * STEP + 18, name)
        self.text(199 + shift, TOP + 6 * STEP + 52, f"the block computes {computed}")


def block() -> str:
    """A stream of six channels, and a block that writes three of them: as gates see it, and as it is compiled."""
    made = Drawing(900, 372)
    dead = "dead"
    made.text(199, 24, "with gates: the dead are zeros", 17, 600)
    x = made.column(30, ["stream"] * 4 + [dead] * 2)
    one = made.column(136, [dead, "block", dead, dead, "block", dead])
    two = made.column(242, [dead, dead, "block", "block", "block", dead])
    out = made.column(346, ["stream", "stream", "sum", "sum", "block", dead])
    made.residual(0, x, one, two, out, "12 channels")

    made.add('<path d="M424 168h34m-11 -10l11 10l-11 10" fill="none" stroke="#90a4ae" stroke-width="3" '
             'stroke-linecap="round" stroke-linejoin="round"/>')  # fmt: skip

    made.text(681, 24, "slim: the dead are gone", 17, 600)
    x = made.column(512, ["stream"] * 4)
    one = made.column(618, ["block"] * 2, TOP + STEP)
    two = made.column(724, ["block"] * 3, TOP + 2 * STEP)
    out = made.column(828, ["stream", "stream", "sum", "sum", "block"])
    made.residual(482, x, one, two, out, "5, and the same sum")

    at = 110.0
    for kind, said, wide in (("stream", "stream", 120), ("block", "written by the block", 218),
                             ("sum", "added to the stream", 214), (dead, "dead", 80)):  # fmt: skip
        made.channel(at, 340, kind)
        made.text(at + SIZE + 10, 356, said, 14, anchor="start")
        at += wide
    return "\n".join([*made.lines, "</svg>"]) + "\n"


FIGURES: dict[str, Callable[[], plt.Figure]] = {"gates": gates, "barrier": barriers, "schedules": schedules}


def main() -> None:
    (ROOT / "docs" / "images" / "block.svg").write_text(block(), encoding="utf-8")
    for name, draw in FIGURES.items():
        made = draw()
        path = ROOT / "docs" / "images" / f"{name}.svg"
        made.savefig(path, transparent=True, bbox_inches="tight", metadata={"Date": None})
        path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
        plt.close(made)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
