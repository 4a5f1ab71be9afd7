"""What a dashboard knows about one run. Plain data: widgets read it, only `apply` changes it."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from grpo_protocol.config import SampleDisplay
from grpo_protocol.messages import Hello, Phase
from grpo_tui.notices import STOP_PATIENCE, QuitStage, RestartScheduled
from grpo_tui.state.command_log import CommandLog
from grpo_tui.state.log_book import LogBook
from grpo_tui.state.progress import Progress, RunClock
from grpo_tui.state.run_status import RunStatus
from grpo_tui.state.samples import SampleBook
from grpo_tui.state.series import Series

MarkKind = Literal["checkpoint", "restart", "pause", "epoch", "setting"]


@dataclass(frozen=True)
class ConfigEntry:
    """One setting that the trainer has told."""

    group: str
    key: str
    value: str
    is_default: bool
    live: bool = False
    """It can be changed while training."""


@dataclass(frozen=True)
class PhaseState:
    """What the running step does now, and how far that is, if known."""

    step: int
    phase: Phase
    done: int | None = None
    total: int | None = None


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint that is complete on disk."""

    path: str
    step: int
    kind: str | None
    at: float


@dataclass(frozen=True)
class Mark:
    """Something to show on the time line of a chart."""

    step: int
    kind: MarkKind
    text: str = ""


@dataclass(frozen=True)
class Evaluation:
    """Result on held-out prompts after `step` steps."""

    step: int
    name: str
    num_prompts: int
    metrics: dict[str, float | None]


@dataclass(frozen=True)
class Option:
    """One answer to a question."""

    value: str
    """As the trainer knows it; shown is the label."""
    label: str
    description: str | None


@dataclass(frozen=True)
class Question:
    """What the trainer's script asks the person."""

    id: str
    message: str
    options: tuple[Option, ...]
    multi_select: bool
    default: tuple[int, ...]


@dataclass
class Totals:
    """Sums and records over the whole run, earlier parts included."""

    tokens: int = 0
    best_reward: float | None = None
    best_reward_step: int | None = None
    """None when the record is from before a resume and its step is not known."""
    resumed_tokens: int = 0
    """Of the steps before a resume, as far as the trainer has told."""


@dataclass
class Faults:
    """What went wrong in the stream; each is a log line too."""

    malformed: int = 0
    """Lines that look like events and are none."""
    stray: int = 0
    """Lines of other text between the events."""
    oversized: int = 0
    invalid_utf8: int = 0
    dropped_generations: int = 0
    dropped_logs: int = 0
    dropped_phases: int = 0
    dropped_steps: int = 0


@dataclass
class RunState:
    """Everything about the run in hand. `version` grows with each change."""

    clock: Callable[[], float] = time.time
    version: int = 0

    model: str = ""
    run_name: str | None = None
    run_id: str | None = None
    database_path: str | None = None
    output_dir: str | None = None
    """Folder of the run, as the trainer has told it."""
    config: list[ConfigEntry] = field(default_factory=list)
    group_size: int | None = None
    hello: Hello | None = None
    pid: int | None = None
    """Of the trainer that runs now."""
    loading_message: str = ""

    progress: Progress = field(default_factory=Progress)
    times: RunClock = field(default_factory=RunClock)
    phase: PhaseState | None = None
    series: dict[str, Series] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    last_checkpoint: SavedCheckpoint | None = None
    marks: deque[Mark] = field(default_factory=lambda: deque(maxlen=10_000))
    evaluations: list[Evaluation] = field(default_factory=list)

    commands: CommandLog = field(default_factory=CommandLog)
    samples: SampleBook = field(default_factory=SampleBook)
    sample_mode: SampleDisplay = "all"
    logs: LogBook = field(default_factory=LogBook)
    questions: list[Question] = field(default_factory=list)
    """Waiting for an answer, oldest first."""
    faults: Faults = field(default_factory=Faults)

    restarts: int = 0
    restart: RestartScheduled | None = None
    """The start to come, while it can be cancelled."""
    quit: QuitStage | None = None
    loop_started: bool = False
    resumed: bool = False
    """This trainer has told that it goes on from a checkpoint."""
    past_wanted: int | None = None
    """Some steps after this one are missing in the charts; the record may have them."""
    paused: bool = False
    has_failed: bool = False
    """The trainer itself has said that the run failed."""
    failure: str | None = None
    """Why the run ended badly, in one line."""
    last_stderr: str | None = None
    exit_code: int | None = None
    """Of the last trainer process; negative for a signal."""
    detached: bool = False
    ended: RunStatus | None = None

    @property
    def status(self) -> RunStatus:
        """What the run does now."""
        if self.ended is not None:
            return self.ended
        if self.restart is not None:
            return RunStatus.RESTARTING
        if self.quit is not None or self.commands.pending("STOP"):
            return RunStatus.STOPPING
        if not self.loop_started:
            return RunStatus.LOADING if self.loading_message else RunStatus.STARTING
        if self.phase is not None and self.phase.phase == "saving":
            return RunStatus.SAVING
        return self._loop_status()

    def _loop_status(self) -> RunStatus:
        last = self.commands.latest("PAUSE", "RESUME")
        asked = last.name if last is not None and last.pending else None
        if self.paused:
            return RunStatus.RESUMING if asked == "RESUME" else RunStatus.PAUSED
        return RunStatus.PAUSING if asked == "PAUSE" else RunStatus.RUNNING

    @property
    def eta_seconds(self) -> float | None:
        """Time to the end of the run by the median of the newest steps, or None."""
        remaining, seconds = self.progress.remaining_steps, self.times.step_seconds
        if self.ended is not None or remaining is None or seconds is None:
            return None
        return remaining * seconds

    @property
    def stop_patience(self) -> float:
        """How long a STOP may take before the trainer is pressed: it may be within a long step."""
        return max(STOP_PATIENCE, 3 * (self.times.step_seconds or 0.0))

    @property
    def quit_remaining(self) -> float | None:
        """Seconds until the next rung of the quit ladder; None when none comes by itself."""
        if self.quit is None or self.quit.deadline is None:
            return None
        return max(0.0, self.quit.deadline - self.clock())

    @property
    def restart_remaining(self) -> float | None:
        """Seconds until the trainer is started again."""
        return None if self.restart is None else max(0.0, self.restart.at - self.clock())

    @property
    def elapsed_seconds(self) -> float | None:
        """Since the first start of the trainer, up to now or to its end."""
        return self.times.elapsed(self.clock())

    def latest(self, name: str) -> float | None:
        """Newest value of a metric; None when it is unknown or was not finite."""
        series = self.series.get(name)
        return series.last if series is not None else None
