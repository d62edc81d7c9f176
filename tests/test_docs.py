"""Every Python block of README and docs runs, file by file, in an empty folder."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from fxprune.methods import METHODS
from fxprune.rules import RULES

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = [page for page in PAGES if page.name != "deploy.md"]  # run by tests/test_deploy.py, where ONNX is installed


@pytest.mark.filterwarnings("ignore:::lightning")  # which warns of few workers and short epochs
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    known, methods = set(RULES), set(METHODS)
    names: dict[str, object] = {}
    try:
        for block in blocks:
            needs = re.match(r"# needs: (.*)", block)
            if needs is None or all(map(importlib.util.find_spec, needs[1].split())):
                exec(compile(block, str(page), "exec"), names)
    finally:
        for target in set(RULES) - known:  # rules that a page adds as an example
            del RULES[target]
        for name in set(METHODS) - methods:
            del METHODS[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
