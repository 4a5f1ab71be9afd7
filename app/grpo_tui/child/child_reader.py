"""Bytes of a trainer's pipes to events and log lines.

Chunks instead of `readline`, which fails above 64 KiB and never yields while lines are buffered;
after each chunk the event loop gets its turn, so that a flood cannot freeze the screen.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Final

from grpo_protocol.codec import Malformed, decode_event
from grpo_protocol.framing import LineSplitter, Oversized
from grpo_protocol.messages import Log, LogLevel
from grpo_tui.notices import InvalidUtf8, Item
from grpo_tui.sanitize import as_drawn

CHUNK_BYTES: Final = 65536
_MAX_LOG_CHARS: Final = 100_000
_LEVEL_WINDOW: Final = 200

_LEVEL_WORD = re.compile(r"\b(DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b", re.IGNORECASE)
_ERROR_LINE = re.compile(r"^(?:Traceback \(most recent|\w+(?:\.\w+)*(?:Error|Exception)\b)")


async def read_stream(
    stream: asyncio.StreamReader,
    items_of: Callable[[bytes | Oversized], Iterator[Item]],
    emit: Callable[[Item], None],
) -> None:
    """Reads `stream` to its end and emits what `items_of` makes of each line."""
    splitter = LineSplitter()
    while chunk := await stream.read(CHUNK_BYTES):
        for line in splitter.feed(chunk):
            for item in items_of(line):
                emit(item)
        await asyncio.sleep(0)
    for line in splitter.flush():
        for item in items_of(line):
            emit(item)


def stdout_items(line: bytes | Oversized) -> Iterator[Item]:
    """The event in a line of stdout; invalid UTF-8 in it is replaced and told, blanks are left."""
    if isinstance(line, Oversized):
        yield line
        return
    if not line.strip():
        return
    event = decode_event(line)
    if isinstance(event, Malformed) and not _is_utf8(line):
        yield InvalidUtf8("stdout")
        event = decode_event(line.decode("utf-8", errors="replace").encode())
    yield event


def stderr_items(line: bytes | Oversized) -> Iterator[Item]:
    """A log line from a line of stderr: colours taken out, its level guessed from its words."""
    if isinstance(line, Oversized):
        yield line
        return
    if not _is_utf8(line):
        yield InvalidUtf8("stderr")
    text = line.decode("utf-8", errors="replace")[-_MAX_LOG_CHARS:]
    if message := as_drawn(text):
        level = "info" if "\r" in text.strip("\r") else guess_level(message)
        yield Log(level=level, message=message, source="stderr")


def guess_level(text: str) -> LogLevel:
    """The level that a line of a logging library names; `warn` when it names none."""
    if _ERROR_LINE.match(text):
        return "error"
    match = _LEVEL_WORD.search(text[:_LEVEL_WINDOW])
    word = match.group(1).upper() if match else "WARN"
    if word == "DEBUG":
        return "debug"
    if word == "INFO":
        return "info"
    return "warn" if word.startswith("WARN") else "error"


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
