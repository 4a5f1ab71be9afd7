"""Text to lines of a given width in terminal cells, without losing a character."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells

_WORD = re.compile(r"\S+\s*|\s+")
_TAB = 8


@dataclass(frozen=True)
class Block:
    """A piece of text in one style, on lines of its own."""

    text: str
    style: str = ""
    indent: int = 0
    literal: bool = False
    """Shown with its blanks and line ends made visible in the raw view."""


def wrap(text: str, width: int) -> Iterator[str]:
    """Lines of `text`, broken between words where they are wider than `width` cells."""
    width = max(1, width)
    for line in text.split("\n"):
        line = line.expandtabs(_TAB)
        if cell_len(line) <= width:
            yield line
        else:
            yield from _wrap_line(line, width)


def _wrap_line(line: str, width: int) -> Iterator[str]:
    parts: list[str] = []
    used = 0
    for word in _WORD.findall(line):
        size = cell_len(word.rstrip())
        if used and used + size > width:
            yield "".join(parts)
            parts, used = [], 0
        if size > width:
            *whole, word = chop_cells(word, width)
            yield from whole
        parts.append(word)
        used += cell_len(word)
    if parts:
        yield "".join(parts)
