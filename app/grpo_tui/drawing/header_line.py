"""The header's line: which run, where it stands, what it does now; the least telling parts go first
when columns are scarce."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from textual.content import Content

from grpo_tui.drawing.formatting import memory
from grpo_tui.drawing.glyphs import Glyphs
from grpo_tui.state.metric_names import ACTIVE_MEMORY, PEAK_MEMORY
from grpo_tui.state.run_model import PhaseState, RunState
from grpo_tui.state.run_status import RunStatus

_DIM = "$foreground 60%"
_LEAST_ACTIVITY: Final = 24


@dataclass(frozen=True)
class _Part:
    content: Content
    rank: int
    """Parts of a high rank are left out first."""
    least: int | None = None
    """The part may be cut to this many cells, and more where there is room."""

    @property
    def needed(self) -> int:
        """Cells without which the part says nothing."""
        size = self.content.cell_length
        return size if self.least is None else min(size, self.least)


def header_line(state: RunState, name: str, width: int, glyphs: Glyphs) -> Content:
    """At most `width` cells. `name` stands for the model until the trainer has told it."""
    compact = width < 100
    parts = [
        _Part(Content.styled(state.model or name, "bold $text-primary"), 3),
        _Part(Content.styled(state.run_name or "", _DIM), 6),
        _Part(_position(state, compact), 2),
        _Part(status_text(state, glyphs), 0),
        _Part(_activity(state), 1, None if state.restart is not None else _LEAST_ACTIVITY),
        _Part(_restarts(state, compact), 4),
        _Part(_memory(state), 7),
        _Part(_warnings(state, glyphs, compact), 5),
    ]
    shown = [part for part in parts if part.content]
    separator = Content.styled(f" {glyphs.separator} ", "$foreground 40%")
    while len(shown) > 1 and _needed(shown, separator) > width:
        shown.remove(max(shown, key=lambda part: part.rank))
    spare = max(0, width - _needed(shown, separator))
    texts = [_cut(part, part.needed + spare, glyphs) for part in shown]
    return Content.assemble(" ", separator.join(texts)).truncate(max(0, width))


def _needed(parts: Sequence[_Part], separator: Content) -> int:
    return sum(part.needed + separator.cell_length for part in parts) + 1 - separator.cell_length


def _cut(part: _Part, room: int, glyphs: Glyphs) -> Content:
    if part.content.cell_length <= room:
        return part.content
    return part.content.truncate(room - 1) + Content.styled(glyphs.ellipsis, _DIM)


def status_text(state: RunState, glyphs: Glyphs) -> Content:
    """The state of the run as a sign and a word."""
    status = state.status
    ascii_only = glyphs.raster == "ascii"
    sign = status.ascii_glyph if ascii_only else status.glyph
    word = status.word.replace("…", "...") if ascii_only else status.word
    return Content.styled(f"{sign} {word}", f"bold {_STYLES[status]}")


_STYLES = {
    RunStatus.STARTING: "$text-warning",
    RunStatus.LOADING: "$text-warning",
    RunStatus.RUNNING: "$text-success",
    RunStatus.PAUSING: "$text-warning",
    RunStatus.PAUSED: "$text-warning",
    RunStatus.RESUMING: "$text-success",
    RunStatus.SAVING: "$text-success",
    RunStatus.STOPPING: "$text-warning",
    RunStatus.COMPLETE: "$text-primary",
    RunStatus.STOPPED: "$text-primary",
    RunStatus.FAILED: "$text-error",
    RunStatus.CRASHED: "$text-error",
    RunStatus.RESTARTING: "$text-accent",
}


def phase_text(phase: PhaseState) -> str:
    """`generating 34/64`."""
    if phase.done is None:
        return phase.phase
    total = "" if phase.total is None else f"/{phase.total}"
    return f"{phase.phase} {phase.done}{total}"


def _position(state: RunState, compact: bool) -> Content:
    progress = state.progress
    parts = []
    if progress.epoch is not None:
        of = f"/{progress.total_epochs}" if progress.total_epochs is not None else ""
        parts.append(f"{'ep' if compact else 'epoch'} {progress.epoch}{of}")
    if progress.num_batches is not None:
        title = "" if compact else "batch "
        parts.append(f"{title}{progress.step_in_epoch}/{progress.num_batches}")
    elif progress.step:
        parts.append(f"step {progress.step}")
    return Content((" " if compact else "  ").join(parts))


def _activity(state: RunState) -> Content:
    """What happens this moment, in more detail than the state."""
    if (remaining := state.restart_remaining) is not None:
        left = math.ceil(remaining)
        return Content.assemble(
            (f"again in {left} s", "bold $text-accent"), ("  c cancel  Enter now", _DIM)
        )
    if state.status in {RunStatus.FAILED, RunStatus.CRASHED}:
        return Content.styled(state.failure or "", "$text-error")
    if state.status is RunStatus.STARTING:
        return Content.styled("starting trainer…", _DIM)
    if state.status is RunStatus.LOADING:
        return Content.styled(state.loading_message, _DIM)
    return Content(phase_text(state.phase)) if state.phase is not None else Content("")


def _restarts(state: RunState, compact: bool) -> Content:
    if not state.restarts:
        return Content("")
    return Content(f"{'rst' if compact else 'restarts'} {state.restarts}")


def _memory(state: RunState) -> Content:
    active, peak = state.latest(ACTIVE_MEMORY), state.latest(PEAK_MEMORY)
    if active is None and peak is None:
        return Content("")
    return Content.styled(f"mem {memory(active)} peak {memory(peak)}", _DIM)


def _warnings(state: RunState, glyphs: Glyphs, compact: bool) -> Content:
    count = warning_count(state)
    if not count:
        return Content("")
    text = f"{glyphs.gap}{count}" if compact else f"{glyphs.gap} {count} warnings"
    return Content.styled(text, "bold $text-warning")


def warning_count(state: RunState) -> int:
    """Faults of the stream, and metrics that are not finite now."""
    faults = state.faults
    broken = sum(bool(series) and series.last is None for series in state.series.values())
    dropped = (faults.dropped_steps, faults.dropped_generations, faults.dropped_logs)
    return (
        faults.malformed + faults.oversized + faults.invalid_utf8 + sum(map(bool, dropped)) + broken
    )
