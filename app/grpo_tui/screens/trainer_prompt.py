"""A question of the trainer's script: one answer or several, from a list that scrolls."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from grpo_tui.drawing.glyphs import Glyphs
from grpo_tui.screens.dialog import Dialog
from grpo_tui.state.run_model import Question
from grpo_tui.widgets.row_list import RowList
from grpo_tui.widgets.scroll_pane import ScrollPane


class ChoiceList(RowList):
    """The options; several can be marked when the question allows it."""

    def __init__(self, question: Question, glyphs: Glyphs) -> None:
        super().__init__(glyphs, id="choices")
        self._question = question
        self.marked = set(question.default)

    def count(self) -> int:
        return len(self._question.options)

    def draw_row(self, index: int, width: int, selected: bool) -> Content:
        option = self._question.options[index]
        box = ""
        if self._question.multi_select:
            box = "[x] " if index in self.marked else "[ ] "
        description = f"  {option.description}" if option.description else ""
        return Content.assemble(
            (f"{self.glyphs.row_cursor if selected else ' '} ", "$text-accent"),
            box,
            (option.label, "bold" if selected else ""),
            (description, "$foreground 60%"),
        )

    def answer(self) -> tuple[str, ...]:
        """Values of the marked options, or of the one under the cursor."""
        options = self._question.options
        if self._question.multi_select:
            return tuple(options[index].value for index in sorted(self.marked))
        return (options[self.cursor].value,) if options else ()


class TrainerPrompt(Dialog[tuple[str, ...] | None]):
    """Ends with the values, or None when the person wants to answer later."""

    AUTO_FOCUS = "#choices"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter",
            "confirm",
            "Answer",
            key_display="Enter",
            id="prompt.confirm",
            tooltip="Send the answer",
        ),
        Binding("space", "mark", "Mark", id="prompt.mark", tooltip="Mark, where several may be"),
        Binding(
            "escape",
            "dismiss(None)",
            "Later",
            id="prompt.later",
            tooltip="Answer later; the trainer waits",
        ),
        Binding("q", "app.quit", "Quit", id="prompt.quit", tooltip="Quit, stop or detach"),
    ]

    def __init__(self, question: Question, glyphs: Glyphs) -> None:
        super().__init__()
        self.question, self._glyphs = question, glyphs

    def compose(self) -> ComposeResult:
        several = self.question.multi_select
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "The trainer asks"
            with ScrollPane(can_focus=False, id="message"):
                yield Static(self.question.message, markup=False)
            yield ChoiceList(self.question, self._glyphs)
            keys = (
                "Space marks  Enter answers  Esc later" if several else "Enter answers  Esc later"
            )
            yield Static(keys, classes="quiet", markup=False)

    def on_mount(self) -> None:
        choices = self.query_one(ChoiceList)
        choices.styles.height = max(1, min(16, choices.count()))
        choices.refresh_rows()
        choices.cursor = min(self.question.default, default=0)

    def action_mark(self) -> None:
        choices = self.query_one(ChoiceList)
        choices.marked ^= {choices.cursor}
        choices.refresh()

    def action_confirm(self) -> None:
        self.dismiss(self.query_one(ChoiceList).answer())

    @on(RowList.Chosen)
    def _chosen(self) -> None:
        if not self.question.multi_select:
            self.action_confirm()
