"""Each command we gave and what became of it: asked, acknowledged, applied, or failed and why."""

from dataclasses import dataclass
from typing import Final, Literal

from grpo_protocol.commands import Command, command_name, format_command
from grpo_protocol.messages import Ack, Applied
from grpo_tui.sanitize import clean, clean_line

CommandStage = Literal["asked", "acknowledged", "applied", "failed"]

_KEPT: Final = 200


@dataclass
class CommandState:
    """The life of one input line."""

    name: str
    """As in the trainer's answers: `PAUSE`, `SET temperature`."""
    text: str
    """The line as it was sent."""
    line: int | None
    """Its number in the trainer's input; None when it was never written."""
    asked: float
    acknowledged: float | None = None
    applied: float | None = None
    error: str | None = None
    message: str | None = None
    """What the trainer said about it."""
    from_step: int | None = None
    """First step for which it holds."""
    path: str | None = None
    """What a save has written."""

    @property
    def stage(self) -> CommandStage:
        if self.error is not None:
            return "failed"
        if self.applied is not None:
            return "applied"
        return "asked" if self.acknowledged is None else "acknowledged"

    @property
    def pending(self) -> bool:
        """Neither applied nor failed."""
        return self.stage in {"asked", "acknowledged"}


class CommandLog:
    """The newest commands, oldest first."""

    def __init__(self) -> None:
        self.commands: list[CommandState] = []
        self._by_line: dict[int, CommandState] = {}

    def sent(self, line: int, command: Command, now: float) -> None:
        """`command` was written as input line `line`."""
        state = self._new(line, command, now)
        self._by_line[line] = state

    def unsent(self, line: int | None, command: Command, error: str, now: float) -> CommandState:
        """`command` did not reach the trainer, in whole or in part."""
        known = None if line is None else self._by_line.get(line)
        state = known or self._new(line, command, now)
        state.error = clean(error)
        return state

    def acknowledge(self, event: Ack, now: float) -> CommandState | None:
        """Takes the trainer's first answer; None when it answers no line of ours."""
        if (state := self._by_line.get(event.line)) is None:
            return None
        state.acknowledged = now
        state.from_step = event.step
        state.message = None if event.message is None else clean(event.message)
        if not event.ok:
            state.error = state.message or "refused by the trainer"
        return state

    def apply(self, event: Applied, now: float) -> CommandState | None:
        """Takes the trainer's second answer; None when it answers no line of ours."""
        if (state := self._by_line.get(event.line)) is None:
            return None
        state.acknowledged = now if state.acknowledged is None else state.acknowledged
        state.message = state.message if event.message is None else clean(event.message)
        state.path = None if event.path is None else clean_line(event.path, 4096)
        if event.ok:
            state.applied = now
        else:
            state.error = state.message or "failed in the trainer"
        return state

    def complete(self, name: str, now: float, path: str | None = None) -> None:
        """An event shows that every pending `name` has happened, answered or not."""
        for state in self.pending(name):
            state.applied = now
            state.path = state.path or path

    def trainer_ended(self, now: float, returncode: int) -> None:
        """Nothing that is pending will be answered; a new trainer counts its lines anew."""
        if returncode == 0:
            self.complete("STOP", now)
        for state in self.commands:
            if state.pending:
                state.error = "the trainer ended first"
        self._by_line.clear()

    def pending(self, name: str) -> list[CommandState]:
        return [state for state in self.commands if state.name == name and state.pending]

    def latest(self, *names: str) -> CommandState | None:
        """The newest command with one of these names."""
        return next((state for state in reversed(self.commands) if state.name in names), None)

    def _new(self, line: int | None, command: Command, now: float) -> CommandState:
        state = CommandState(clean_line(command_name(command)), _text(command), line, now)
        self.commands.append(state)
        del self.commands[:-_KEPT]
        return state


def _text(command: Command) -> str:
    try:
        return clean_line(format_command(command))
    except ValueError:
        # One that has no line form was never sent and is kept only with its error.
        return clean_line(command_name(command))
