"""What people see of a run without the dashboard: a progress bar on a terminal, lines elsewhere."""

import atexit
import sys
import threading
from pathlib import Path
from typing import IO, cast

from grpo_protocol.messages import (
    Checkpoint,
    Complete,
    EpochStart,
    Eval,
    Event,
    Failed,
    Init,
    Log,
    PhaseChange,
    ResumeState,
    Status,
    Step,
)
from grpo_trainer.output.live_stream import LiveStream
from grpo_trainer.output.plain_text import show_controls
from grpo_trainer.output.run_figures import EMA_STEPS, RunFigures, duration, number

# Columns from which on there is room for more than the figures.
_WIDE = 110


class Console:
    """Shows events to people. Thread-safe; a stream that nobody reads any more is left alone."""

    def __init__(
        self,
        *,
        log_console: bool = True,
        log_interval: int = 1,
        out: IO[str] | None = None,
        err: IO[str] | None = None,
    ) -> None:
        self.log_interval = log_interval
        self._log_console = log_console
        self._out = LiveStream(sys.stdout if out is None else out)
        self._err = LiveStream(sys.stderr if err is None else err)
        self._lock = threading.RLock()
        self._figures = RunFigures()
        self._bar: _Bar | None = None
        self._folder: Path | None = None
        self._say_folder = False
        self._last_step: Step | None = None
        self._first_evals: dict[tuple[str, str], float | None] = {}

    def start(self, folder: Path) -> None:
        """Where the run is kept: the first line, unless the run is refused before it says any."""
        self._folder = folder
        self._say_folder = True

    def handle(self, event: Event) -> None:
        """Shows what `event` says, if it is for people."""
        with self._lock:
            self._handle(event)

    def close(self) -> None:
        """Leaves the terminal as it was."""
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def _handle(self, event: Event) -> None:
        match event:
            case Log():
                self._log(event)
            case Status(message=message):
                self._line(message)
            case Init():
                self._begin(event)
            case ResumeState(step=step):
                self._line(f"resumed after step {step}")
            case EpochStart(epoch=epoch, total_epochs=total) if total > 1:
                self._line(f"epoch {epoch}/{total}")
            case PhaseChange() if self._bar is not None:
                self._bar.phase(event)
            case Step():
                self._step(event)
            case Checkpoint(path=path, step=step):
                self._line(f"checkpoint after step {step}: {path}")
            case Eval():
                self._eval(event)
            case Complete():
                self._finish(event)
            case Failed():
                self._fail(event)

    def _log(self, event: Log) -> None:
        if event.level == "error":
            self._complain("error", event.message)
        elif event.level == "warn" and self._log_console:
            self._complain("warning", event.message)
        elif event.level == "info":
            said_by = "" if event.source == "trainer" else f"{event.source}: "
            self._line(said_by + event.message)

    def _begin(self, event: Init) -> None:
        self._figures.start(event.max_steps)
        self._line(f"training {event.model}")
        if self._log_console and self._out.can_redraw():
            self._bar = _Bar(self._out, self._err, event.max_steps)

    def _step(self, event: Step) -> None:
        self._figures.add(event)
        self._last_step = event
        if self._bar is not None:
            self._bar.step(event, self._figures)
        elif event.step % self.log_interval == 0 or event.step == self._figures.max_steps:
            self._show_last_step()

    def _show_last_step(self) -> None:
        if self._last_step is not None and self._bar is None:
            self._line(self._figures.line(self._last_step))
        self._last_step = None

    def _eval(self, event: Eval) -> None:
        self._figures.skip_pause()
        parts = []
        for key, value in event.metrics.items():
            name = key.removeprefix("eval/")
            if name.startswith("completions/"):
                continue
            first = self._first_evals.setdefault((event.name, name), value)
            before = f" (at first {number(first)})" if event.step else ""
            parts.append(f"{name} {number(value)}{before}")
        self._line(
            f"evaluation {event.name} after step {event.step}: {', '.join(parts)} "
            f"on {event.num_prompts} prompts"
        )

    def _finish(self, event: Complete) -> None:
        self._show_last_step()
        self.close()
        reason = f" ({event.reason})" if event.reason else ""
        self._line(
            f"{event.status or 'completed'}{reason}: {event.total_steps} steps in "
            f"{duration(event.total_time_secs)}"
        )
        first, last = self._figures.first_reward, self._figures.reward_ema
        if first is not None and last is not None:
            self._line(
                f"reward (smoothed over {EMA_STEPS} steps): {number(first[1])} after step "
                f"{first[0]}, {number(last)} at the end"
            )
        if self._folder is not None:
            self._line(f"run folder: {self._folder}")

    def _fail(self, event: Failed) -> None:
        self._show_last_step()
        self.close()
        self._complain("error", f"{event.error}; {event.hint}" if event.hint else event.error)

    def _line(self, text: str) -> None:
        if not self._log_console:
            return
        if self._say_folder:
            self._say_folder = False
            self._line(f"run folder: {self._folder}")
        for line in _clean(text):
            if self._bar is not None:
                self._bar.above(line)
            else:
                self._out.write(line + "\n")

    def _complain(self, kind: str, message: str) -> None:
        for line in _clean(f"{kind}: {message}"):
            if self._bar is not None and self._err.can_redraw():
                self._bar.above(line)
            else:
                self._err.write(line + "\n")


class _Bar:
    """One line at the bottom of the terminal: phase, bar, step and figures."""

    def __init__(self, out: LiveStream, err: LiveStream, max_steps: int | None) -> None:
        # Rich takes 60 ms to import, which only a terminal is worth.
        from rich import progress
        from rich.console import Console as RichConsole

        console = RichConsole(
            file=cast(IO[str], out), force_terminal=True, markup=False, emoji=False, highlight=False
        )
        self._is_wide = console.width >= _WIDE
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=24 if self._is_wide else 8),
            progress.TextColumn("{task.fields[count]}", markup=False),
            progress.TextColumn("{task.fields[figures]}", markup=False),
            console=console,
            refresh_per_second=4,
            # What reward functions print appears above the bar, unless it goes to a file.
            redirect_stderr=err.isatty(),
        )
        count = f"0/{max_steps}" if max_steps else "0"
        self._task = self._progress.add_task("starting", total=max_steps, count=count, figures="")
        self._progress.start()
        # A terminal without cursor is what an unforeseen end would leave behind.
        atexit.register(self.stop)

    def phase(self, event: PhaseChange) -> None:
        text = f"{event.phase:10}"
        if self._is_wide and event.done is not None and event.total:
            text += f" {event.done}/{event.total}"
        self._progress.update(self._task, description=text)

    def step(self, event: Step, figures: RunFigures) -> None:
        self._progress.update(
            self._task,
            completed=event.step,
            count=figures.count(event),
            figures=figures.beside_bar(event),
        )

    def above(self, line: str) -> None:
        self._progress.console.print(line, soft_wrap=True)

    def stop(self) -> None:
        atexit.unregister(self.stop)
        self._progress.stop()


def _clean(text: str) -> list[str]:
    """Lines of `text`, in which nothing can move the cursor or pass for something else."""
    return [show_controls(line) for line in text.expandtabs().splitlines()] or [""]
