"""What has just happened and deserves a word of its own on the screen."""

from dataclasses import dataclass
from typing import Literal

from grpo_tui.state.command_log import CommandState
from grpo_tui.state.run_model import RunState
from grpo_tui.state.run_status import RunStatus


@dataclass(frozen=True)
class Announcement:
    """One line for a toast."""

    text: str
    severity: Literal["information", "warning", "error"] = "information"


class Announcer:
    """Tells each thing once."""

    def __init__(self) -> None:
        self._told: set[int] = set()
        self._ended: RunStatus | None = None

    def news(self, state: RunState) -> list[Announcement]:
        """What is new since the last call."""
        news = [
            self._of_command(command)
            for command in state.commands.commands
            if not command.pending and id(command) not in self._told
        ]
        self._told = {id(c) for c in state.commands.commands if not c.pending}
        if state.ended is not self._ended:
            self._ended = state.ended
            news.append(self._of_end(state))
        return [item for item in news if item is not None]

    @staticmethod
    def _of_command(command: CommandState) -> Announcement | None:
        if command.error is not None:
            return Announcement(f"{command.text}: {command.error}", "error")
        if command.name == "SAVE_CHECKPOINT":
            return Announcement(command.message or f"saved {command.path or 'a checkpoint'}")
        return None

    @staticmethod
    def _of_end(state: RunState) -> Announcement | None:
        match state.ended:
            case RunStatus.COMPLETE:
                return Announcement("training is complete; q leaves")
            case RunStatus.FAILED | RunStatus.CRASHED:
                return Announcement(state.failure or "the trainer has failed", "error")
            case _:
                return None
