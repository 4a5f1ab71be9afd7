"""Text that may hold anything, made fit for a line, a terminal, or a file in UTF-8."""

import re
from typing import Any

import msgspec

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


def valid_unicode(text: str) -> str:
    """`text` with lone surrogates, which have no UTF-8 form, replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def json_bytes(value: Any) -> bytes:
    """`value` as JSON; NaN and infinity become null, lone surrogates U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_all_valid(msgspec.to_builtins(value)))


def _all_valid(value: Any) -> Any:
    if isinstance(value, str):
        return valid_unicode(value)
    if isinstance(value, dict):
        return {_all_valid(key): _all_valid(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_all_valid(item) for item in value]
    return value
