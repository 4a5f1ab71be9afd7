"""Tells everyone who listens what happens in a run: the dashboard, the console, the log file."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Literal

from grpo_protocol.config import GRPOConfig
from grpo_protocol.messages import (
    PROTOCOL_VERSION,
    Event,
    Hello,
    Log,
    LogLevel,
    LogSource,
    Phase,
    PhaseChange,
    Status,
)
from grpo_trainer.output.console import Console
from grpo_trainer.output.wire import Wire

CAPABILITIES = ["pause", "save", "stop", "set", "eval"]
_PHASE_SECONDS = 0.2
_ON = {"1", "true", "yes", "on"}


def event_mode(config: GRPOConfig | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether events go to stdout and commands are read: one answer for both halves.

    An explicit `tui_mode` wins over GRPO_TUI_MODE and over MLX_TUI_MODE, the reference's name.
    """
    if config is not None and config.tui_mode is not None:
        return config.tui_mode
    return any(environ.get(n, "").lower() in _ON for n in ("GRPO_TUI_MODE", "MLX_TUI_MODE"))


class Reporter:
    """Fans events out. What is said before `open` is kept and told then."""

    def __init__(self) -> None:
        self.wire: Wire | None = None
        self._listeners: list[Callable[[Event], None]] = []
        self._kept: list[Event] | None = []
        self._keeping = threading.RLock()
        self.told_failure: BaseException | None = None
        """The error that was told as the end of the run."""
        self.console: Console | None = None
        self._last_phase: tuple[int, Phase] | None = None
        self._last_phase_at = 0.0
        self.on_reader_gone: Callable[[], None] = lambda: None
        """Called once when the dashboard has gone."""

    @property
    def is_open(self) -> bool:
        return self._kept is None

    def open(self, *, events: bool, console: Console | None) -> None:
        """Starts telling: on the wire, which takes over stdout, or on the console."""
        if events:
            self.wire = Wire.take_over(
                self._captured_line, on_reader_gone=lambda: self.on_reader_gone()
            )
            self._listeners.append(self.wire.emit)
            self._tell(_hello())
        elif console is not None:
            self.console = console
            self._listeners.append(console.handle)
        with self._keeping:
            kept, self._kept = self._kept or [], None
            for event in kept:
                self._tell(event)

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Adds a listener, which must be thread-safe: captured lines arrive from other threads."""
        self._listeners.append(listener)

    def emit(self, event: Event) -> None:
        """Tells every listener. Thread-safe."""
        with self._keeping:  # an event of another thread waits until all earlier ones are told
            if self._kept is not None:
                self._kept.append(event)
                return
        self._tell(event)

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    def status(self, message: str) -> None:
        """Something slow before training."""
        self.emit(Status("loading", message))

    def log(self, level: LogLevel, message: str, source: LogSource = "trainer") -> None:
        """One line for people."""
        self.emit(Log(level, message, source))

    def phase(
        self, step: int, phase: Phase, done: int | None = None, total: int | None = None
    ) -> None:
        """What the running step does now; progress within a phase is told five times a second."""
        now = time.monotonic()
        if (step, phase) != self._last_phase or now - self._last_phase_at > _PHASE_SECONDS:
            self._last_phase, self._last_phase_at = (step, phase), now
            self.emit(PhaseChange(step, phase, done, total))

    def reward_output(self, stream: Literal["stdout", "stderr", "notice"], line: str) -> None:
        """A line that a reward function printed."""
        self.log("warn" if stream == "notice" else "info", line, "reward")

    def close(self) -> None:
        """Writes what is queued and gives stdout back."""
        if self.console is not None:
            self.console.close()
        if self.wire is not None:
            self.wire.close()
        self._listeners.clear()

    def _captured_line(self, source: Literal["stdout", "stderr"], text: str) -> None:
        self.log("info", text, source)


def _hello() -> Hello:
    return Hello(PROTOCOL_VERSION, version("grpo-tui"), os.getpid(), CAPABILITIES)
