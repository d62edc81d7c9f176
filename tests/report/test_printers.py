"""What the printers make of inspections, without the command line around them."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch
from rich.console import Console
from torch import nn

import fxprune
from fxprune.analysis.inspection import FreezeInfo, Inspection
from fxprune.commands.user_code import load_model
from fxprune.files import write_atomically
from fxprune.report.page import draw
from fxprune.report.terminal import as_json, collect, foot, head, layer_table, layer_tree
from fxprune.report.text import fold_name, lower_bound
from fxprune.trace.source_lines import short_source
from fxprune.trace.tracer import Specialisation

NETS = Path(__file__).parent / "nets.py"


@pytest.fixture(scope="module")
def odd() -> Inspection:
    return fxprune.inspect(load_model(f"{NETS}:Odd", {}), torch.zeros(1, 3, 8, 8))


def _printed(*parts: object, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False, emoji=False)
    for part in parts:
        console.print(part)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_every_reason_is_told(odd: Inspection) -> None:
    notes = collect(odd)
    told = _printed(*foot(odd, notes), width=400)
    for layer in odd.layers:
        assert layer.guarded is None or layer.guarded in told
        frozen = any(layer.name in freeze.layers for freeze in odd.freezes)
        assert layer.ungated is None or frozen or layer.ungated in told
        assert bool(notes.marks[layer.name]) == bool(layer.guarded or layer.ungated or layer.calls > 1)
    for freeze in odd.freezes:
        assert freeze.op in told and freeze.remedy in told


def test_freezes_that_cost_nothing_are_only_counted(odd: Inspection) -> None:
    free = [FreezeInfo(f"op_{n}", f"torch.op_{n}", "no rule", None, (), 0.0, 0.0, "add a rule") for n in range(3)]
    both = replace(odd, freezes=(*odd.freezes, *free))
    told = _printed(*foot(both, collect(both)))
    assert "torch.op_1" not in told and "3 more ops keep no further volume" in told
    none = replace(odd, freezes=tuple(free[:1]), layers=())
    assert "1 op keeps no volume" in _printed(*foot(none, collect(none)))


def test_long_lists_of_specialisations_are_cut_and_equal_ones_counted(odd: Inspection) -> None:
    many = replace(odd, specialisations=tuple(Specialisation("n", "value", n, f"net.py:{n}") for n in range(40)))
    assert "and 28 more (all of them with --json)" in _printed(*foot(many, collect(many)))
    same = replace(odd, specialisations=(Specialisation("n", "training", False, "net.py:7"),) * 3)
    assert "self.training was read as False, 3 times" in _printed(*foot(same, collect(same)))


def test_a_budget_is_answered_for_every_cost(odd: Inspection) -> None:
    told = _printed(*head(odd, 0.125))
    assert told.count("reachable") + told.count("out of reach") == 3
    assert _printed(*head(odd, 1.0)).count("reachable") == 3


def test_the_printed_smallest_budget_can_be_reached(odd: Inspection) -> None:
    for metric, least in odd.smallest_budget.items():
        typed = lower_bound(least)
        share = 1 / int(typed[2:]) if typed.startswith("1/") else float(typed)
        assert odd.smallest[metric] <= share * odd.cost[metric]


def test_names_are_never_cut() -> None:
    name = "features.a_rather_long_part_without_any_dot.0.conv"
    for width in range(5, 60):
        folded = fold_name(name, width)
        assert folded.replace("\n", "") == name
        assert max(map(len, folded.split("\n"))) <= width


def test_the_table_shows_whole_names_where_they_fit(odd: Inspection) -> None:
    wide = _printed(layer_table(odd, collect(odd), 120), width=120)
    assert all(layer.name in wide for layer in odd.layers)


def test_the_tree_adds_up(odd: Inspection) -> None:
    tree = layer_tree(odd, collect(odd))
    assert len(tree.children) == len({layer.name.split(".")[0] for layer in odd.layers})
    assert "normed  1.02k  12.1 %" in _printed(tree)


def test_sources_are_short() -> None:
    assert short_source(None) == ""
    assert short_source(r"C:\users\me\net\model.py:3") == "net/model.py:3"
    assert short_source(str(Path.cwd() / "net.py:3")) == "net.py:3"


def test_json_is_strict(odd: Inspection) -> None:
    strange = replace(odd, specialisations=(Specialisation("n", "value", math.inf, None),))
    printed = json.loads(as_json(strange), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert printed["specialisations"][0]["value"] == "inf"


def test_markup_in_names_is_text() -> None:
    net = nn.ModuleDict({"[red]&<b>": nn.Conv2d(3, 4, 1)})

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.parts["[red]&<b>"](x)
            return out.sum()

    seen = fxprune.inspect(Net(), torch.zeros(1, 3, 4, 4))
    notes = collect(seen)
    assert "[red]&<b>" in _printed(layer_table(seen, notes, 100)) and "[red]&<b>" in _printed(layer_tree(seen, notes))
    drawn = ET.fromstring(draw(seen))
    assert "parts.[red]&<b>" in {group.get("data-layer") for group in drawn.iter("{http://www.w3.org/2000/svg}g")}


def test_svg_tells_kinds_apart_and_explains_only_what_it_shows(odd: Inspection) -> None:
    drawn = ET.fromstring(draw(odd))
    classes = [group.get("class", "") for group in drawn.iter("{http://www.w3.org/2000/svg}g")]
    nodes = {name.removeprefix("node ") for name in classes if name.startswith("node ")}
    legend = {name.removeprefix("legend ") for name in classes if name.startswith("legend ")}
    assert {"conv", "conv guarded", "conv ungated", "conv frozen", "add", "add pooling", "mul", "cat"} <= nodes
    assert legend == nodes - {"input", "output"}
    assert "http" not in draw(odd).replace("http://www.w3.org/2000/svg", "")


def test_files_are_written_whole(tmp_path: Path) -> None:
    target, link = tmp_path / "target.svg", tmp_path / "link.svg"
    target.write_text("old")
    link.symlink_to(target)
    write_atomically(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    with pytest.raises(UnicodeEncodeError):
        write_atomically(target, "\ud800")
    assert target.read_text() == "new" and len(list(tmp_path.iterdir())) == 2
