"""Text that may hold anything, made fit for a line or a terminal."""

import re

# CSI, then the string sequences (OSC, DCS, SOS, PM, APC) up to their terminator or the end, then
# the two-character escapes. The one-byte C1 forms count as well.
_TERMINAL_CODES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
# C0 without tab, DEL, C1, line separators, and the marks that turn the direction of text.
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def strip_terminal_codes(text: str) -> str:
    """`text` without colours, cursor movements and other control sequences and characters."""
    return _INVISIBLE.sub("", _TERMINAL_CODES.sub("", text))


def show_controls(text: str) -> str:
    r"""`text` with each control character written out, such as `\x1b`: safe on a terminal."""
    return _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)
