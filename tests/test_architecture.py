"""The tree is the pipeline: imports point one way, between packages and inside of them, and a file is a concept."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import networkx as nx
import pytest

import fxprune

ROOT = Path(fxprune.__file__).parent
ORDER = (
    "torch_private", "errors", "files", "modules", "count", "trace", "channels", "rules", "cost", "analysis", "choose",
    "slim", "latency", "gated", "cutting", "save", "run", "methods", "train", "report", "api",
    ("compare", "demo", "integrations"), "commands", "cli", "__main__",
)  # fmt: skip
RANK = {name: rank for rank, names in enumerate(ORDER) for name in ([names] if isinstance(names, str) else names)}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
SMALL, FREE = 60, ("rules", "methods", "commands")  # a rule, a method, a command is a file, however short
ALONE: dict[str, str] = {  # short, with one reader, and a file of its own all the same
    "fxprune.slim.order": "an idea by itself: what makes joins slices",
}  # fmt: skip


def module_of(path: Path) -> str:
    return ".".join(("fxprune", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def imports(path: Path, *, for_types: bool) -> set[str]:
    """Modules of the package that a file imports; those for annotations only, too, or not."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner) for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node) if not for_types
    }  # fmt: skip
    known, found = {module_of(file) for file in FILES}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in skipped and str(node.module).startswith("fxprune."):
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (whole & known) or {str(node.module)}
    return found


def part(module: str) -> str:
    return module.split(".")[1]


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_point_one_way(path: Path) -> None:
    own = part(module_of(path))
    for module in imports(path, for_types=True):
        assert RANK[part(module)] <= RANK[own], f"{own} imports {module}"


def test_there_are_no_cycles() -> None:
    graph = nx.DiGraph((module_of(path), module) for path in FILES for module in imports(path, for_types=False))
    assert nx.is_directed_acyclic_graph(graph), nx.find_cycle(graph)


def test_no_short_file_has_a_single_reader() -> None:
    readers = defaultdict(set)
    for path in FILES:
        for module in imports(path, for_types=True) - {module_of(path)}:
            readers[module].add(module_of(path))
    short = {
        module_of(path) for path in FILES
        if path.name != "__init__.py" and len(path.read_text().splitlines()) < SMALL
        and len(readers[module_of(path)]) == 1 and part(module_of(path)) not in FREE
    }  # fmt: skip
    assert short == set(ALONE)


def test_every_public_name_is_documented() -> None:
    for name in fxprune.__all__:
        assert getattr(fxprune, name).__doc__, name
