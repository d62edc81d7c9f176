"""The figures of the explanation, drawn from the package's own functions.

    make docs-plots    # writes docs/images/*.svg, which are committed
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

mpl.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

from fxprune.budget.barrier import CEILING, barrier  # noqa: E402
from fxprune.budget.pressure import MARGIN  # noqa: E402
from fxprune.budget.schedule import SCHEDULES, sliding  # noqa: E402
from fxprune.layers import CLOSED_AT, mean_gate, probability  # noqa: E402

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
    axes.plot(at, probability(at), color=RED, label="probability of being open in training")
    axes.axvline(CLOSED_AT, color=GREY, linestyle=":", linewidth=1)
    axes.annotate("closed", (CLOSED_AT, 0.5), (-3.4, 0.5), color=INK, arrowprops={"arrowstyle": "->", "color": INK})
    axes.legend(loc="upper left")
    return made


def barriers() -> plt.Figure:
    made, axes = figure("What the budget asks for, as b slides", "cost V, as a share of the full cost", "f(V, a, b)")
    at = np.linspace(0.0, 1.05, 1500)
    for progress, colour in ((0.3, GREY), (0.5, GREEN), (0.7, RED), (1.0, BLUE)):
        b = sliding(1.0, 0.125, progress)
        axes.plot(at, [barrier(v, (1 - MARGIN) * b, (1 + MARGIN) * b) for v in at], color=colour,
                  label=f"progress {progress:.1f}: b = {b:.2f}")  # fmt: skip
    axes.set_ylim(0, 6)
    axes.text(0.72, 5.5, f"ends at {CEILING:.0f}", color=INK)
    axes.legend(loc="center right")
    return made


def schedules() -> plt.Figure:
    made, axes = figure("The sliding budget, from all to 1/8", "progress", "budget b, as a share of the full cost")
    at = np.linspace(0, 1, 300)
    for name, colour in zip(SCHEDULES, (BLUE, GREEN, RED), strict=True):
        axes.plot(at, [sliding(1.0, 0.125, t, name) for t in at], color=colour, label=name)
    axes.set_ylim(0, 1.02)
    axes.legend()
    return made


FIGURES: dict[str, Callable[[], plt.Figure]] = {"gates": gates, "barrier": barriers, "schedules": schedules}


def main() -> None:
    for name, draw in FIGURES.items():
        made = draw()
        path = ROOT / "docs" / "images" / f"{name}.svg"
        made.savefig(path, transparent=True, bbox_inches="tight", metadata={"Date": None})
        path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
        plt.close(made)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
