"""Parts of pages that are read off the code and the results: what stands between ``<!-- generated: NAME -->`` and
``<!-- end -->``.

    python docs/generated.py    # writes them anew; the tests fail where they are out of date
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


# ------------------------------------------------------------------ the command line


def commands() -> str:
    """What --help prints, command by command."""
    from fxprune.cli import build_parser

    before, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), "100"
    try:
        parser = build_parser()
        parts = [f"## fxprune\n\n```text\n{parser.format_help().rstrip()}\n```"]
        for name, command in parser.commands.items():
            parts.append(f"## fxprune {name}\n\n```text\n{_wrapped(command.format_help()).rstrip()}\n```")
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return "\n\n".join(parts) + "\n"


def _wrapped(text: str) -> str:
    import textwrap

    return "\n".join(line if len(line) <= 100 else textwrap.fill(line, 100) for line in text.splitlines())


# ------------------------------------------------------------------ ops


def ops() -> str:
    """Every op with a rule, by the file of its rule."""
    from fxprune import rules

    families: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    targets = {target: rule for target, rule in rules.RULES.items() if callable(target) or isinstance(target, str)}
    for target, rule in targets.items():
        kind, name = _named(target)
        families[rule.relate.__module__.rpartition(".")[2]][kind].add(name)
    parts = [f"{len(targets)} functions, methods and modules have a rule."]
    for family in sorted(families):
        about = (inspect.getdoc(sys.modules[f"fxprune.rules.{family}"]) or "").partition("\n\n")[0].replace("\n", " ")
        parts.append(f"## {family}\n\n{about}\n\n| | |\n| --- | --- |")
        for kind in ("modules", "functions", "methods"):
            names = sorted(families[family][kind], key=str.lower)
            if names:
                parts[-1] += f"\n| {kind} | {', '.join(f'`{name}`' for name in names)} |"
    return "\n\n".join(parts) + "\n"


def _named(target: Any) -> tuple[str, str]:
    """What kind of target a rule is registered for, and its name as a user writes it."""
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.overrides import resolve_name

    if isinstance(target, str):
        return "methods", f"Tensor.{target}"
    if isinstance(target, type):
        return "modules", f"nn.{target.__name__}" if getattr(nn, target.__name__, None) is target else _path(target)
    name = getattr(target, "__name__", str(target))
    for module, prefix in ((F, "F"), (torch, "torch")):
        if getattr(module, name, None) is target:
            return "functions", f"{prefix}.{name}"
    found = resolve_name(target) if callable(target) else None
    return "functions", found or _path(target)


def _path(target: Any) -> str:
    module = (getattr(target, "__module__", None) or "").lstrip("_")
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", repr(target))
    return f"{module}.{name}" if module else name


# ------------------------------------------------------------------ the zoo


def zoo() -> str:
    """Summary and failures of the committed run over the model zoos."""
    found = json.loads((ROOT / "benchmarks/results/zoo.json").read_text(encoding="utf-8"))
    records: list[dict[str, Any]] = found["models"]
    suites = list(dict.fromkeys(record["suite"] for record in records))
    rows: dict[str, Callable[[dict[str, Any]], bool]] = {
        "models": lambda r: True,
        "traced": lambda r: "nodes" in r,
        "inspected": lambda r: "prunable" in r,
        "traced without a leaf": lambda r: "nodes" in r and not r["leaves"],
        "all of the volume prunable": lambda r: r.get("prunable", 0) > 0.9995,
        "prunable share below 95 %": lambda r: r.get("prunable", 1.0) < 0.95,
        "exported": lambda r: "export_difference" in r,
        "of these exactly (1e-9)": lambda r: r.get("export_difference", 1.0) <= 1e-9,
        "failed": lambda r: r["status"] != "ok",
    }
    lines = ["| | " + " | ".join(suites) + " | all |", "| --- |" + " ---: |" * (len(suites) + 1)]
    for label, holds in rows.items():
        counts = [sum(holds(r) for r in records if r["suite"] == suite) for suite in suites]
        lines.append(f"| {label} | " + " | ".join(map(str, [*counts, sum(counts)])) + " |")
    lines += ["", "## What fails", "", "| model | what | why |", "| --- | --- | --- |"]
    failed = [record for record in records if record["status"] != "ok"]
    lines += [f"| {r['name']} ({r['suite']}) | {r['status']} | {_cell(r['reason'])} |" for r in failed]
    lines += ["", "## What keeps channels", "", "| model | prunable | what keeps the rest |", "| --- | ---: | --- |"]
    below = sorted((r for r in records if r.get("prunable", 1.0) < 0.95), key=lambda r: r["prunable"])
    for r in below:
        kept = [f"{why}: {100 * share:.1f} %" for why, share in r.get("ungated", {}).items() if share >= 0.005]
        lines.append(f"| {r['name']} ({r['suite']}) | {100 * r['prunable']:.1f} % | {_cell('; '.join(kept[:3]))} |")
    return "\n".join(lines) + "\n"


def _cell(text: str, longest: int = 200) -> str:
    text = text.replace("|", "\\|").replace("\n", " ")
    text = text if len(text) <= longest else text[: longest - 1].rstrip() + "…"
    return text.replace("<", "&lt;").replace("https://", "")


# ------------------------------------------------------------------ comparisons


def means() -> str:
    """The tables of mean accuracies of the committed comparison on CIFAR-10, each below its heading."""
    text = (ROOT / "benchmarks/results/compare_cifar/compare.md").read_text(encoding="utf-8")
    found = []
    for part in text.split("\n## ")[1:]:
        heading, _, rest = part.partition("\n")
        tables = [block for block in rest.split("\n\n") if block.strip().startswith("| mean accuracy")]
        for table in tables[:1]:
            rows = [row for row in table.strip().splitlines() if set(row.partition(" | ")[2]) - set("–| ")]
            found.append(f"*{heading}*:\n\n" + "\n".join(rows))
    return "\n\n".join(found) + "\n"


# ------------------------------------------------------------------ configuration files

def prune_keys() -> str:
    from fxprune.commands.config import PRUNE_KEYS

    return _keys(PRUNE_KEYS)


def compare_keys() -> str:
    from fxprune.commands.config import COMPARE_KEYS, ENTRY_KEYS

    sections = {name: keys for name, keys in COMPARE_KEYS.items() if name != "entries"}
    return _keys({**sections, 'entries."NAME"': ENTRY_KEYS})


def _keys(sections: dict[str, dict[str, Any]]) -> str:
    from fxprune.commands.config import in_words

    lines = ["| section | keys |", "| --- | --- |"]
    for section, keys in sections.items():
        words = {key: in_words(kinds).removeprefix("a ").replace(" or a ", " or ") for key, kinds in keys.items()}
        told = [f"`{key}` ({kinds})" for key, kinds in words.items()]
        lines.append(f"| `[{section}]` | {', '.join(told)} |")
    return "\n".join(lines) + "\n"


PARTS: dict[str, Callable[[], str]] = {
    "commands": commands, "ops": ops, "zoo": zoo, "means": means, "prune_keys": prune_keys,
    "compare_keys": compare_keys,
}  # fmt: skip

_PART = re.compile(r"<!-- generated: (\w+) -->\n.*?^<!-- end -->$", re.DOTALL | re.MULTILINE)


def names(page: str) -> list[str]:
    """The parts that a page has."""
    return _PART.findall(page)


def filled(page: str) -> str:
    """The page with its parts as they are now."""
    return _PART.sub(lambda part: f"<!-- generated: {part[1]} -->\n\n{PARTS[part[1]]().strip()}\n\n<!-- end -->", page)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    for path in sorted((ROOT / "docs").rglob("*.md")):
        before = path.read_text(encoding="utf-8")
        if filled(before) != before:
            path.write_text(filled(before), encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
