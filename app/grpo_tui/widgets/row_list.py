"""A list of any length of which only the visible rows are drawn.

It has the movement keys of all lists.
"""

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

from grpo_tui.drawing.glyphs import UNICODE, Glyphs


class RowList(ScrollView, can_focus=True):
    """Rows of one line each. Subclasses say how many there are and draw one of them."""

    DEFAULT_CSS = """
    RowList {
        height: 1fr;
        overflow-x: hidden;
        overflow-y: auto;
        scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
        text-wrap: nowrap;
        background: transparent;
    }
    RowList > .row--cursor { background: $block-cursor-blurred-background; }
    RowList:focus > .row--cursor { background: $block-cursor-background 40%; text-style: bold; }
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"row--cursor"}

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="list.up", tooltip="One row up"),
        Binding("down,j", "move(1)", "Down", show=False, id="list.down", tooltip="One row down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="list.page_up", tooltip="Page up"),
        Binding(
            "pagedown", "page(1)", "Page down", show=False, id="list.page_down", tooltip="Page down"
        ),
        Binding(
            "ctrl+u",
            "page(-0.5)",
            "Half page up",
            show=False,
            id="list.half_up",
            tooltip="Half a page up",
        ),
        Binding(
            "ctrl+d",
            "page(0.5)",
            "Half page down",
            show=False,
            id="list.half_down",
            tooltip="Half a page down",
        ),
        Binding("home,g", "edge(False)", "First", show=False, id="list.first", tooltip="First row"),
        Binding("end,G", "edge(True)", "Last", show=False, id="list.last", tooltip="Last row"),
    ]

    cursor: reactive[int] = reactive(0, repaint=False)

    @dataclass
    class Moved(Message):
        """The cursor stands on another row."""

        rows: "RowList"
        index: int

        @property
        def control(self) -> "RowList":
            return self.rows

    @dataclass
    class Chosen(Message):
        """A row was clicked twice."""

        rows: "RowList"
        index: int

        @property
        def control(self) -> "RowList":
            return self.rows

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.glyphs = glyphs

    def count(self) -> int:
        """Number of rows now."""
        raise NotImplementedError

    def draw_row(self, index: int, width: int, selected: bool) -> Content:
        """Row `index`; what is wider than `width` is cut."""
        raise NotImplementedError

    def refresh_rows(self) -> None:
        """After the rows have changed: keeps the cursor on a row, and redraws."""
        count = self.count()
        size = Size(max(1, self.scrollable_content_region.width), count)
        if size != self.virtual_size:
            self.virtual_size = size
        self.cursor = min(self.cursor, max(0, count - 1))
        self.refresh()

    def validate_cursor(self, cursor: int) -> int:
        return max(0, min(cursor, self.count() - 1))

    def watch_cursor(self, old: int, new: int) -> None:
        if old != new:
            self.show_cursor()
            self.refresh()
            self.post_message(self.Moved(self, new))

    def show_cursor(self) -> None:
        """Scrolls as little as makes the cursor visible."""
        top, height = round(self.scroll_y), max(1, self.scrollable_content_region.height)
        if self.cursor < top:
            self._scroll_rows(self.cursor)
        elif self.cursor >= top + height:
            self._scroll_rows(self.cursor - height + 1)

    def _scroll_rows(self, y: int) -> None:
        # The new row count may not have reached the layout yet, which would clamp the target.
        self.scroll_to(y=y, animate=False, force=True, immediate=True)

    def action_move(self, rows: int) -> None:
        self.cursor += rows

    def action_page(self, pages: float) -> None:
        self.cursor += round(pages * max(1, self.scrollable_content_region.height - 1))

    def action_edge(self, last: bool) -> None:
        self.cursor = self.count() - 1 if last else 0

    def on_resize(self, event: events.Resize) -> None:
        self.refresh_rows()
        self.show_cursor()

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        index = offset.y + round(self.scroll_y)
        if index < self.count():
            self.action_move(index - self.cursor)
            if event.chain >= 2:
                self.post_message(self.Chosen(self, index))

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        index = y + round(self.scroll_y)
        if width < 1 or index >= self.count():
            return Strip.blank(max(0, self.size.width), self.rich_style)
        selected = index == self.cursor
        content = self.draw_row(index, width, selected).truncate(width, pad=True)
        style = self.visual_style
        if selected:
            style += self.get_visual_style("row--cursor", partial=True)
        strips = Visual.to_strips(self, content, width, 1, style, pad=True)
        return strips[0] if strips else Strip.blank(width, self.rich_style)
