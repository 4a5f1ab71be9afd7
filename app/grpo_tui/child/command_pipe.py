"""Writes lines to a trainer's stdin without ever waiting for it."""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import IO, Final

MAX_BACKLOG_BYTES: Final = 256 * 1024


class CommandPipe:
    """A line is written whole, in order, or reported as lost; the caller never blocks.

    `on_lost(line number, why)` is called for each accepted line that could not be written.
    """

    def __init__(self, stdin: IO[bytes], on_lost: Callable[[int, str], None]) -> None:
        self._stdin = stdin
        self._fd = stdin.fileno()
        os.set_blocking(self._fd, False)
        self._on_lost = on_lost
        self._backlog: deque[tuple[int, bytes]] = deque()
        self._lines = 0
        self._waiting = False
        self._closed: str | None = None

    def write(self, text: str) -> int | str:
        """Takes one line; returns its number, counted from 1, or why it cannot be sent."""
        if self._closed is not None:
            return self._closed
        line = text.encode() + b"\n"
        if sum(len(rest) for _, rest in self._backlog) + len(line) > MAX_BACKLOG_BYTES:
            return "the trainer does not read its commands"
        self._lines += 1
        number = self._lines
        self._backlog.append((number, line))
        if not self._waiting:
            self._flush(accepting=number)
        return number if self._closed is None else self._closed

    def close(self) -> None:
        """Closes our end. Lines that still wait are reported as lost."""
        self._fail("the pipe to the trainer was closed")

    def _flush(self, accepting: int | None = None) -> None:
        while self._backlog:
            number, rest = self._backlog[0]
            try:
                written = os.write(self._fd, rest)
            except BlockingIOError:
                self._wait(True)
                return
            except OSError as error:
                self._fail(f"the trainer no longer reads commands ({error.strerror})", accepting)
                return
            if written == len(rest):
                self._backlog.popleft()
            else:
                self._backlog[0] = (number, rest[written:])
        self._wait(False)

    def _wait(self, waiting: bool) -> None:
        if waiting == self._waiting:
            return
        self._waiting = waiting
        loop = asyncio.get_running_loop()
        if waiting:
            loop.add_writer(self._fd, self._flush)
        else:
            loop.remove_writer(self._fd)

    def _fail(self, reason: str, accepting: int | None = None) -> None:
        if self._closed is not None:
            return
        self._wait(False)
        self._closed = reason
        self._stdin.close()
        # Of a line still being accepted its sender learns by the return value.
        lost = [number for number, _ in self._backlog if number != accepting]
        self._backlog.clear()
        for number in lost:
            self._on_lost(number, reason)
