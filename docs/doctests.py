"""For mkdocstrings: the examples of docstrings, which begin with >>>, become code blocks."""

from __future__ import annotations

from typing import Any

import griffe


def fenced(text: str) -> str:
    """Paragraphs that begin with >>> between fences."""
    lines: list[str] = []
    inside = False
    for line in [*text.splitlines(), ""]:
        starts = not inside and line.startswith(">>>")
        if starts or (inside and not line.strip()):
            lines += ["", "```pycon"] if starts else ["```"]
            inside = starts
        lines.append(line)
    return "\n".join(lines)


class Doctests(griffe.Extension):
    """Called with everything that was read."""

    def on_object(self, *, obj: Any, **rest: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
