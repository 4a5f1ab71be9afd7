"""A scrolling container with the movement keys of all lists."""

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll


class ScrollPane(VerticalScroll):
    """Holds content that may be taller than the screen."""

    DEFAULT_CSS = "ScrollPane { scrollbar-size-vertical: 1; }"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "scroll_up", "Up", show=False, id="pane.up", tooltip="Up"),
        Binding("j", "scroll_down", "Down", show=False, id="pane.down", tooltip="Down"),
        Binding("g", "scroll_home", "Top", show=False, id="pane.top", tooltip="Top"),
        Binding("G", "scroll_end", "End", show=False, id="pane.end", tooltip="End"),
        Binding("ctrl+u", "page_up", "Page up", show=False, id="pane.page_up", tooltip="Page up"),
        Binding(
            "ctrl+d", "page_down", "Page down", show=False, id="pane.page_down", tooltip="Page down"
        ),
    ]
