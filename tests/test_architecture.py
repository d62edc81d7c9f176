"""Imports point one way, and files stay small enough to read in one sitting."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fxprune

ROOT = Path(fxprune.__file__).parent
ORDER = [
    {"errors", "ids", "count"}, {"core"}, {"tracing"}, {"layers"}, {"rules"}, {"budget"}, {"passes"}, {"latency"},
    {"wrapped", "slimming", "timing", "inspection"}, {"emit"}, {"run"}, {"methods"}, {"train"}, {"report"}, {"api"},
    {"compare", "demo", "integrations"}, {"commands"}, {"cli"}, {"__main__"},
]  # fmt: skip
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    own = part(path)
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            if name.startswith("fxprune."):
                assert RANK[name.split(".")[1]] <= RANK[own], f"{own} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_every_public_name_is_documented() -> None:
    for name in fxprune.__all__:
        assert getattr(fxprune, name).__doc__, name
