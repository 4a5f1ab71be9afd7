"""The text lines a trainer reads from stdin, one command each.

`PAUSE`, `RESUME`, `SAVE_CHECKPOINT`, `STOP`, `SET key=value`, `PROMPT:id:value`. Words are
case-sensitive. Each line is answered by an `ack` and, when it has taken effect, by an `applied`.
"""

import re
from difflib import get_close_matches
from typing import TypeAlias
from urllib.parse import quote, unquote

import msgspec


class Pause(msgspec.Struct, frozen=True):
    """Stand still between two steps until RESUME."""


class Resume(msgspec.Struct, frozen=True):
    """Go on after PAUSE."""


class SaveCheckpoint(msgspec.Struct, frozen=True):
    """Write `checkpoint-N` between two steps."""


class Stop(msgspec.Struct, frozen=True):
    """Save and end the run."""


class Set(msgspec.Struct, frozen=True):
    """Change a live setting from the next step on."""

    key: str
    value: str


class Answer(msgspec.Struct, frozen=True):
    """The answer to a `prompt` event; several values when it allowed several."""

    id: str
    values: tuple[str, ...]


class BadCommand(msgspec.Struct, frozen=True):
    """A line that is no command, with a message for whoever sent it."""

    line: str
    message: str


Command: TypeAlias = Pause | Resume | SaveCheckpoint | Stop | Set | Answer

_PLAIN: dict[str, Command] = {
    "PAUSE": Pause(),
    "RESUME": Resume(),
    "SAVE_CHECKPOINT": SaveCheckpoint(),
    "STOP": Stop(),
}
_WORDS = [*_PLAIN, "SET", "PROMPT"]


def parse_command(line: str) -> Command | BadCommand:
    """The command in `line` (without newline); whitespace around it does not count."""
    text = line.strip()
    if text in _PLAIN:
        return _PLAIN[text]
    if text.startswith("PROMPT:"):
        return _parse_answer(text)
    if text.split(maxsplit=1)[:1] == ["SET"]:
        return _parse_set(text)
    return BadCommand(text, f"unknown command {text[:80]!r}{_suggestion(text)}")


def format_command(command: Command) -> str:
    """The line for `command`, without newline.

    Raises `ValueError` for a key or id that the line format cannot carry.
    """
    match command:
        case Set(key=key, value=value):
            if "=" in key or "\n" in key + value:
                raise ValueError(f"SET cannot carry key {key!r} with value {value!r}")
            return f"SET {key}={value}"
        case Answer(id=id_, values=values):
            if ":" in id_ or "\n" in id_:
                raise ValueError(f"a prompt id may not hold ':' or a newline: {id_!r}")
            return f"PROMPT:{id_}:{','.join(map(_escape, values))}"
        case _:
            return next(word for word, plain in _PLAIN.items() if plain == command)


def command_name(command: Command | BadCommand) -> str:
    """Short name for `ack` and `applied`, such as `PAUSE` or `SET temperature`."""
    match command:
        case BadCommand(line=line):
            return line[:80]
        case Set(key=key):
            return f"SET {key}"
        case Answer(id=id_):
            return f"PROMPT:{id_}"
        case _:
            return format_command(command)


def _parse_set(text: str) -> Command | BadCommand:
    key, separator, value = text[len("SET") :].partition("=")
    if not separator or not key.strip():
        return BadCommand(text, "SET needs key=value, for example SET sample_display=all")
    return Set(key.strip(), value.strip())


def _parse_answer(text: str) -> Command | BadCommand:
    id_, separator, value = text[len("PROMPT:") :].partition(":")
    if not separator or not id_:
        return BadCommand(text, "an answer has the form PROMPT:id:value")
    return Answer(id_, tuple(map(unquote, value.split(","))) if value else ())


# Commas separate the values of a multiple choice, and space around a line does not count.
_NEEDS_ESCAPE = re.compile(r"[%,]|[^\S ]|^ +| +$")


def _escape(value: str) -> str:
    return _NEEDS_ESCAPE.sub(lambda match: quote(match[0], safe=""), value)


def _suggestion(text: str) -> str:
    typed = re.split("[=:]", text)[0].upper()
    close = [word for word in _WORDS if len(typed) > 1 and word.startswith(typed)]
    close = close or get_close_matches(typed, _WORDS, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(_WORDS)}"
