"""The newest log lines of a run. Each has a number for life, so that a reader's place holds still
while old lines leave."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from grpo_protocol.messages import LogLevel
from grpo_tui.sanitize import TEXT_LIMIT, as_drawn, clean

MAX_LINES: Final = 5000
_MAX_LINE_CHARS: Final = 10_000
_MAX_LINES_PER_MESSAGE: Final = 500

LEVELS: Final[tuple[LogLevel, ...]] = ("debug", "info", "warn", "error")
SOURCE_LETTERS: Final = {"trainer": "T", "stdout": "O", "stderr": "E", "reward": "R", "app": "A"}


@dataclass(frozen=True)
class LogLine:
    """One line of text, already safe to show."""

    number: int
    time: float
    level: LogLevel
    source: str
    """`trainer`, `stdout`, `stderr`, `reward`, or `app` for the dashboard itself."""
    text: str

    @property
    def letter(self) -> str:
        """The source in one letter."""
        return SOURCE_LETTERS[self.source]


class LogBook:
    """A bounded list of lines with absolute numbers from 0."""

    def __init__(self, max_lines: int = MAX_LINES) -> None:
        self._lines: deque[LogLine] = deque(maxlen=max_lines)
        self._next = 0

    def add(self, time: float, level: LogLevel, source: str, message: str) -> None:
        """Takes a message; one of several lines becomes that many lines."""
        drawn = "\n".join(map(as_drawn, message[:TEXT_LIMIT].split("\n")))
        lines = clean(drawn).split("\n")
        for text in lines[:_MAX_LINES_PER_MESSAGE]:
            shown = text if len(text) <= _MAX_LINE_CHARS else text[:_MAX_LINE_CHARS] + "…"
            self._add(time, level, source, shown)
        if (left := len(lines) - _MAX_LINES_PER_MESSAGE) > 0:
            self._add(time, level, source, f"… ({left:,} more lines of this message)")

    def _add(self, time: float, level: LogLevel, source: str, text: str) -> None:
        self._lines.append(LogLine(self._next, time, level, source, text))
        self._next += 1

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[LogLine]:
        return iter(self._lines)

    @property
    def first_number(self) -> int:
        """Number of the oldest line still held."""
        return self._next - len(self._lines)

    @property
    def next_number(self) -> int:
        """Number that the next line will get."""
        return self._next

    def since(self, number: int, minimum: LogLevel = "debug") -> list[LogLine]:
        """Held lines from `number` on, of at least the level `minimum`."""
        rank = LEVELS.index(minimum)
        start = max(0, number - self.first_number)
        newest = islice(self._lines, start, None)
        return [line for line in newest if LEVELS.index(line.level) >= rank]
