"""What happens around the trainer's event stream, as values for the run state.

The trainer's own events say what training does; these say what its process, its pipes and our
commands do.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from grpo_protocol.codec import Malformed
from grpo_protocol.commands import Command
from grpo_protocol.config import SampleDisplay
from grpo_protocol.framing import Oversized
from grpo_protocol.messages import Event

Rung = Literal["stop", "terminate", "kill"]

STOP_PATIENCE: Final = 60.0
"""Seconds from a STOP to the next rung, unless steps take longer than a third of that."""


@dataclass(frozen=True)
class ChildStarted:
    """A trainer process runs; `restart` is 0 for the first."""

    pid: int
    restart: int = 0


@dataclass(frozen=True)
class ChildExited:
    """The process is gone. `returncode` is negative for the signal that ended it."""

    returncode: int
    asked: bool
    """We had asked it to end."""


@dataclass(frozen=True)
class SpawnFailed:
    """No process could be started."""

    error: str


@dataclass(frozen=True)
class RestartScheduled:
    """A new process starts at `at` (in the clock's time) unless that is cancelled."""

    attempt: int
    at: float


@dataclass(frozen=True)
class RestartGivenUp:
    """No restart comes, and why."""

    reason: str


@dataclass(frozen=True)
class CommandSent:
    """`command` was written whole as input line `line`."""

    line: int
    command: Command


@dataclass(frozen=True)
class CommandUnsent:
    """`command` did not reach the trainer."""

    line: int | None
    command: Command
    error: str


@dataclass(frozen=True)
class QuitStage:
    """A rung of the quit ladder; the next one comes at `deadline` (in the clock's time)."""

    rung: Rung
    deadline: float | None


@dataclass(frozen=True)
class Detached:
    """We let go of the trainer, which goes on without us."""


@dataclass(frozen=True)
class InvalidUtf8:
    """A line held bytes that are no UTF-8; they were replaced."""

    stream: Literal["stdout", "stderr"]


@dataclass(frozen=True)
class StreamEnded:
    """The trainer closed `stream` while it lives on."""

    stream: Literal["stdout", "stderr"]


@dataclass(frozen=True)
class SampleModeChosen:
    """The person wants to see these completions."""

    mode: SampleDisplay


@dataclass(frozen=True)
class AppNote:
    """A log line of the dashboard itself."""

    message: str
    level: Literal["debug", "info", "warn", "error"] = "info"


Notice: TypeAlias = (
    ChildStarted
    | ChildExited
    | SpawnFailed
    | RestartScheduled
    | RestartGivenUp
    | CommandSent
    | CommandUnsent
    | QuitStage
    | Detached
    | InvalidUtf8
    | StreamEnded
    | SampleModeChosen
    | AppNote
)
Item: TypeAlias = Event | Malformed | Oversized | Notice
