"""Everything that a comparison leaves for people to look at."""

from __future__ import annotations

from pathlib import Path

from fxprune.compare import rows as kept
from fxprune.compare.figures import draw
from fxprune.compare.result import Result
from fxprune.compare.tables import as_csv, markdown
from fxprune.emit.files import told, write_atomically
from fxprune.errors import OptionError


def write_all(result: Result, folder: Path) -> list[str]:
    """Tables, figures and, where that is another folder, a copy of the rows; says what it wrote."""
    if not result.pruned:
        return ["no pruned net is finished yet: there are no tables"]
    with told("written", folder, OptionError):
        return _write(result, folder)


def _write(result: Result, folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    said, figures = [], []
    try:
        figures = draw(result, folder)
    except ImportError:
        said = ["no figures: pip install matplotlib"]
    if folder.resolve() != result.plan.folder.resolve():
        kept.write(folder / kept.ROWS, result.rows)
    write_atomically(folder / "compare.csv", as_csv(result.pruned))
    write_atomically(folder / "compare.md", markdown(result, figures))
    files = ["compare.md", "compare.csv", *(f"{name}.png, {name}.svg" for name in figures)]
    return [*said, f"wrote {folder}: {', '.join(files)}"]
