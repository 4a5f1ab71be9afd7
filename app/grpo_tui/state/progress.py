"""Where a run stands in steps and epochs, and how its time went."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final

_STEPS_FOR_ETA: Final = 50


@dataclass
class Progress:
    """Position in the run. What the trainer has not told is None."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int | None = None
    """Counts from 1."""
    total_epochs: int | None = None
    step_in_epoch: int = 0
    num_batches: int | None = None
    """Steps of one epoch."""
    max_steps: int | None = None

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run, if they can be known."""
        if self.max_steps is not None:
            return self.max_steps
        if self.num_batches is None or self.total_epochs is None:
            return None
        return self.num_batches * self.total_epochs

    @property
    def remaining_steps(self) -> int | None:
        total = self.total_steps
        return None if total is None else max(0, total - self.step)

    def start_epoch(self, epoch: int, total_epochs: int, num_batches: int) -> None:
        """Takes an epoch's start; after a resume into this epoch the position stays."""
        if epoch != self.epoch:
            self.step_in_epoch = 0
        self.epoch, self.total_epochs, self.num_batches = epoch, total_epochs, num_batches

    def finish_step(self, step: int, epoch: int | None, step_in_epoch: int | None) -> None:
        if epoch is not None:
            self.epoch = epoch
        self.step_in_epoch = self.step_in_epoch + 1 if step_in_epoch is None else step_in_epoch
        self.step = step


@dataclass
class RunClock:
    """Times of a run in the seconds of one clock; pauses do not count as work."""

    started: float | None = None
    ended: float | None = None
    last_event: float | None = None
    last_step: float | None = None
    """When the newest step was reported, or the pause after it ended."""
    paused_since: float | None = None
    paused_total: float = 0.0
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=_STEPS_FOR_ETA))
    """Seconds of the newest steps, without pauses."""
    _mark: float | None = None
    _paused_at_mark: float = 0.0

    def start(self, now: float) -> None:
        """A trainer process has started, the first or a later one."""
        self.started = now if self.started is None else self.started
        self.ended = None
        self.resume(now)
        self._mark = None

    def loop_ready(self, now: float) -> None:
        """The loop begins; the first step is measured from here, not from the loading."""
        self._mark, self._paused_at_mark = now, self.paused_at(now)

    def step_done(self, now: float) -> None:
        if self._mark is not None:
            paused = self.paused_at(now) - self._paused_at_mark
            self.durations.append(max(0.0, now - self._mark - paused))
        self.last_step = now
        self.loop_ready(now)

    def pause(self, now: float) -> None:
        self.paused_since = now if self.paused_since is None else self.paused_since

    def resume(self, now: float) -> None:
        if self.paused_since is not None and self.last_step is not None:
            # A step that begins after a pause is not late for the time of the pause.
            self.last_step = now
        self.paused_total, self.paused_since = self.paused_at(now), None

    def paused_at(self, now: float) -> float:
        """Seconds of pause up to `now`."""
        running = 0.0 if self.paused_since is None else now - self.paused_since
        return self.paused_total + running

    def end(self, now: float) -> None:
        self.resume(now)
        self.ended = now if self.ended is None else self.ended

    def elapsed(self, now: float) -> float | None:
        """Seconds since the first start, pauses included; None before it."""
        if self.started is None:
            return None
        return max(0.0, (now if self.ended is None else self.ended) - self.started)

    @property
    def step_seconds(self) -> float | None:
        """Median of the newest steps; one slow step with a checkpoint in it changes nothing."""
        return median(self.durations) if self.durations else None
