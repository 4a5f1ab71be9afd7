"""Commands from stdin and signals, held until the loop stands between two steps.

A thread reads and acknowledges each line at once; the loop takes what is pending and reports when
it has happened. Only the loop changes the run.
"""

import os
import select
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from grpo_protocol import ConfigError, Event, GRPOConfig, LineSplitter, Oversized
from grpo_protocol.commands import (
    Answer,
    BadCommand,
    Command,
    Pause,
    Resume,
    SaveCheckpoint,
    Set,
    Stop,
    command_name,
    parse_command,
)
from grpo_protocol.config import live_keys
from grpo_protocol.config_input import with_setting
from grpo_protocol.messages import Ack


@dataclass(frozen=True)
class Pending:
    """A command that was acknowledged and waits for the loop."""

    line: int
    command: Command

    @property
    def name(self) -> str:
        return command_name(self.command)


class Control:
    """What people asked of the run. Thread-safe."""

    def __init__(self, config: GRPOConfig, emit: Callable[[Event], None]) -> None:
        self.step = 0
        """Optimizer steps done; kept current by the loop."""
        self.signal_number: int | None = None
        self.unattended = False
        """Nobody is left who could resume a paused run."""
        self.next_sampling: Callable[[int], int] = lambda step: step
        """The first step, from one on, that samples anew."""
        self._config = config
        self._emit = emit
        self._changed = threading.Condition()
        self._pending: deque[Pending] = deque()
        self._asked_to_pause = False
        self._asked_to_stop = False
        self._running = 0
        self._lines = 0

    @property
    def stop_requested(self) -> bool:
        """Whether the running step is to be abandoned."""
        return self._asked_to_stop

    def request_stop(self, signal_number: int | None = None) -> None:
        """Stops the run as STOP does; for signals and for a vanished dashboard."""
        # No lock: a signal handler may run while this very thread holds it.
        self._asked_to_stop = True
        if signal_number is not None:
            self.signal_number = signal_number

    def take(self, timeout: float | None = None) -> Pending | None:
        """The next pending command, waiting up to `timeout` seconds for one; `None` without."""
        with self._changed:
            if not self._pending and timeout:
                self._changed.wait(timeout)
            return self._pending.popleft() if self._pending else None

    def begin(self, step: int) -> bool:
        """Marks that `step` runs; not while a command is pending, which holds from it on."""
        with self._changed:
            if not self._pending:
                self._running = step
            return not self._pending

    def receive(self, line: bytes | Oversized) -> None:
        """Takes one input line: acknowledges it, and keeps what the loop has to do."""
        with self._changed:
            self._lines += 1
            command = _parse(line)
            refusal, note = self._judge(command)
            ok = refusal is None
            self._emit(
                Ack(
                    line=self._lines,
                    command=command_name(command),
                    ok=ok,
                    message=refusal or note,
                    step=self._holds_from(command) if ok else None,
                )
            )
            if ok and not isinstance(command, BadCommand):
                self._note(command)
                self._pending.append(Pending(self._lines, command))
                self._changed.notify_all()

    def _holds_from(self, command: Command | BadCommand) -> int:
        """The first step for which it will hold: the running one is finished, except by STOP."""
        done = self.step if isinstance(command, Stop) else max(self.step, self._running)
        if isinstance(command, Set):
            return self.setting_holds_from(command.key, done + 1)
        return done + 1

    def setting_holds_from(self, key: str, step: int) -> int:
        """The first step, from `step` on, for which a change of `key` holds.

        Rollouts are trained on at the temperature at which they were sampled.
        """
        return self.next_sampling(step) if key == "temperature" else step

    def _judge(self, command: Command | BadCommand) -> tuple[str | None, str | None]:
        """Why a command is refused, or what there is to say about an accepted one."""
        match command:
            case BadCommand(message=message):
                return message, None
            case Set(key=key, value=value):
                return self._judge_setting(key, value), None
            case Answer(id=id_):
                return f"no prompt {id_!r} is waiting for an answer", None
            case Pause():
                return None, "already paused, no change" if self._asked_to_pause else None
            case Resume():
                return None, None if self._asked_to_pause else "already running, no change"
            case SaveCheckpoint():
                return ("nothing to save before the first step" if self.step == 0 else None), None
            case Stop():
                return None, None

    def _judge_setting(self, key: str, value: str) -> str | None:
        if key not in live_keys():
            return f"{key} cannot be changed while training; these can: {', '.join(live_keys())}"
        try:
            self._config = with_setting(self._config, key, value)
        except ConfigError as error:
            return str(error)
        return None

    def _note(self, command: Command) -> None:
        match command:
            case Pause():
                self._asked_to_pause = True
            case Resume():
                self._asked_to_pause = False
            case Stop():
                self._asked_to_stop = True
            case _:
                pass


def _parse(line: bytes | Oversized) -> Command | BadCommand:
    if isinstance(line, Oversized):
        return BadCommand("", f"input line of {int(line)} bytes is too long")
    return parse_command(line.decode("utf-8", errors="replace"))


@contextmanager
def read_commands(control: Control, descriptor: int, on_end: Callable[[], None]) -> Iterator[None]:
    """Within it, a thread feeds `control` from a descriptor; `on_end` hears the end of input.

    What is not read by the end is left to whoever reads the descriptor then.
    """
    wake_reader, wake_writer = os.pipe()
    thread = threading.Thread(
        target=_read,
        args=(control, descriptor, wake_reader, on_end),
        name="commands",
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        # Written, not closed: a child that was forked may hold the pipe open.
        os.write(wake_writer, b"x")
        thread.join()
        os.close(wake_writer)
        os.close(wake_reader)


def _read(control: Control, descriptor: int, wake: int, on_end: Callable[[], None]) -> None:
    splitter = LineSplitter(max_bytes=64 * 1024)
    poller = select.poll()
    poller.register(wake, select.POLLIN)
    poller.register(descriptor, select.POLLIN)
    try:
        while True:
            ready = [number for number, _ in poller.poll()]
            if wake in ready:
                return
            if not (chunk := os.read(descriptor, 65536)):
                break
            for line in splitter.feed(chunk):
                control.receive(line)
    except OSError:
        pass
    for line in splitter.flush():
        control.receive(line)
    on_end()


@contextmanager
def signals_stop(control: Control) -> Iterator[None]:
    """Within it, SIGINT and SIGTERM stop the run after saving; a second one ends at once.

    Only the main thread may install handlers; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: FrameType | None) -> None:
        if control.signal_number is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        control.request_stop(number)

    watched = (signal.SIGINT, signal.SIGTERM)
    before: dict[signal.Signals, Any] = {
        number: signal.signal(number, handle) for number in watched
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
