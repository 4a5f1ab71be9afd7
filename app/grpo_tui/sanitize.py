"""The border between hostile text and the screen.

Completions, prompts, log lines and file names may hold escape sequences, text that runs backwards
and characters that cannot be encoded. What passes here is safe to hand to a terminal; raw text
stays in the database.
"""

import re
import unicodedata
from typing import Final

TEXT_LIMIT: Final = 100_000
CELL_LIMIT: Final = 200

_NEWLINES = re.compile("\r\n|[\n\u0085\u2028\u2029]")
# Compiled once over all that is not harmless, because nearly every text has none of it.
_SUSPECT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
)
_JOINER = "\u200d"
_REPLACEMENT = "\ufffd"


def clean(text: str, limit: int = TEXT_LIMIT, *, ascii_only: bool = False) -> str:
    """`text` with nothing in it that a terminal would obey or that would hide other text.

    Control characters become visible pictures (`␛`; `^[` with `ascii_only`), characters that turn
    or hide text become `<U+202E>`, lone surrogates U+FFFD; every kind of line end becomes a
    newline. Newlines and tabs stay. Above `limit` characters the rest is cut and its size told.
    """
    cut = len(text) - limit
    if cut > 0:
        text = text[:limit]
    text = _NEWLINES.sub("\n", text)
    if _SUSPECT.search(text):
        text = _SUSPECT.sub(lambda match: _visible(match, ascii_only), text)
    return f"{text}… ({cut:,} more characters)" if cut > 0 else text


def clean_line(text: str, limit: int = CELL_LIMIT, *, ascii_only: bool = False) -> str:
    """`text` in one line for a cell or a title: newlines shown as `␤`, tabs as spaces."""
    # Wide enough for the cut text, because one character may become eight.
    line = clean(text[: limit + 1], limit + 1, ascii_only=ascii_only)
    line = line.replace("\n", "$" if ascii_only else "␤").replace("\t", " ")
    if len(line) > limit or len(text) > limit:
        return line[: limit - 1] + ("~" if ascii_only else "…")
    return line


def as_drawn(text: str) -> str:
    """One line of a program's output as a terminal would leave it: no colours, and of a progress
    bar that draws over itself the last state."""
    drawn = [part for part in text.split("\r") if part.strip()]
    return _ESCAPES.sub("", drawn[-1]).rstrip() if drawn else ""


def _visible(match: re.Match[str], ascii_only: bool) -> str:
    char = match.group()
    code = ord(char)
    if 0xD800 <= code <= 0xDFFF:
        return _REPLACEMENT
    if char == _JOINER and _joins_emoji(match.string, match.start()):
        return char
    if code < 0x20:
        return f"^{chr(code + 0x40)}" if ascii_only else chr(0x2400 + code)
    if code == 0x7F:
        return "^?" if ascii_only else "␡"
    return f"<U+{code:04X}>"


def _joins_emoji(text: str, position: int) -> bool:
    """Between two symbols a joiner makes one picture of them; anywhere else it only hides."""
    before = text[position - 1 : position].strip("\ufe0f") or text[position - 2 : position - 1]
    after = text[position + 1 : position + 2]
    return _is_symbol(before) and _is_symbol(after)


def _is_symbol(char: str) -> bool:
    return bool(char) and unicodedata.category(char) in {"So", "Sk"}
