"""What user code, libraries and child processes print, as lines instead of on the event channel.

Descriptors 1 and 2 point at pipes which a thread of its own drains, so that nobody who prints ever
waits for a reader, gets a broken pipe, or writes between two events.
"""

import contextlib
import ctypes
import io
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from grpo_protocol.framing import LineSplitter, Oversized
from grpo_trainer.fork_hygiene import held_by_this_process
from grpo_trainer.output.plain_text import strip_terminal_codes

OutputSource: TypeAlias = Literal["stdout", "stderr"]
OnLine: TypeAlias = Callable[[OutputSource, str], None]

IN_PLACE_SECONDS = 5.0
"""A progress bar redraws itself many times a second; one look in this time is passed on."""

# Half of the record cap: JSON may double a line by escaping quotes.
MAX_LINE_BYTES = 4 * 1024 * 1024
_CHUNK_BYTES = 1 << 16
# What was printed before the end is read to the end, but not what a child goes on to print.
MOST_IN_PIPE = 1 << 20
_C_STDOUT = {"linux": "stdout", "darwin": "__stdoutp"}
_IOLBF = 1


class OutputLines:
    """Turns raw output of one stream into readable lines.

    A piece that ends in a carriage return is about to be overdrawn: such pieces are passed on at
    most every `IN_PLACE_SECONDS`, and the one that a newline ends always.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._splitter = LineSplitter(MAX_LINE_BYTES)
        self._clock = clock
        self._next_look = float("-inf")
        self._held_return = False

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Takes the next chunk; yields each line that it completes."""
        if self._held_return:
            chunk = b"\r" + chunk
        # A return at the end waits: with a newline next it only ends a line.
        self._held_return = chunk.endswith(b"\r")
        if self._held_return:
            chunk = chunk[:-1]
        yield from self._lines(chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\r\n"))

    def flush(self) -> Iterator[str]:
        """At the end of the stream: yields a last line that had no newline."""
        self._held_return = False
        yield from self._lines(b"\n")

    def _lines(self, chunk: bytes) -> Iterator[str]:
        for line in self._splitter.feed(chunk):
            if isinstance(line, Oversized):
                yield f"(a line of {int(line)} bytes was left out)"
                continue
            in_place = line.endswith(b"\r")
            if in_place and self._clock() < self._next_look:
                continue
            text = strip_terminal_codes(line.decode("utf-8", "replace")).rstrip()
            if text:
                self._next_look = self._clock() + IN_PLACE_SECONDS if in_place else float("-inf")
                yield text


class CapturedOutput:
    """Holds descriptors 1 and 2 from construction until `close`.

    `on_line` is called in the draining thread, and must not print. What it raises goes to
    `on_error`, because a thread that ended would leave everybody who prints waiting.
    """

    def __init__(self, on_line: OnLine, on_error: Callable[[Exception], None]) -> None:
        self._on_line = on_line
        self._on_error = on_error
        self._pid = os.getpid()
        self._drained = threading.Event()
        self._streams = _make_line_buffered()
        self._saved = {fd: os.dup(fd) for fd in (1, 2)}
        self._sources: dict[int, OutputSource] = {_redirect(1): "stdout", _redirect(2): "stderr"}
        self._lines = {fd: OutputLines() for fd in self._sources}
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._drain, name="captured-output", daemon=True)
        self._thread.start()
        held_by_this_process.add(self)

    def close(self, timeout: float = 2.0) -> None:
        """Gives descriptors 1 and 2 back; returns once everything printed so far was passed on.

        A child process may still hold a pipe: the thread then goes on to empty it, unheard.
        """
        if os.getpid() != self._pid or not self._saved:
            return
        _flush_streams()
        for fd, saved in self._saved.items():
            _restore(fd, saved)
        self._saved = {}
        _restore_buffering(self._streams)
        os.write(self._wake_write, b"x")
        self._drained.wait(timeout)

    def forget_in_child(self) -> None:
        """After a fork: the child keeps printing into the pipes and must not hold their readers."""
        for fd in (*self._sources, *self._saved.values(), self._wake_read, self._wake_write):
            with contextlib.suppress(OSError):
                os.close(fd)

    def _drain(self) -> None:
        poller = select.poll()
        for fd in self._sources:
            os.set_blocking(fd, False)
        for fd in (*self._sources, self._wake_read):
            poller.register(fd, select.POLLIN)
        open_fds = set(self._sources)
        while open_fds or not self._drained.is_set():
            ready = {fd for fd, _ in poller.poll()}
            closing = self._wake_read in ready
            if closing:
                poller.unregister(self._wake_read)
            for fd in ready & open_fds:
                if not self._read(fd, MOST_IN_PIPE if closing else _CHUNK_BYTES):
                    poller.unregister(fd)
                    open_fds.discard(fd)
            if closing:
                self._finish()
        held_by_this_process.discard(self)
        for fd in (*self._sources, self._wake_read, self._wake_write):
            os.close(fd)

    def _read(self, fd: int, at_least: int) -> bool:
        """Passes on what the pipe holds now, up to `at_least` bytes or more; False at its end."""
        count = 0
        while count < at_least:
            try:
                chunk = os.read(fd, _CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            count += len(chunk)
            self._pass_on(fd, self._lines[fd].feed(chunk))
        return True

    def _finish(self) -> None:
        for fd, lines in self._lines.items():
            self._pass_on(fd, lines.flush())
        self._drained.set()

    def _pass_on(self, fd: int, lines: Iterator[str]) -> None:
        if self._drained.is_set():
            return
        for line in lines:
            try:
                self._on_line(self._sources[fd], line)
            except Exception as error:
                self._on_error(error)


def _redirect(fd: int) -> int:
    """Points `fd` at a new pipe and returns the pipe's reading end."""
    reader, writer = os.pipe()
    os.dup2(writer, fd)
    os.close(writer)
    return reader


def _restore(fd: int, saved: int) -> None:
    """Gives `fd` its old target back, or the null device when that has no reader any more."""
    poller = select.poll()
    poller.register(saved, 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poller.poll(0)):
        os.dup2(null := os.open(os.devnull, os.O_WRONLY), saved, inheritable=False)
        os.close(null)
    os.dup2(saved, fd)
    os.close(saved)


def _make_line_buffered() -> list[tuple[io.TextIOWrapper, bool]]:
    """A stream on a pipe keeps lines back until 8 KiB are full; shows them at once instead."""
    streams = []
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            streams.append((stream, stream.line_buffering))
            stream.reconfigure(line_buffering=True)
    library, stdout = _c_stdout()
    if library is not None:
        library.setvbuf(stdout, None, _IOLBF, ctypes.c_size_t(0))
    return streams


def _restore_buffering(streams: list[tuple[io.TextIOWrapper, bool]]) -> None:
    for stream, line_buffering in streams:
        with contextlib.suppress(ValueError):  # closed by somebody
            stream.reconfigure(line_buffering=line_buffering)


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    library, stdout = _c_stdout()
    if library is not None:
        library.fflush(stdout)


def _c_stdout() -> tuple[ctypes.CDLL | None, ctypes.c_void_p]:
    """The C library and its stdout, where we know their names."""
    try:
        library = ctypes.CDLL(None)
        return library, ctypes.c_void_p.in_dll(library, _C_STDOUT.get(sys.platform, ""))
    except (OSError, ValueError):
        return None, ctypes.c_void_p()
