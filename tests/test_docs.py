"""The documentation tells the truth: its code runs, its messages are real, its links lead somewhere, its site builds.

Blocks of a page share a namespace and an empty folder. A comment before a block says what is special about it:

    <!-- raises -->          the block raises what the next text block shows ("..." stands for anything)
    <!-- runs -->            the block's commands exit with 0 (<!-- runs: NAME --> if that module is installed)
    <!-- part of: CMD -->    the text block's lines are among those that the command prints
    <!-- fails: CMD -->      the command prints the text block to stderr and exits with 2
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fxprune
from fxprune.cli import COMMANDS, build_parser, main
from fxprune.methods import METHODS
from fxprune.rules import RULES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MARKDOWN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[dict[str, str]]:
    found = [match.groupdict(default="") for match in BLOCK.finditer(page.read_text(encoding="utf-8"))]
    return [{**block, "mark": block["mark"].strip()} for block in found]


RUN = [page for page in MARKDOWN if any(block["kind"] == "python" for block in blocks(page))]
TOLD = [
    pytest.param(block["mark"], block["text"], id=f"{name_of(page)}: {block['mark']}")
    for page in MARKDOWN
    for block in blocks(page)
    if block["mark"].startswith(("part of:", "fails:"))
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """As in a checkout, but empty; whatever a page adds to fxprune is taken out again."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("FXPRUNE_CACHE", str(tmp_path / "cache"))
    rules, methods, path = set(RULES), set(METHODS), list(sys.path)
    yield tmp_path
    for target in set(RULES) - rules:
        del RULES[target]
    for name in set(METHODS) - methods:
        del METHODS[name]
    sys.path[:] = path
    sys.modules.pop("model", None)  # of slim/model.py
    torch._dynamo.reset()


# -------------------------------------------------------------------- what is shown is what happens


@pytest.mark.filterwarnings("ignore")  # of Lightning about few workers, of torch's compilers and exporters
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_code_blocks_run(page: Path, folder: Path) -> None:
    names: dict[str, object] = {"__name__": "docs"}
    found = blocks(page)
    for block, following in zip(found, [*found[1:], {"text": ""}], strict=True):
        mark, _, modules = block["mark"].partition(": ")
        if mark == "runs" and all(map(importlib.util.find_spec, modules.split())):
            for line in block["text"].splitlines():
                assert main(shlex.split(line)[1:]) == 0, line
        if block["kind"] != "python":
            continue
        needs = re.match(r"# needs: (.*)", block["text"])
        if needs is not None and not all(map(importlib.util.find_spec, needs[1].split())):
            continue
        code = compile(block["text"], name_of(page), "exec")
        if block["mark"] == "raises":
            with pytest.raises(Exception) as raised:
                exec(code, names)
            said = f"{raised.type.__name__}: {raised.value}"
            assert matches(said, following["text"]), said
        else:
            exec(code, names)


def matches(said: str, shown: str) -> bool:
    pattern = ".*".join(map(re.escape, shown.strip().split("...")))
    return re.fullmatch(pattern, said.strip(), re.DOTALL) is not None


@pytest.mark.parametrize(("mark", "shown"), TOLD)
def test_output_of_commands(mark: str, shown: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind, command = mark.split(": ", 1)
    code = main(shlex.split(command.removeprefix("fxprune ")))
    said = capsys.readouterr()
    if kind == "fails":
        assert code == 2
        assert matches(said.err, shown), said.err
    else:
        assert code == 0
        printed = [line.rstrip() for line in said.out.splitlines()]
        for line in shown.splitlines():
            assert line.rstrip() in printed, line


@pytest.mark.parametrize("page", MARKDOWN, ids=name_of)
def test_commands_exist(page: Path) -> None:
    """Every line that starts with fxprune has a command and options that it knows."""
    for block in blocks(page):
        if block["kind"] not in ("", "console"):
            continue
        for line in block["text"].splitlines():
            words = shlex.split(line.partition("#")[0].replace("[", "").replace("]", ""))
            if words[:1] == ["fxprune"]:
                build_parser().parse_args(words[1:])


# -------------------------------------------------------------------- links


def anchors(page: Path) -> set[str]:
    """Of the headings of a page, as Python-Markdown makes them."""
    prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
    heads = re.findall(r"^#+ (.*)$", prose, flags=re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", head.replace("`", "")).strip().lower() for head in heads]
    return {re.sub(r"[-\s]+", "-", head) for head in plain}


@pytest.mark.parametrize("page", MARKDOWN, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8")):
        path = page.parent / target if target else page
        assert path.exists(), target
        generated = path.name in ("api.md", "extending.md")  # made from docstrings, checked by mkdocs
        if anchor and not generated:
            assert anchor in anchors(path), f"{target}#{anchor}"


@pytest.mark.parametrize("page", MARKDOWN, ids=name_of)
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"(?<![\w/.-])(?:fxprune|tests|benchmarks|examples|docs)/[\w/.-]*\w\.\w+", page.read_text())
    for name in named:
        assert (ROOT / name).exists(), name


def test_the_map_names_files_that_exist() -> None:
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)
    packages = {path.name for path in (ROOT / "fxprune").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert packages == {name for where, _ in rows for name in re.findall(r"`(\w+)/`", where)} - {*OUTSIDE}
    for where, what in rows:
        folders = [ROOT / "fxprune", ROOT, *(ROOT / "fxprune" / name for name in re.findall(r"`(\w+)/`", where))]
        for name in re.findall(r"`([\w/]+\.py)`", f"{where} {what}"):
            assert any((folder / name).is_file() for folder in folders), f"{where}: {name}"


OUTSIDE = ("examples", "benchmarks", "docs")


def test_code_that_names_a_page() -> None:
    """Messages and docstrings that send the reader to docs/..."""
    for source in (ROOT / "fxprune").rglob("*.py"):
        for page in re.findall(r"\bdocs/[\w/.-]+\.md", source.read_text(encoding="utf-8")):
            assert (ROOT / page).is_file(), f"{source.name}: {page}"


# -------------------------------------------------------------------- the reference is complete


def test_every_public_name_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    for name in fxprune.__all__:
        assert f"::: fxprune.{name}\n" in page or f" {name}," in page or f"[{name}," in page, name


def test_generated_parts() -> None:
    """What pages hold of the code and the results is what there is now."""
    sys.path.insert(0, str(DOCS))
    try:
        import generated
    finally:
        sys.path.remove(str(DOCS))
    pages = {page: page.read_text(encoding="utf-8") for page in MARKDOWN}
    assert {name for text in pages.values() for name in generated.names(text)} == set(generated.PARTS)
    for page, text in pages.items():
        if "commands" not in generated.names(text) or sys.version_info[:2] == (3, 11):  # argparse: as that prints it
            assert generated.filled(text) == text, f"{page.name} is out of date: run python docs/generated.py"
    commands = generated.commands()
    for command in COMMANDS:
        assert f"## fxprune {command.__name__.rpartition('.')[2]}\n" in commands
    ops = generated.ops()
    for name in ("`nn.Conv2d`", "`F.interpolate`", "`Tensor.view`", "`operator.add`", "`torch.cat`", "`F.relu`"):
        assert name in ops
    summary = json.loads((ROOT / "benchmarks/results/zoo.json").read_text())["summary"]
    assert f"| {summary['models']} |\n" in generated.zoo()
    assert "`checkpoint_minutes` (number)" in generated.prune_keys()
    assert "`reference` (text)" in generated.compare_keys()


@pytest.mark.parametrize("command", [
    "inspect examples/models.py:resnet8 --input 1x3x32x32 --budget 1/8 --json",
    "profile examples/models.py:resnet8 --input 1x3x32x32 --arg width=4 --rounds 1 --json",
])  # fmt: skip
def test_every_json_key_is_explained(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 0
    page = (DOCS / "reference" / "json.md").read_text(encoding="utf-8")
    part = page.partition(f"## fxprune {command.split()[0]}\n")[2].partition("\n## ")[0]
    found = json.loads(capsys.readouterr().out)
    assert f'"{found["schema"]}"' in part
    keys = [*found, *found.get("cost", ()), *found.get("machine", ())]
    for name in ("layers", "ops"):
        keys += found[name][0] if found.get(name) else []
    for key in keys:
        assert f"`{key}`" in part, key


# -------------------------------------------------------------------- the site


@pytest.mark.slow
def test_site_builds(tmp_path: Path) -> None:
    """Strictly: no link, anchor or page is missing. And nothing is loaded from elsewhere."""
    if any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings_handlers")):
        pytest.skip("mkdocs-material and mkdocstrings are not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    plain = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(list(DOCS.rglob("*.md")))
    for page in pages:
        loaded = re.findall(r"<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=\"?(https?:[^\s\">]+)", page.read_text())
        assert not loaded, f"{page.name}: {loaded}"
    reference = (tmp_path / "site" / "reference" / "api.html").read_text()
    for name in fxprune.__all__:
        assert f"fxprune.{name}" in reference or f"errors.{name}" in reference, name


def test_readme_quotes_the_zoo() -> None:
    """The numbers of the committed run."""
    found = json.loads((ROOT / "benchmarks/results/zoo.json").read_text())["summary"]
    row = f"{found['models']} models: {found['traced']} traced, {found['exported']} exported under random masks, "
    assert f"{row}{found['exported_exactly']} of these exactly" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_images_are_drawn_by_a_script() -> None:
    """Every picture of docs/images is there because a page shows it."""
    shown = {name for page in MARKDOWN for name in re.findall(r"images/([\w.-]+)", page.read_text(encoding="utf-8"))}
    assert {path.name for path in (DOCS / "images").iterdir()} == shown
