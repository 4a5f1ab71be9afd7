"""The states of a run, each with a word and two signs, because colour is never the only one."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class _Sign:
    glyph: str
    ascii: str
    word: str


class RunStatus(Enum):
    """What a run does now, as honestly as the trainer lets us know."""

    STARTING = _Sign("○", "o", "starting")
    LOADING = _Sign("◌", ".", "loading")
    RUNNING = _Sign("▶", ">", "running")
    PAUSING = _Sign("◫", "|", "pausing…")
    PAUSED = _Sign("‖", "=", "paused")
    RESUMING = _Sign("▷", ")", "resuming…")
    SAVING = _Sign("▼", "v", "saving")
    STOPPING = _Sign("◧", "]", "stopping…")
    COMPLETE = _Sign("✓", "+", "complete")
    STOPPED = _Sign("■", "#", "stopped")
    FAILED = _Sign("✗", "x", "failed")
    CRASHED = _Sign("✗", "X", "crashed")
    RESTARTING = _Sign("↻", "@", "restarting")

    @property
    def glyph(self) -> str:
        return self.value.glyph

    @property
    def ascii_glyph(self) -> str:
        return self.value.ascii

    @property
    def word(self) -> str:
        return self.value.word

    @property
    def ended(self) -> bool:
        """No trainer runs and none will be started by itself."""
        return self in _ENDED

    @property
    def active(self) -> bool:
        """The training loop is there and reads commands."""
        return self in _ACTIVE


_ENDED = {RunStatus.COMPLETE, RunStatus.STOPPED, RunStatus.FAILED, RunStatus.CRASHED}
_ACTIVE = {
    RunStatus.RUNNING,
    RunStatus.PAUSING,
    RunStatus.PAUSED,
    RunStatus.RESUMING,
    RunStatus.SAVING,
}
