"""What `mkdocs build` does beyond Markdown: pages of files outside of docs/.

A page in docs/ links to files of the repository as they lie there (``../benchmarks/results/cifar.md``), so that it
reads well in a checkout. In the site these files are pages and pictures of their own, below ``repository/``.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the checkout's own package, also where another one is installed
COPIES = "repository"  # the folder of the site that holds what lies outside of docs/
_FENCE = re.compile(r"^(`{3,}).*?^\1`*[ ]*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()(?P<target>[^()#:\s]+)(?P<anchor>#[^()\s]*)?(?=\))")
_CODE = {".py": "python", ".toml": "toml"}


# ------------------------------------------------------------------ links that leave docs/


def links(text: str) -> Iterator[re.Match[str]]:
    """Relative links of a page, without those in code blocks."""
    code = [found.span() for found in _FENCE.finditer(text)]
    for found in _LINK.finditer(text):
        if not any(begin <= found.start() < end for begin, end in code):
            yield found


def in_repository(page: str) -> str:
    """Where the page of the site lies in the repository."""
    path = page.removeprefix(COPIES + "/") if page.startswith(COPIES + "/") else f"docs/{page}"
    return path.removesuffix(".md") if Path(path).suffixes[-2:-1] in ([".py"], [".toml"]) else path


def in_site(path: str) -> str:
    """Where a file of the repository is found in the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{COPIES}/{path}" + (".md" if Path(path).suffix in _CODE else "")


def target_of(page: str, link: str) -> str:
    """The file of the repository that a page's link leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(in_repository(page)), link))


def rewritten(text: str, page: str) -> str:
    """The same with links into the site."""
    parts, end = [], 0
    for found in links(text):
        site = in_site(target_of(page, found["target"]))
        parts += [text[end : found.start("target")], posixpath.relpath(site, posixpath.dirname(page) or ".")]
        end = found.end("target")
    return "".join([*parts, text[end:]])


def outside(pages: dict[str, str]) -> dict[str, Path]:
    """Path in the site -> file of the repository, for all that pages link to, and what these link to in turn."""
    found: dict[str, Path] = {}
    todo = list(pages.items())
    while todo:
        page, text = todo.pop()
        for link in links(text):
            path = target_of(page, link["target"])
            site = in_site(path)
            if path.startswith("docs/") or site in found or not (ROOT / path).is_file():
                continue  # what leads nowhere is mkdocs' to tell
            found[site] = ROOT / path
            if path.endswith(".md"):
                todo.append((site, found[site].read_text(encoding="utf-8")))
    return found


# ------------------------------------------------------------------ what mkdocs calls


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    pages = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for site, path in outside(pages).items():
        if path.suffix in _CODE:
            name = path.relative_to(ROOT).as_posix()
            content = f"# {name}\n\n```{_CODE[path.suffix]}\n{path.read_text(encoding='utf-8').rstrip()}\n```\n"
            files.append(File.generated(config, site, content=content))
        else:
            files.append(File.generated(config, site, abs_src_path=os.fspath(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    return rewritten(markdown, page.file.src_uri)
