"""All keys, generated from the bindings themselves, so that help cannot lie."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.dom import DOMNode
from textual.widgets import Static

from grpo_tui.screens.dialog import Dialog
from grpo_tui.widgets.key_help import key_lines
from grpo_tui.widgets.scroll_pane import ScrollPane

Section = tuple[str, type[DOMNode]]


class HelpScreen(Dialog[None]):
    """Keys by place; scrolls, so that nothing is cut on a small terminal."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q", "dismiss", "Close", id="help.close", tooltip="Close"),
    ]

    def __init__(self, sections: list[Section]) -> None:
        super().__init__()
        self._sections = sections

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog tall") as dialog:
            dialog.border_title = "Keys"
            dialog.border_subtitle = "Esc closes"
            with ScrollPane():
                yield Static(self._text(), markup=False)

    def _text(self) -> Content:
        lines: list[Content] = []
        for title, node in self._sections:
            if lines:
                lines.append(Content(""))
            lines.append(Content.styled(title, "bold $text-primary"))
            lines.extend(key_lines(node, self.app.get_key_display))
        return Content("\n").join(lines)
