"""The layer graph as one SVG file that needs nothing else."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

from fxprune.analysis.inspection import Inspection, LayerInfo
from fxprune.report.layout import Layout, Segment, layered
from fxprune.report.terminal import Notes
from fxprune.report.text import human, percent, plural
from fxprune.trace.frames import short_source

_CHARACTER = 6.7  # width of one, in the 11 px monospace font
_MARGIN = 20.0
_LEGEND = {
    "conv": "convolution",
    "conv guarded": "guarded: one channel must live",
    "conv ungated": "no gate of its own",
    "conv frozen": "frozen: every channel stays",
    "linear": "linear layer",
    "add": "add",
    "add pooling": "pooling block",
    "mul": "multiply",
    "cat": "concat",
}
_SYMBOLS = {"add": "+", "mul": "*", "cat": "cat"}
_STYLE = """
text { font: 11px ui-monospace, Menlo, Consolas, monospace; fill: #111827; text-anchor: middle }
text.left { text-anchor: start }
text.title { font-weight: bold }
.edge { fill: none; stroke: #6b7280; stroke-width: 1.2 }
.box { stroke: #6b7280; stroke-width: 1.2; fill: #ffffff }
.conv .box { fill: #dbeafe; stroke: #2563eb }
.guarded .box { fill: #dcfce7; stroke: #15803d; stroke-width: 2.6 }
.ungated .box { fill: #fef9c3; stroke: #a16207; stroke-dasharray: 5 3 }
.frozen .box { fill: #fee2e2; stroke: #b91c1c; stroke-width: 2 }
.linear .box { fill: #f3f4f6 }
.pooling .box { fill: #fdba74; stroke: #c2410c; stroke-width: 2 }
.cat .box { fill: #ede9fe; stroke: #6d28d9 }
"""


def draw(seen: Inspection, notes: Notes) -> str:
    """Convolutions, joins, inputs and outputs, top to bottom, with a legend."""
    layers = {layer.name: layer for layer in seen.layers}
    lines = {name: _lines(data, layers) for name, data in seen.nodes.items()}
    sizes = {name: _size(data["kind"], lines[name]) for name, data in seen.nodes.items()}
    layout = layered(seen.nodes, seen.edges, sizes)
    legend = _legend(seen, notes, layers)
    legend_height = 22.0 * (len(legend) + 1)
    title = f"{seen.model} for {', '.join(seen.inputs)}: volume {human(seen.cost['volume'])}"
    width = max(layout.width, 260.0, len(title) * (_CHARACTER + 1)) + 2 * _MARGIN
    height = layout.height + legend_height + 3 * _MARGIN

    root = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width:.0f} {height:.0f}")
    root.attrib.update(width=f"{width:.0f}", height=f"{height:.0f}", role="img")
    ET.SubElement(root, "title").text = title
    ET.SubElement(root, "style").text = _STYLE
    marker = ET.SubElement(ET.SubElement(root, "defs"), "marker", id="arrow", viewBox="0 0 8 8", refX="7", refY="4")
    marker.attrib.update(markerWidth="6", markerHeight="6", orient="auto")
    ET.SubElement(marker, "path", d="M0 0L8 4L0 8z", fill="#6b7280")
    ET.SubElement(root, "rect", width="100%", height="100%", fill="#ffffff")

    _text(root, title, _MARGIN, _MARGIN, "left title")
    for position, (kind, told) in enumerate(legend):
        y = _MARGIN + 22.0 * (position + 1)
        group = ET.SubElement(root, "g", {"class": f"legend {kind}"})
        shape = kind.split()[0]
        _shape(group, shape, _MARGIN + 14, y, (16.0, 16.0) if shape in ("add", "mul") else (28.0, 16.0))
        _text(group, _SYMBOLS.get(shape, ""), _MARGIN + 14, y)
        _text(group, told, _MARGIN + 38, y, "left")
    shift = (width - layout.width) / 2, legend_height + 2 * _MARGIN
    _edges(root, layout, shift)
    for name, data in seen.nodes.items():
        x, y = layout.centres[name]
        kind = _classes(name, data, seen, notes, layers)
        group = ET.SubElement(root, "g", {"class": f"node {kind}", "data-node": name})
        if data["kind"] == "conv":
            group.set("data-layer", data["label"])
        ET.SubElement(group, "title").text = _tooltip(name, data, layers)
        _shape(group, data["kind"], x + shift[0], y + shift[1], sizes[name])
        for number, line in enumerate(lines[name]):
            _text(group, line, x + shift[0], y + shift[1] + 14.0 * (number - (len(lines[name]) - 1) / 2))
    ET.indent(root, " ")
    return ET.tostring(root, encoding="unicode") + "\n"


def _lines(data: dict[str, Any], layers: dict[str, LayerInfo]) -> list[str]:
    kind, layer = data["kind"], layers.get(data["label"])
    if kind in _SYMBOLS:
        return [_SYMBOLS[kind]]
    if kind != "conv" or layer is None:
        return [data["label"]]
    return [layer.name, f"{layer.channels} ch, {human(layer.volume)}, {percent(layer.volume_share)} %"]


def _size(kind: str, lines: list[str]) -> tuple[float, float]:
    if kind in ("add", "mul"):
        return 20.0, 20.0
    return max(map(len, lines)) * _CHARACTER + 16, 14.0 * len(lines) + 10


def _classes(name: str, data: dict[str, Any], seen: Inspection, notes: Notes, layers: dict[str, LayerInfo]) -> str:
    if name in seen.pooling_blocks:
        return "add pooling"
    layer = layers.get(data["label"]) if data["kind"] == "conv" else None
    if layer is None:
        return str(data["kind"])
    if any(layer.name in freeze.layers for _, freeze in notes.freezes):
        return "conv frozen"
    return "conv ungated" if layer.ungated else "conv guarded" if layer.guarded else "conv"


def _legend(seen: Inspection, notes: Notes, layers: dict[str, LayerInfo]) -> list[tuple[str, str]]:
    used = {_classes(name, data, seen, notes, layers) for name, data in seen.nodes.items()}
    return [(kind, told) for kind, told in _LEGEND.items() if kind in used]


def _tooltip(name: str, data: dict[str, Any], layers: dict[str, LayerInfo]) -> str:
    layer = layers.get(data["label"]) if data["kind"] == "conv" else None
    facts = [data["label"] if data["label"] == name else f"{data['label']} ({name})"]
    if layer is not None:
        facts.append(f"{plural(layer.channels, 'channel')}, {plural(layer.gates, 'gate')}, area {layer.area:,}")
        facts.append(f"volume {layer.volume:,}, FLOPs {layer.flops:,}, params {layer.params:,}")
        facts += [f"guarded: {layer.guarded}"] if layer.guarded else []
        facts += [f"no gate: {layer.ungated}"] if layer.ungated else []
    return "\n".join([*facts, *([short_source(data["source"])] if data["source"] else [])])


def _edges(root: ET.Element, layout: Layout, shift: tuple[float, float]) -> None:
    group = ET.SubElement(root, "g", {"class": "edges"})
    for segment in layout.segments:
        path = ET.SubElement(group, "path", {"class": "edge", "d": _path(segment, shift)})
        if segment.arrow:
            path.set("marker-end", "url(#arrow)")


def _path(segment: Segment, shift: tuple[float, float]) -> str:
    x, y = segment.start[0] + shift[0], segment.start[1] + shift[1]
    to_x, to_y = segment.end[0] + shift[0], segment.end[1] + shift[1]
    middle = (y + to_y) / 2
    straight = f"V{to_y + segment.through:.1f}" if segment.through else ""
    return f"M{x:.1f} {y:.1f}C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}{straight}"


def _shape(group: ET.Element, kind: str, x: float, y: float, size: tuple[float, float]) -> None:
    width, height = size
    if kind in ("add", "mul"):
        ET.SubElement(group, "circle", {"class": "box"}, cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{width / 2:.1f}")
        return
    rect = ET.SubElement(group, "rect", {"class": "box"}, x=f"{x - width / 2:.1f}", y=f"{y - height / 2:.1f}")
    rounding = height / 2 if kind in ("input", "output") else 3
    rect.attrib.update(width=f"{width:.1f}", height=f"{height:.1f}", rx=f"{rounding:g}")


def _text(group: ET.Element, text: str, x: float, y: float, style: str = "") -> None:
    element = ET.SubElement(group, "text", x=f"{x:.1f}", y=f"{y + 4:.1f}")
    element.text = text
    if style:
        element.set("class", style)
