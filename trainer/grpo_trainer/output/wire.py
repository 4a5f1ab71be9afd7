"""The event channel: whole lines to the dashboard, without ever waiting for it.

Events are queued and written by a thread of its own. The queue is bounded: when the reader is too
slow, what the database holds as well is left out, counted, and reported once there is room again.
"""

import atexit
import contextlib
import faulthandler
import os
import select
import signal
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

import msgspec

from grpo_protocol.codec import encode_event
from grpo_protocol.framing import MAX_RECORD_BYTES
from grpo_protocol.messages import Dropped, Event, Generation, Log, PhaseChange, Status, Step
from grpo_trainer.fork_hygiene import held_by_this_process
from grpo_trainer.output.captured_output import CapturedOutput, OnLine, OutputSource

MAX_QUEUED_BYTES = 32 * 1024 * 1024
_LOOK_AT_READER_SECONDS = 0.5

# Counted in this field of `Dropped`. Any other event is kept longest; losing one counts as a step,
# because it makes the reader look into the database.
_FIRST_TO_GO: dict[type, str] = {
    Generation: "generations",
    Log: "logs",
    Status: "logs",
    PhaseChange: "phases",
}


class Outbox:
    """Encoded events in order, within a bound. Not thread-safe by itself."""

    def __init__(self, max_bytes: int = MAX_QUEUED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lines: OrderedDict[int, tuple[bytes, str]] = OrderedDict()
        self._first_to_go: deque[int] = deque()
        self._steps: deque[int] = deque()
        self._added = 0
        self._dropped: Counter[str] = Counter()
        self.num_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._lines or self._dropped)

    def put(self, event: Event) -> None:
        """Adds an event, and leaves out older ones when the bound is reached."""
        line = _encode(event)
        kind = _FIRST_TO_GO.get(type(event), "steps")
        if len(line) > min(self._max_bytes, MAX_RECORD_BYTES):
            # No reader takes such a line.
            self._dropped[kind] += 1
            return
        self._added += 1
        self._lines[self._added] = (line, kind)
        self.num_bytes += len(line)
        if type(event) in _FIRST_TO_GO:
            self._first_to_go.append(self._added)
        elif isinstance(event, Step):
            self._steps.append(self._added)
        while self.num_bytes > self._max_bytes:
            self._leave_one_out()

    def take(self) -> bytes | None:
        """The next line to write, or None; first what was left out, once half the room is free."""
        if self._dropped and self.num_bytes <= self._max_bytes // 2:
            report = Dropped(**self._dropped)
            self._dropped.clear()
            return encode_event(report)
        if not self._lines:
            return None
        number, (line, _) = self._lines.popitem(last=False)
        self.num_bytes -= len(line)
        for candidates in (self._first_to_go, self._steps):
            if candidates and candidates[0] == number:
                candidates.popleft()
        return line

    def _leave_one_out(self) -> None:
        for candidates in (self._first_to_go, self._steps):
            if candidates:
                self._drop(candidates.popleft())
                return
        self._drop(next(iter(self._lines)))

    def _drop(self, number: int) -> None:
        line, kind = self._lines.pop(number)
        self.num_bytes -= len(line)
        self._dropped[kind] += 1


class Wire:
    """Writes events to the descriptor `fd`, which it owns from now on."""

    def __init__(
        self,
        fd: int,
        *,
        on_reader_gone: Callable[[], None] | None = None,
        max_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        self._fd = fd
        self._pid = os.getpid()
        self._on_reader_gone = on_reader_gone
        self._changed = threading.Condition()
        self._outbox = Outbox(max_bytes)
        self._writing = False
        self._closing = False
        self._reader_gone = False
        self._captured: CapturedOutput | None = None
        self._stderr_fd: int | None = None
        self._had_faulthandler = False
        self._thread = threading.Thread(target=self._write_all, name="wire", daemon=True)
        self._thread.start()
        held_by_this_process.add(self)
        atexit.register(self.close)

    @classmethod
    def take_over(
        cls,
        on_line: OnLine | None = None,
        *,
        on_reader_gone: Callable[[], None] | None = None,
    ) -> "Wire":
        """Keeps stdout for events alone, until `close`; for the main thread.

        From now on whatever is printed on stdout or stderr goes to `on_line`, in another thread,
        and without it becomes a `log` event. The old stderr is kept for the last words of a crash.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("only the main thread can take over stdout")
        _open_missing_descriptors()
        wire = cls(os.dup(1), on_reader_gone=on_reader_gone)
        wire._stderr_fd = os.dup(2)
        wire._had_faulthandler = faulthandler.is_enabled()
        faulthandler.enable(wire._stderr_fd)
        wire._captured = CapturedOutput(on_line or wire._log_line, wire._report_bad_callback)
        return wire

    @property
    def reader_gone(self) -> bool:
        """Nobody reads the events any more; they are discarded."""
        return self._reader_gone

    def emit(self, event: Event) -> None:
        """Queues an event; returns at once, from any thread."""
        if self._reader_gone or os.getpid() != self._pid:
            return
        with self._changed:
            if not self._closing:
                self._outbox.put(event)
                self._changed.notify_all()

    def last_words(self, text: str) -> None:
        """Writes to the stderr that was there before, while it is taken over."""
        if self._stderr_fd is not None:
            with contextlib.suppress(OSError):
                os.write(self._stderr_fd, text.encode("utf-8", "backslashreplace") + b"\n")

    def close(self, timeout: float = 5.0) -> None:
        """Gives stdout and stderr back; waits `timeout` seconds at most for queued events."""
        atexit.unregister(self.close)
        if os.getpid() != self._pid:
            return
        if self._captured is not None:
            self._captured.close()
            self._captured = None
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        if self._stderr_fd is not None:
            faulthandler.disable()
            if self._had_faulthandler:
                faulthandler.enable(2)
            os.close(self._stderr_fd)
            self._stderr_fd = None

    def forget_in_child(self) -> None:
        """After a fork: the child must not keep the channel open when the trainer ends."""
        with contextlib.suppress(OSError):
            os.close(self._fd)

    def _log_line(self, source: OutputSource, text: str) -> None:
        self.emit(Log("info", text, source))

    def _report_bad_callback(self, error: Exception) -> None:
        self.last_words(f"output of the program was lost: {error!r}")

    def _write_all(self) -> None:
        # A program may have given SIGPIPE its default action, which would kill it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
        try:
            while (line := self._next_line()) is not None:
                self._write_line(line)
        except OSError:
            self._lose_reader()
        finally:
            held_by_this_process.discard(self)
            os.close(self._fd)

    def _next_line(self) -> bytes | None:
        """The next line, or None at the end. Raises `BrokenPipeError` when the reader is gone."""
        while True:
            with self._changed:
                line = self._outbox.take()
                if line is not None or self._closing:
                    return line
                self._changed.wait(_LOOK_AT_READER_SECONDS)
                idle = not self._outbox
            if idle:
                self._poll_reader(0, 0)

    def _write_line(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                self._poll_reader(select.POLLOUT, _LOOK_AT_READER_SECONDS)

    def _poll_reader(self, events: int, seconds: float) -> None:
        poller = select.poll()
        poller.register(self._fd, events)
        for _, happened in poller.poll(int(seconds * 1000)):
            if happened & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
                raise BrokenPipeError

    def _lose_reader(self) -> None:
        with self._changed:
            self._reader_gone = True
            self._outbox = Outbox()
        if self._on_reader_gone is not None:
            self._on_reader_gone()


def _encode(event: Event) -> bytes:
    try:
        return encode_event(event)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
        # Showing a step must not end the training.
        return encode_event(Log("error", f"{type(event).__name__} event left out: {error}"))


def _open_missing_descriptors() -> None:
    """A program started with stdin, stdout or stderr closed would get our pipes in their place."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
