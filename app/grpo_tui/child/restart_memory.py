"""What a restart has to know of the run so far, learned from what its trainers have told."""

from pathlib import Path

from grpo_protocol.commands import Set
from grpo_protocol.messages import (
    Ack,
    Applied,
    Checkpoint,
    Complete,
    DatabasePath,
    EpochStart,
    Failed,
    Init,
    Step,
)
from grpo_protocol.run_files import LOCK_NAME
from grpo_tui.notices import ChildExited, ChildStarted, CommandSent, Item


class RestartMemory:
    """Of the running trainer: how far it got. Of the whole run: its folder and live settings."""

    def __init__(self, cwd: Path) -> None:
        self.trained = False
        """The loop of this trainer had begun."""
        self.completed = False
        """This trainer has said that its run is over."""
        self.has_checkpoint = False
        self.sure_failure: str | None = None
        """Why another start would fail as this trainer did; None when it may go better."""
        self._step: int | None = None
        self._failed_after: int | None = None
        self._failed_before: int | None = None
        self._cwd = cwd
        self._told_folder: str | None = None
        self._saved_in: str | None = None
        self._recorded_in: str | None = None
        self._settings: dict[str, Set] = {}
        self._unanswered: dict[int, Set] = {}
        self._answers = False

    @property
    def settings(self) -> list[Set]:
        """Those that a trainer has accepted, or has taken without an answer."""
        return list(self._settings.values())

    @property
    def run_folder(self) -> str | None:
        """Where the run goes on; a record may lie elsewhere, so that its folder needs proof."""
        if self._told_folder is not None or self._saved_in is not None:
            return self._told_folder or self._saved_in
        if self._recorded_in is not None and _holds_run(self._cwd / self._recorded_in):
            return self._recorded_in
        return None

    def learn(self, item: Item) -> None:
        """Takes each event and notice."""
        match item:
            case ChildStarted():
                self._begin_life()
            case Init():
                self.trained = True
                if isinstance(folder := item.config.output_dir, str):
                    self._told_folder = folder
            case EpochStart():
                self.trained = True
            case Step():
                self.trained = True
                self._step = item.step
            case Failed():
                self._failed()
            case DatabasePath():
                self._recorded_in = str(Path(item.path).parent)
            case Checkpoint():
                self.has_checkpoint = True
                self._saved_in = str(Path(item.path).parent)
            case Complete():
                self.completed = True
            case CommandSent(command=Set() as setting):
                self._unanswered[item.line] = setting
            case Ack() | Applied():
                self._answered(item)
            case ChildExited() if not self._answers:
                # A trainer without answers refuses nothing as far as anybody can know.
                self._settings |= {setting.key: setting for setting in self._unanswered.values()}
            case _:
                pass

    def _begin_life(self) -> None:
        self.trained = self.completed = self._answers = False
        self._failed_before, self._failed_after = self._failed_after, None
        self.sure_failure = self._step = None
        self._unanswered.clear()

    def _failed(self) -> None:
        """An orderly failure with the same work behind it comes from the input, not by chance."""
        self._failed_after = self._step
        if self._step is None:
            self.sure_failure = "it failed before it had finished a step"
        elif self._step == self._failed_before:
            self.sure_failure = f"it failed again after step {self._step}"

    def _answered(self, answer: Ack | Applied) -> None:
        self._answers = True
        setting = self._unanswered.get(answer.line)
        if setting is not None and answer.ok:
            self._settings[setting.key] = setting


def _holds_run(folder: Path) -> bool:
    try:
        return (folder / LOCK_NAME).exists() or any(folder.glob("checkpoint-*"))
    except OSError:
        return False
