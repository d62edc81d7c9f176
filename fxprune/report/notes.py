"""Short marks for the reasons that do not fit into a table, and the legend that resolves them."""

from __future__ import annotations

from dataclasses import dataclass

from fxprune.inspection import FreezeInfo, Inspection


@dataclass(frozen=True)
class Notes:
    """``marks`` per layer name; ``legend`` resolves all but the ``f`` marks, which ``freezes`` does."""

    marks: dict[str, str]
    legend: tuple[tuple[str, str], ...]
    freezes: tuple[tuple[str, FreezeInfo], ...]


def collect(seen: Inspection) -> Notes:
    """Give every reason a mark: g for guarded, f for frozen, n for other convolutions without a gate."""
    freezes = tuple((f"f{n}", freeze) for n, freeze in enumerate(costly_freezes(seen), 1))
    frozen: dict[str, str] = {}
    for mark, freeze in freezes:
        for name in freeze.layers:
            frozen[name] = f"{frozen[name]}+" if name in frozen and frozen[name][-1] != "+" else frozen.get(name, mark)
    reasons: dict[tuple[str, str], str] = {}
    marks: dict[str, str] = {}
    for layer in seen.layers:
        own = []
        if layer.guarded:
            own.append(_mark(reasons, "g", f"guarded: {layer.guarded}"))
        if layer.name in frozen:
            own.append(frozen[layer.name])
        elif layer.ungated:
            stays = "" if layer.prunable else " (all its channels stay)"
            own.append(_mark(reasons, "n", f"no gate: {layer.ungated}{stays}"))
        if layer.calls > 1:
            own.append(f"{layer.calls}x")
        marks[layer.name] = " ".join(own)
    legend = [(mark, text) for letter in "gn" for (known, text), mark in reasons.items() if known == letter]
    if any(layer.calls > 1 for layer in seen.layers):
        legend.append(("2x", "called so many times; the area is that of one call, the costs are those of all"))
    return Notes(marks, tuple(legend), freezes)


def costly_freezes(seen: Inspection) -> list[FreezeInfo]:
    return [freeze for freeze in seen.freezes if freeze.volume_share > 0]


def grain_legend(seen: Inspection) -> str:
    """What the column ``gate`` means, as far as this model needs it."""
    marks = {"group": "g: a group of the convolution", "group norm": "gn: a group of the norm behind it"}
    used = [text for grain, text in marks.items() if any(layer.grain == grain for layer in seen.layers)]
    return "channels per gate" + (f" ({', '.join(used)})" if used else "")


def _mark(reasons: dict[tuple[str, str], str], letter: str, text: str) -> str:
    number = sum(1 for known, _ in reasons if known == letter) + 1
    return reasons.setdefault((letter, text), f"{letter}{number}")
