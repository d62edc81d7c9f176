"""The convolutions by module path."""

from __future__ import annotations

from rich.text import Text
from rich.tree import Tree

from fxprune.inspection import Inspection, LayerInfo
from fxprune.report.notes import Notes
from fxprune.report.table import into, layer_style
from fxprune.report.text import human, percent


def layer_tree(seen: Inspection, notes: Notes) -> Tree:
    """A branch per module, a leaf per convolution; every branch has the volume of all that is below it."""
    volumes: dict[str, int] = {}
    for layer in seen.layers:
        for path in _paths(layer.name):
            volumes[path] = volumes.get(path, 0) + layer.volume
    total = max(seen.cost["volume"], 1)
    root = Tree(Text(f"{seen.model}  {human(seen.cost['volume'])}", style="bold"))
    branches: dict[str, Tree] = {}
    for layer in seen.layers:
        above = root
        for path in _paths(layer.name):
            if path not in branches:
                own = path.rpartition(".")[2]
                label = Text(f"{own}  {human(volumes[path])}  {percent(volumes[path] / total)} %")
                branches[path] = above.add(label)
            above = branches[path]
        above.label = _leaf(layer, seen, notes)
    return root


def _paths(name: str) -> list[str]:
    """
    >>> _paths("layer1.0.conv1")
    ['layer1', 'layer1.0', 'layer1.0.conv1']
    """
    parts = name.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def _leaf(layer: LayerInfo, seen: Inspection, notes: Notes) -> Text:
    label = Text(layer.name.rpartition(".")[2], style=layer_style(layer))
    facts = [f"{layer.channels} ch", human(layer.volume), f"{percent(layer.volume_share)} %"]
    facts += [fact for fact in (into(layer, seen), notes.marks[layer.name]) if fact]
    return label.append("  " + "  ".join(facts), style="default")
