"""Python text within 120 columns, laid out as ruff and black would."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

WIDTH = 120
_FILLED = 9  # a list of that many names is written several to a line


@dataclass(frozen=True)
class Group:
    """A bracket that can be broken into lines. Arguments of a call may share a line, entries of a literal not."""

    open: str
    items: tuple[Doc, ...]
    close: str
    call: bool = False
    separator: str = ","


Doc = str | Group


def group(opening: str, items: Iterable[Doc], closing: str, *, call: bool = False) -> Doc:
    """
    >>> flat(group("f(", ["x", group("[", ["1", "2"], "]")], ")"))
    'f(x, [1, 2])'
    """
    every = tuple(items)
    return Group(opening, every, closing, call) if every else opening + closing


def prefixed(text: str, doc: Doc) -> Doc:
    """
    >>> flat(prefixed("x = ", group("(", ["1", "2"], ")")))
    'x = (1, 2)'
    """
    return text + doc if isinstance(doc, str) else replace(doc, open=text + doc.open)


def suffixed(doc: Doc, text: str) -> Doc:
    return doc + text if isinstance(doc, str) else replace(doc, close=doc.close + text)


def flat(doc: Doc) -> str:
    """On one line."""
    if isinstance(doc, str):
        return doc
    return doc.open + f"{doc.separator} ".join(flat(item) for item in doc.items) + doc.close


def render(doc: Doc, indent: int) -> list[str]:
    """One statement as lines.

    >>> print("\\n".join(render(group("f(", ["a" * 70, "b" * 50], ")", call=True), 4)[::2]))
        f(
            bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb,
    """
    lines, filled = _render(doc, indent)
    if filled:
        lines[-1] += "  # fmt: skip"
    return lines


def _render(doc: Doc, indent: int) -> tuple[list[str], bool]:
    line = " " * indent + flat(doc)
    if isinstance(doc, str) or len(line) <= WIDTH:
        return [line], False
    inner = " " * (indent + 4)
    body = f"{doc.separator} ".join(flat(item) for item in doc.items)
    opening, closing = " " * indent + doc.open, " " * indent + doc.close.removeprefix(",")
    if doc.call and len(inner + body) <= WIDTH:
        return [opening, inner + body, closing], False
    words = [item for item in doc.items if isinstance(item, str)]
    if len(words) == len(doc.items) >= _FILLED and doc.separator == ",":
        return [opening, *_fill(words, inner), closing], True
    lines, filled = [opening], False
    for item in doc.items:
        part, fills = _render(suffixed(item, doc.separator), indent + 4)
        lines, filled = lines + part, filled or fills
    return [*lines, closing], filled


def _fill(words: list[str], indent: str) -> list[str]:
    lines = [indent]
    for word in words:
        if len(lines[-1]) + len(word) + 1 > WIDTH:
            lines.append(indent)
        lines[-1] += f"{word}, "
    return [line.rstrip() for line in lines]


def sentence(text: str, width: int = 90) -> Doc:
    """A string literal, in several pieces if it is long.

    >>> flat(sentence("it's"))
    '"it\\'s"'
    """
    if len(text) <= width:
        return quoted(text)
    pieces, line = [], ""
    for word in text.split(" "):
        if line and len(line) + len(word) > width:
            pieces.append(line)
            line = ""
        line += word + " "
    pieces.append(line[:-1])
    return Group("(", tuple(quoted(piece) for piece in pieces), ")", separator="")


def quoted(text: str) -> str:
    """A string literal with double quotes, unless that takes more escapes."""
    plain = repr(text)
    if plain[0] == '"' or '"' in text:
        return plain
    return '"' + plain[1:-1] + '"'
