"""The way out in sight: which rung of the quit ladder we stand on, and when the next one comes."""

import math
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from grpo_tui.drawing.header_line import phase_text
from grpo_tui.screens.dialog import Dialog
from grpo_tui.state.run_model import RunState

_RUNGS = {
    "stop": ("Asked the trainer to stop: it finishes the step and saves.", "SIGTERM"),
    "terminate": ("Sent SIGTERM: the trainer saves what it can.", "SIGKILL"),
    "kill": ("Sent SIGKILL.", ""),
}


class StopDialog(Dialog[None]):
    """Stays until the trainer is gone; hiding it changes nothing about the stop."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "K",
            "app.hurry",
            "Hurry",
            id="stop.hurry",
            tooltip="Do not wait: the next, harder means now",
        ),
        Binding(
            "ctrl+c,ctrl+q",
            "app.hurry",
            "Hurry",
            show=False,
            id="stop.again",
            tooltip="Do not wait",
        ),
        Binding(
            "escape",
            "dismiss",
            "Hide",
            id="stop.hide",
            tooltip="Back to the screen while the trainer stops",
        ),
    ]

    def __init__(self, state: RunState) -> None:
        super().__init__()
        self._state = state

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Stopping"
            yield Static(id="stop-text", markup=False)

    def on_mount(self) -> None:
        self.show_state(changed=True)

    def show_state(self, *, changed: bool) -> None:
        """Redraws the countdown."""
        for text in self.query("#stop-text").results(Static):
            text.update(self._text())

    def _text(self) -> Content:
        state, stage = self._state, self._state.quit
        if stage is None:
            return Content("The trainer is about to be asked to stop.")
        what, follows = _RUNGS[stage.rung]
        lines = [Content(what)]
        if state.phase is not None:
            lines.append(Content.styled(f"Now: {phase_text(state.phase)}", "$foreground 60%"))
        if (left := state.quit_remaining) is not None:
            lines.append(Content.assemble((f"{math.ceil(left)} s", "bold"), f" until {follows}"))
        lines.append(Content(""))
        keys = "K do not wait" + (f", {follows} now" if follows else "")
        lines.append(Content.styled(f"{keys}    Esc hide", "$text-accent"))
        return Content("\n").join(lines)
