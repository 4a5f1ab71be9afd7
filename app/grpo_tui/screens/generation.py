"""One completion from the record on the whole screen."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Static

from grpo_tui.clipboard import copy_text
from grpo_tui.drawing.glyphs import UNICODE, Glyphs
from grpo_tui.drawing.sample_text import body_blocks, title_line
from grpo_tui.record.database_rows import GenerationDetail
from grpo_tui.record.recorded_sample import recorded_sample
from grpo_tui.widgets.text_view import TextView


class GenerationScreen(Screen[None]):
    """Shows a completion whether its run still goes on or ended long ago."""

    DEFAULT_CSS = """
    GenerationScreen { layout: vertical; }
    GenerationScreen #generation-title {
        height: auto; max-height: 2; padding: 0 1; background: $panel;
    }
    GenerationScreen #generation-text { height: 1fr; padding: 0 1; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Back", key_display="Esc", id="generation.back",
                tooltip="Back to the list"),
        Binding("v", "view", "Raw", id="generation.view",
                tooltip="Wrapped, or raw with blanks and line ends visible"),
        Binding("y", "copy", "Copy", id="generation.copy", tooltip="Copy the completion"),
    ]  # fmt: skip

    def __init__(self, row: GenerationDetail, glyphs: Glyphs = UNICODE) -> None:
        super().__init__()
        self._row, self._glyphs = row, glyphs

    def compose(self) -> ComposeResult:
        yield Static(id="generation-title", markup=False)
        yield TextView(self._glyphs, id="generation-text")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        sample = recorded_sample(self._row)
        self.query_one("#generation-title", Static).update(title_line(sample))
        text = self.query_one(TextView)
        text.show(body_blocks(sample))
        text.focus()

    def action_view(self) -> None:
        text = self.query_one(TextView)
        text.set_raw(not text.raw)

    def action_copy(self) -> None:
        self.notify(copy_text(self.app, self._row.completion_text), timeout=4, markup=False)
