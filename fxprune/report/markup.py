"""Elements of a page; whatever text goes into them is escaped when they are written."""

from __future__ import annotations

from xml.etree import ElementTree as ET

Element = ET.Element


def add(parent: Element, tag: str, text: str | None = None, **attributes: str | float | None) -> Element:
    """A new last child. Names of attributes: ``class_`` is class, ``aria_label`` aria-label; None leaves one out.

    >>> root = ET.Element("div")
    >>> child = add(root, "text", "a < b", class_="name", x=1.0, y=2.25, aria_hidden=None)
    >>> ET.tostring(root, encoding="unicode", method="html")
    '<div><text class="name" x="1" y="2.25">a &lt; b</text></div>'
    """
    named = {
        name.rstrip("_").replace("_", "-"): number(value) if isinstance(value, (int, float)) else clean(value)
        for name, value in attributes.items()
        if value is not None
    }
    child = ET.SubElement(parent, tag, named)
    if text is not None:
        child.text = clean(text)
    return child


def also(parent: Element, text: str) -> None:
    """Text behind what ``parent`` holds already."""
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + clean(text)
    else:
        parent.text = (parent.text or "") + clean(text)


def number(value: float) -> str:
    """A coordinate.

    >>> number(2), number(2.04), number(-0.01)
    ('2', '2.04', '-0.01')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def clean(text: str) -> str:
    """Without what no file can hold (halves of characters) and no page shows (control characters).

    >>> clean("a\\x00b\\ud800c")
    'a\\ufffdb\\ufffdc'
    """
    return "".join(c if _fine(c) else "\ufffd" for c in text)


def _fine(c: str) -> bool:
    return c in "\n\t" or (ord(c) >= 0x20 and not 0x7F <= ord(c) < 0xA0 and not 0xD800 <= ord(c) < 0xE000)
