"""What is on a report page, without a browser."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import asdict, fields, is_dataclass, replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from fxprune.analysis.inspection import plain
from fxprune.report.charts import groups
from fxprune.report.drawing import Graph, opened_first
from fxprune.report.facts import Facts, ReportData, of_inspection, tree_of
from fxprune.report.page import draw, render
from fxprune.report.placement import Block, block_tree
from fxprune.report.text import fraction
from tests.report.page_cases import CHANNELS, layer, page, residual

EVIL = "<script>alert(1)</script>\"'&"
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Elements with their attributes and own text; fails where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("script", "style"):
            self.texts.append(data)

    def having(self, **wanted: str) -> list[dict[str, str]]:
        names = {name.rstrip("_").replace("_", "-"): value for name, value in wanted.items()}
        return [
            own for _, own in self.elements if all(value in own.get(name, "").split() for name, value in names.items())
        ]

    def ids(self) -> set[str]:
        return {own["id"] for _, own in self.elements if "id" in own}


@pytest.fixture(scope="module")
def whole() -> Page:
    return Page(render(page()))


def test_it_needs_nothing_else(whole: Page) -> None:
    text = render(page())
    assert "http://" not in text and "https://" not in text and "//cdn" not in text and "@import" not in text
    assert not [own for tag, own in whole.elements if "src" in own]
    assert {own["href"] for tag, own in whole.elements if tag == "link"} == {"data:,"}
    assert all(own["href"].startswith("#") for tag, own in whole.elements if tag == "a")
    policy = next(own["content"] for tag, own in whole.elements if own.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "script-src 'sha256-" in policy


def test_every_part_is_there_and_linked(whole: Page) -> None:
    parts = {"network", "channels", "training", "costs", "constraints", "certificate", "settings"}
    assert parts <= whole.ids()
    assert parts == {own["href"][1:] for tag, own in whole.elements if tag == "a" and "class" not in own}


def test_every_convolution_and_join_is_drawn_with_its_channels(whole: Page) -> None:
    seen = residual()
    assert {own["data-key"] for own in whole.having(class_="node")} == set(seen.nodes)
    for name, node in seen.nodes.items():
        label = next(own["aria-label"] for own in whole.having(class_="node") if own["data-key"] == name)
        if node["kind"] == "conv":
            gone = node["label"] in {info.name for info in seen.layers[-2:]}
            assert f"{0 if gone else CHANNELS // 2} of {CHANNELS} channels live" in label
            assert f"{0 if gone else CHANNELS // 2}/{CHANNELS}" in whole.texts
    assert len(whole.having(class_="conv")) - len([o for o in whole.having(class_="conv") if "gone" in o["class"]]) == 7


def test_joins_say_what_they_became() -> None:
    labels = [own["aria-label"] for own in Page(render(page(residual(1, 5)))).having(class_="add")]
    for title in ("plain add", "slice add", "scatter-add", "concat", "gone"):
        assert any(label.splitlines()[0].endswith(f": {title}") for label in labels), title
    assert all("\nof layer" in label for label in labels)


def test_blocks_are_buttons_and_everything_can_be_focused(whole: Page) -> None:
    heads = [own for own in whole.having(class_="head") if own.get("role") == "button"]
    assert len(heads) == 6 and all(own["aria-expanded"] == "true" for own in heads)
    for own in [*heads, *whole.having(class_="node"), *whole.having(class_="entry")]:
        assert own["tabindex"] == "0" and own["aria-label"] and own["role"]


def test_numbers_of_the_head_the_table_and_the_certificate(whole: Page) -> None:
    text = " ".join(whole.texts)
    assert "90.00 %" in text and "91.00 % → 90.00 %" in text and "−1.00 points" in text
    assert "9,216 → 3,584" in text and "2.6×" in text and "1/2 of the volume" in text
    assert "5.0e-16" in text and "float64" in text and "4 and 5" in text and "12 min 34 s" in text
    for word in (
        "torch.renorm",
        "every way to the output passes it",
        "Opaque: asked for",
        "Python read 32",
        "Adam(lr=0.001)",
    ):
        assert word in text, word


def test_big_nets_start_with_blocks_closed() -> None:
    assert opened_first(tree_of(residual(2, 2))) == {"/", *(b.key for b in tree_of(residual(2, 2)).blocks())}
    some = Graph(Facts(page(residual(4, 6))))
    assert some.opened == {"/", "/layer1", "/layer2", "/layer3", "/layer4"}
    assert Graph(Facts(page(residual(4, 80)))).opened == {"/"}


def test_a_page_of_an_inspection_has_no_run() -> None:
    shown = Page(render(of_inspection(residual(), budget=1 / 100)))
    assert {"network", "channels", "costs", "constraints"} <= shown.ids()
    assert not {"training", "certificate", "settings"} & shown.ids()
    text = " ".join(shown.texts)
    assert "1/100 is out of reach" in text and "live" not in " ".join(shown.texts[:40])
    assert "can be reached" in render(of_inspection(residual(), budget=0.5))


@pytest.mark.parametrize(
    "lacking",
    [
        {"inspection": None, "layers": None, "streams": {}, "joins": None},
        {"layers": None, "streams": {}, "joins": None, "after": None, "certificate": None, "stage": "pruning"},
        {"joins": None, "certificate": None, "stage": "fine-tuning"},
        {"log": ()},
        {"settings": {}},
        {"accuracy": {}},
        {"accuracy": {"before": 31.5, "after": 30.25}},
        {"after": {"volume": 0, "flops": 0, "params": 0}},
        {"budget": {"volume": 0.5, "flops": 0.3}},
        {"budget": {"latency": 0.5}, "before": {**residual().cost, "latency": 9}, "after": {"volume": 1, "latency": 4}},
        {"budget": {"latency": 0.5}, "before": {**residual().cost, "latency": 9}, "after": None, "layers": None},
    ],
    ids=lambda lacking: ",".join(lacking),
)
def test_it_does_with_what_there_is(lacking: dict[str, object]) -> None:
    assert any(tag == "h1" for tag, _ in Page(render(page(**lacking, missing=("something",)))).elements)


def test_names_are_text() -> None:
    seen = residual(model=EVIL, stem=EVIL)
    data = page(
        seen,
        run=EVIL,
        missing=(EVIL,),
        settings={EVIL: EVIL},
        log=tuple({**row, "phase": EVIL} for row in page().log),
    )
    data = replace(data, layers={info.name: next(iter(page().layers.values())) for info in seen.layers})  # type: ignore[union-attr]
    text = render(data)
    assert "<script>alert" not in text
    shown = Page(text)
    assert sum(tag == "script" for tag, _ in shown.elements) == 2
    assert any(EVIL in label for label in (own.get("aria-label", "") for _, own in shown.elements))
    assert not any(name.startswith("on") for _, own in shown.elements for name in own)


WORDS = {  # that something is looked up by
    "kind", "label", "module", "source", "conv", "add", "input", "output", "volume", "flops", "params", "network_flops",
    "network_params", "plain", "slice", "scatter", "concat", "through", "prune", "phase", "epoch", "step", "loss", "V",
    "b", "accuracy", "lr", "seconds", "before", "after", "hardened", "exported", "error", "tolerance", "batches",
    "dtype", "fused", "epochs", "value",
}  # fmt: skip


def _with_evil(value: Any) -> Any:
    """Every text of the data, also what is a key, with markup before it."""
    if isinstance(value, str):
        return value if value in WORDS or not value.strip("01") else EVIL + value
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{part.name: _with_evil(getattr(value, part.name)) for part in fields(value)})
    if isinstance(value, dict):
        return {_with_evil(key): _with_evil(entry) for key, entry in value.items()}
    return type(value)(map(_with_evil, value)) if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("run", [True, False], ids=["run", "inspection"])
def test_no_text_of_the_data_is_markup(run: bool) -> None:
    seen = replace(residual(), pooling_blocks=("add_1_0",))
    data = page(seen, missing=("something",)) if run else of_inspection(seen, 0.5)
    evil = _with_evil(data)
    text, plain = render(evil), render(data)
    assert text.count("alert(1)") > 100 and "<script>alert" not in text and "\"'&" not in text
    shape = [[(tag, list(own)) for tag, own in Page(written).elements] for written in (text, plain)]
    assert shape[0] == shape[1]
    drawn, known = (ET.fromstring(draw(each.inspection)) for each in (evil, data))
    assert [(part.tag, list(part.attrib)) for part in drawn.iter()] == [
        (part.tag, list(part.attrib)) for part in known.iter()
    ]
    assert {f"{EVIL}stem", f"{EVIL}layer1.0.conv1"} <= {group.get("data-layer") for group in drawn.iter()}


def test_a_template_in_a_name_is_text() -> None:
    name = "{{ 7 * 7 }}{% if %}{# #}"
    seen = residual(model=name, stem=name)
    assert Page(render(page(seen, layers=None, settings={name: name}))).texts.count(name) >= 5
    assert name in draw(seen)


def test_what_no_file_can_hold_is_replaced() -> None:
    written = render(page(residual(model="half \ud800 a \x00 character", stem="\ud800"))).encode()
    assert b"half" in written and b"\x00" not in written
    drawn = ET.fromstring(draw(residual(model="half \ud800 a \x00 character", stem="\x1b")))
    assert "half \ufffd a \ufffd character" in drawn[0].text  # type: ignore[operator]


def test_the_data_is_json() -> None:
    assert json.loads(json.dumps(plain(asdict(page())), allow_nan=False))["model"] == page().model


def test_the_plan_names_everything_once() -> None:
    graph = Graph(Facts(page(residual(3, 4))))
    plan = graph.plan()
    slots = [slot for block in plan["blocks"].values() for slot in block["slots"] if slot and slot not in plan["ports"]]
    assert sorted(slots) == sorted([*graph.facts.nodes, *(key for key in plan["blocks"] if key != plan["root"])])
    for block in plan["blocks"].values():
        ranks = {slot: n for n, rank in enumerate(block["ranks"]) for slot in rank}
        assert all(ranks[b] == ranks[a] + 1 for a, b in block["links"])
    assert "<" not in re.search(r'id="graph-data">(.*?)</script>', render(page()))[1]  # type: ignore[index]


def test_blocks_that_would_lie_in_a_circle_are_opened() -> None:
    nodes = {"x": (), "d0": ("ups",), "join": (), "d1": ("ups",), "y": ()}
    root = block_tree(nodes, [("x", "d0"), ("d0", "join"), ("join", "d1"), ("d1", "y")])
    assert list(root.members) == list(nodes)
    deep = {"x": (), "a": ("s", "0"), "b": ("s", "0"), "j": (), "c": ("s", "1"), "d": ("s", "1"), "y": ()}
    root = block_tree(deep, [("x", "a"), ("a", "b"), ("b", "j"), ("j", "c"), ("c", "d"), ("d", "y")])
    assert list(root.members) == ["x", "/s.0", "j", "/s.1", "y"]


def test_a_block_that_holds_nearly_everything_is_opened() -> None:
    nodes = {"x": (), **{f"{s}{n}": ("features", s) for s in "ab" for n in range(5)}, "y": ()}
    chain = list(nodes)
    assert list(block_tree(nodes, list(itertools.pairwise(chain))).members) == [
        "x", "/features.a", "/features.b", "y"
    ]  # fmt: skip


def test_every_edge_is_in_some_block() -> None:
    seen = residual(3, 3)
    root = tree_of(seen)

    def inside(block: Block) -> set[str]:
        return set(block.nodes())

    for source, target in seen.edges:
        holders = [block for block in root.blocks() if {source, target} <= inside(block)]
        holder = min(holders, key=lambda block: len(inside(block)))
        ends = [
            next(k for k, b in holder.members.items() if n == k or (b and n in inside(b))) for n in (source, target)
        ]
        assert tuple(ends) in holder.edges


def test_bars_are_as_fine_as_there_is_room() -> None:
    few, many = residual(2, 3), residual(4, 30)
    assert [name for name, _ in groups(tree_of(few), few)] == [
        "stem",
        *(f"layer{s}.{b}" for s in (1, 2) for b in range(3)),
    ]
    assert [name for name, _ in groups(tree_of(many), many)] == ["stem", "layer1", "layer2", "layer3", "layer4"]
    assert sum(len(layers) for _, layers in groups(tree_of(many), many)) == len(many.layers)


def test_a_layer_without_channels_to_spare_is_drawn() -> None:
    seen = replace(
        residual(1, 1), layers=(layer("stem"), layer("layer1.0.conv1", 1, ungated="follows"), layer("layer1.0.conv2"))
    )
    assert "layer1.0.conv1" in render(of_inspection(seen))


def test_fractions() -> None:
    assert [fraction(share) for share in (1 / 16, 0.5, 1.0, 0.07)] == ["1/16", "1/2", "100 %", "7.0 %"]


def test_empty_data_is_a_page() -> None:
    assert any(tag == "h1" for tag, _ in Page(render(ReportData("Net"))).elements)
