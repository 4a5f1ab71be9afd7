"""The log: follows the newest line, and stays still for whoever has scrolled back."""

from collections import deque
from datetime import datetime
from typing import ClassVar, Final

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

from grpo_protocol.messages import LogLevel
from grpo_tui.drawing.wrapping import wrap
from grpo_tui.state.log_book import LEVELS, LogBook, LogLine

_STYLES: Final[dict[LogLevel, tuple[str, str]]] = {
    "debug": ("D", "$foreground 50%"),
    "info": ("I", "$foreground"),
    "warn": ("W", "$text-warning"),
    "error": ("E", "bold $text-error"),
}
_PREFIX: Final = 13
"""Cells before the text: time, level, source."""

Row = tuple[LogLine, str, bool]
"""A line of the screen: whose it is, its text, and whether it is the first of its log line."""


class LogView(ScrollView, can_focus=True):
    """Log lines of at least one level that hold every filter word."""

    DEFAULT_CSS = """
    LogView {
        height: 1fr; background: transparent; overflow-x: hidden; overflow-y: auto;
        scrollbar-size-vertical: 1; scrollbar-gutter: stable; text-wrap: nowrap;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "rows(-1)", "Up", show=False, id="log.up", tooltip="One line up"),
        Binding("down,j", "rows(1)", "Down", show=False, id="log.down", tooltip="One line down"),
        Binding("pageup", "pages(-1)", "Page up", show=False, id="log.page_up", tooltip="Page up"),
        Binding(
            "pagedown", "pages(1)", "Page down", show=False, id="log.page_down", tooltip="Page down"
        ),
        Binding(
            "ctrl+u",
            "pages(-0.5)",
            "Half up",
            show=False,
            id="log.half_up",
            tooltip="Half a page up",
        ),
        Binding(
            "ctrl+d",
            "pages(0.5)",
            "Half down",
            show=False,
            id="log.half_down",
            tooltip="Half a page down",
        ),
        Binding(
            "home,g", "edge(False)", "Oldest", show=False, id="log.first", tooltip="Oldest line"
        ),
        Binding(
            "end,G",
            "edge(True)",
            "Newest",
            show=False,
            id="log.last",
            tooltip="Newest line, and follow",
        ),
    ]

    def __init__(self, book: LogBook, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._book = book
        self._rows: deque[Row] = deque()
        self._read = 0
        self._width = 0
        self._own_scroll = False
        self.level: LogLevel = "info"
        self.words: tuple[str, ...] = ()
        self.follow = True
        self.wrapped = True
        self.unseen = 0
        """Lines that came since the person scrolled back."""

    def update_lines(self) -> None:
        """Takes what is new in the book."""
        width = self.scrollable_content_region.width
        if width != self._width:
            self._width = width
            self._start_over()
            return
        fresh = self._rows_of(self._book.since(self._read, self.level))
        self._read = self._book.next_number
        dropped = self._drop_old()
        self._rows.extend(fresh)
        if not fresh and not dropped:
            return
        self.unseen = 0 if self.follow else self.unseen + sum(first for _, _, first in fresh)
        place = self._rows_height if self.follow else round(self.scroll_y) - dropped
        self._place(place)

    def _start_over(self) -> None:
        """After another level, filter or width: keeps the newest line, or the top one, in view."""
        top = self._top_number()
        self._rows = deque(self._rows_of(self._book.since(0, self.level)))
        if not self.follow:
            self.unseen += sum(first and line.number >= self._read for line, _, first in self._rows)
        self._read = self._book.next_number
        place = len(self._rows)
        if not self.follow and top is not None:
            place = next((i for i, row in enumerate(self._rows) if row[0].number >= top), place)
        self._place(place)

    def _top_number(self) -> int | None:
        index = round(self.scroll_y)
        return self._rows[index][0].number if index < len(self._rows) else None

    def _rows_of(self, lines: list[LogLine]) -> list[Row]:
        rows: list[Row] = []
        room = max(8, self._width - _PREFIX)
        for line in lines:
            if self.words and not all(word in line.text.lower() for word in self.words):
                continue
            texts = wrap(line.text, room) if self.wrapped else [line.text.expandtabs()]
            rows.extend((line, text, number == 0) for number, text in enumerate(texts))
        return rows

    def _drop_old(self) -> int:
        count = 0
        while self._rows and self._rows[0][0].number < self._book.first_number:
            self._rows.popleft()
            count += 1
        return count

    @property
    def _rows_height(self) -> int:
        return len(self._rows)

    def _place(self, y: int) -> None:
        self.virtual_size = Size(max(1, self._width), len(self._rows))
        self._own_scroll = True
        self.scroll_to(y=y, animate=False, force=True, immediate=True)
        self._own_scroll = False
        self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if not self._own_scroll:
            self._set_follow(new_value >= self.max_scroll_y)

    def _set_follow(self, follow: bool) -> None:
        self.follow = follow
        if follow:
            self.unseen = 0

    def toggle_follow(self) -> None:
        """Follow the newest line, or stay here."""
        self._set_follow(not self.follow)
        if self.follow:
            self._place(len(self._rows))

    def cycle_level(self) -> None:
        """The next of debug, info, warn, error."""
        self.level = LEVELS[(LEVELS.index(self.level) + 1) % len(LEVELS)]
        self._start_over()

    def toggle_wrap(self) -> None:
        """Long lines in several rows, or cut."""
        self.wrapped = not self.wrapped
        self._start_over()

    def set_words(self, words: tuple[str, ...]) -> None:
        """Shows only lines that hold each of `words`, whatever their case."""
        self.words = tuple(word.lower() for word in words)
        self._start_over()

    def action_rows(self, rows: int) -> None:
        self.scroll_to(y=round(self.scroll_y) + rows, animate=False, immediate=True)

    def action_pages(self, pages: float) -> None:
        self.action_rows(round(pages * max(1, self.size.height - 1)))

    def action_edge(self, last: bool) -> None:
        if last:
            self._set_follow(True)
            self._place(len(self._rows))
        else:
            self._set_follow(False)
            self._place(0)

    def on_resize(self, event: events.Resize) -> None:
        self.update_lines()

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        index = y + round(self.scroll_y)
        if width < 1 or index >= len(self._rows):
            return Strip.blank(max(0, self.size.width), self.rich_style)
        content = _draw(self._rows[index]).truncate(width)
        strips = Visual.to_strips(self, content, width, 1, self.visual_style, pad=True)
        return strips[0] if strips else Strip.blank(width, self.rich_style)


def _draw(row: Row) -> Content:
    line, text, first = row
    letter, style = _STYLES[line.level]
    if not first:
        return Content.assemble(" " * _PREFIX, (text, style))
    clock = datetime.fromtimestamp(line.time).strftime("%H:%M:%S")
    return Content.assemble(
        (f"{clock} ", "$foreground 50%"),
        (f"{letter}", f"{style}"),
        (f" {line.letter} ", "$foreground 50%"),
        (text, style),
    )
