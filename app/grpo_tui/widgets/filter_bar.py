"""One row to type a filter in; the list follows every key."""

from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Label


class FilterBar(Horizontal):
    """Hidden until opened. Enter keeps the filter, Escape clears it."""

    DEFAULT_CSS = """
    FilterBar { height: 1; display: none; background: $panel; }
    FilterBar.-open { display: block; }
    FilterBar Label { padding: 0 1; color: $text-accent; text-style: bold; }
    FilterBar Input { width: 1fr; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "clear", "Clear", id="filter.clear", tooltip="Clear the filter"),
    ]

    @dataclass
    class Typed(Message):
        """The filter has another text."""

        text: str

    @dataclass
    class Closed(Message):
        """The person is done with typing."""

    def compose(self) -> ComposeResult:
        yield Label("/", markup=False)
        yield Input(compact=True, select_on_focus=False)

    def open(self, text: str, hint: str) -> None:
        """Shows `text` and takes the focus."""
        self.add_class("-open")
        box = self.query_one(Input)
        box.placeholder = hint
        box.value = text
        box.focus()

    def action_clear(self) -> None:
        self.query_one(Input).value = ""
        self.close()

    def close(self) -> None:
        """Hides the row; its text stays in force."""
        self.remove_class("-open")
        self.post_message(self.Closed())

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Typed(event.value))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.close()
