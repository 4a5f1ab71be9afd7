"""What to do about a living trainer when the person leaves."""

from typing import ClassVar, Literal

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Button, Static

from grpo_tui.drawing.formatting import ago
from grpo_tui.screens.dialog import Dialog
from grpo_tui.state.run_model import RunState
from grpo_tui.widgets.scroll_pane import ScrollPane

QuitChoice = Literal["stop", "detach", "kill", "stay"]

_CHOICES: tuple[tuple[QuitChoice, str, str], ...] = (
    ("stop", "y", "Stop: finish the step, save a checkpoint, quit"),
    ("detach", "d", "Detach: quit, the training goes on without a screen"),
    ("kill", "K", "Kill now: what came after the last checkpoint is lost"),
    ("stay", "n", "Stay here (Esc)"),
)


class QuitDialog(Dialog[QuitChoice]):
    """Four choices, none of them by accident: staying has the focus."""

    AUTO_FOCUS = "#stay"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "y",
            "choose('stop')",
            "Stop and quit",
            id="quit.stop",
            tooltip="Stop gracefully and quit",
        ),
        Binding(
            "d",
            "choose('detach')",
            "Detach",
            id="quit.detach",
            tooltip="Leave the training running",
        ),
        Binding("K", "choose('kill')", "Kill now", id="quit.kill", tooltip="Kill the trainer now"),
        Binding("n,escape", "choose('stay')", "Stay", id="quit.stay", tooltip="Stay here"),
        Binding("down,j", "app.focus_next", "Down", show=False, id="quit.down", tooltip="Next"),
        Binding("up,k", "app.focus_previous", "Up", show=False, id="quit.up", tooltip="Previous"),
        Binding(
            "ctrl+c,ctrl+q",
            "choose('stop')",
            "Stop and quit",
            show=False,
            id="quit.again",
            tooltip="Asked twice: stop gracefully and quit",
        ),
    ]

    def __init__(self, state: RunState) -> None:
        super().__init__()
        self._state = state

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Quit while training runs?"
            with ScrollPane(can_focus=False):
                for choice, key, text in _CHOICES:
                    yield Button(Content(f" {key}  {text}"), id=choice, compact=True)
                yield Static(self._last_checkpoint(), classes="quiet", markup=False)

    def _last_checkpoint(self) -> str:
        saved = self._state.last_checkpoint
        if saved is None:
            return "No checkpoint has been saved yet."
        return f"Last checkpoint: step {saved.step}, {ago(self._state.clock() - saved.at)} ago."

    def action_choose(self, choice: QuitChoice) -> None:
        self.dismiss(choice)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        for choice, _, _ in _CHOICES:
            if choice == event.button.id:
                self.dismiss(choice)
