"""When a trainer that ended by itself is started again, and with which arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grpo_protocol.config import config_keys
from grpo_tui.exit_codes import BAD_INPUT, describe_exit

BACK_OFF: Final = (5.0, 15.0, 60.0)
MAX_RESTARTS: Final = 5
WINDOW_SECONDS: Final = 600.0
GOOD_STEPS: Final = 100


@dataclass(frozen=True)
class Restart:
    """Start again after `delay` seconds."""

    delay: float


@dataclass(frozen=True)
class NoRestart:
    """Leave it; `reason` is None when the end was as it should be."""

    reason: str | None


class RestartPolicy:
    """Counts restarts; a trainer that keeps dying is given up."""

    def __init__(self, enabled: bool, back_off: Sequence[float] = BACK_OFF) -> None:
        self._enabled = enabled
        self._back_off = back_off
        self._recent: list[float] = []
        self._good_steps = 0

    def step_done(self) -> None:
        """A step went well; after many of them earlier restarts no longer count."""
        self._good_steps += 1
        if self._good_steps >= GOOD_STEPS:
            self._recent.clear()

    def decide(
        self,
        code: int,
        *,
        asked: bool,
        trained: bool,
        now: float,
        sure_failure: str | None = None,
    ) -> Restart | NoRestart:
        """What to do about an end with `code`; `trained` tells whether its loop had begun.

        `sure_failure` is the reason why another start would end the same way, if there is one.
        """
        self._good_steps = 0
        if code == 0 or asked:
            return NoRestart(None)
        if not self._enabled:
            return NoRestart("automatic restart is off")
        if code == BAD_INPUT:
            return NoRestart("the trainer refused its input")
        if code > 0 and not trained:
            return NoRestart(f"it ended before training began ({describe_exit(code)})")
        if sure_failure is not None:
            return NoRestart(sure_failure)
        self._recent = [at for at in self._recent if now - at < WINDOW_SECONDS]
        if len(self._recent) >= MAX_RESTARTS:
            minutes = WINDOW_SECONDS / 60
            return NoRestart(f"{MAX_RESTARTS} restarts within {minutes:.0f} minutes did not help")
        delay = self._back_off[min(len(self._recent), len(self._back_off) - 1)]
        self._recent.append(now)
        return Restart(delay)


def resume_argv(argv: Sequence[str], run_folder: str | None, has_checkpoint: bool) -> list[str]:
    """`argv` for a restart in the same run folder, from its newest checkpoint.

    A `--resume PATH` of the first start holds only until this run has a checkpoint of its own.
    Where no folder is known there is nothing to resume from, so `argv` stays as it is.
    """
    words = list(argv)
    names_folder = _names(words, _OUTPUT)
    if run_folder is None and not names_folder:
        return words
    if not _names(words, _RESUME):
        words += ["--resume", "latest"]
    elif has_checkpoint:
        words = [*_without_resume(words), "--resume", "latest"]
    if run_folder is not None and not names_folder:
        words += ["--output-dir", run_folder]
    return words


_RESUME: Final = ("--resume", "resume_from_checkpoint")
_OUTPUT: Final = ("--output-dir", "output_dir", "--output_dir")


def _names(words: Sequence[str], options: Sequence[str]) -> bool:
    return any(word.partition("=")[0] in options for word in words)


def _without_resume(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    may_be_value = False
    for word in words:
        if may_be_value and not word.startswith("-") and not _is_setting(word):
            may_be_value = False
            continue
        may_be_value = word == "--resume"
        if word.partition("=")[0] not in _RESUME:
            kept.append(word)
    return kept


def _is_setting(word: str) -> bool:
    """`key=value`; the path of a checkpoint may hold an `=` as well."""
    key, separator, _ = word.partition("=")
    return bool(separator) and key.partition(".")[0] in {known.name for known in config_keys()}
