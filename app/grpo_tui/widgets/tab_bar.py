"""One row of numbered tabs, with a note about the open one at the right."""

from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widget import Widget


@dataclass(frozen=True)
class Tab:
    """A tab; `count` stands behind its title."""

    id: str
    title: str
    short: str
    """Title where columns are scarce."""
    count: str = ""


class TabBar(Widget):
    """Shows `tabs` with the active one marked, in brackets where there is no colour."""

    DEFAULT_CSS = """
    TabBar { height: 1; width: 1fr; text-wrap: nowrap; }
    """

    @dataclass
    class Picked(Message):
        """A tab was clicked."""

        tab_id: str

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._tabs: tuple[Tab, ...] = ()
        self._active = ""
        self._note = Content("")
        self._edges: list[tuple[int, int, str]] = []

    def show(self, tabs: tuple[Tab, ...], active: str, note: Content) -> None:
        """Sets everything that is shown."""
        self._tabs, self._active, self._note = tabs, active, note
        self.refresh()

    def render(self) -> Content:
        width = self.size.width
        for short, counts in ((False, True), (False, False), (True, False)):
            line = self._titles(short=short, counts=counts)
            if line.cell_length + self._note.cell_length + 1 <= width:
                break
        room = width - line.cell_length - 1
        note = self._note.truncate(max(0, room)) if room > 0 else Content("")
        gap = " " * max(0, width - line.cell_length - note.cell_length)
        return Content.assemble(line, gap, note)

    def _titles(self, *, short: bool, counts: bool) -> Content:
        parts: list[Content] = []
        self._edges = []
        column = 0
        for number, tab in enumerate(self._tabs, start=1):
            title = " ".join(filter(None, (str(number), tab.short if short else tab.title)))
            text = f"{title} {tab.count}" if tab.count and counts else title
            active = tab.id == self._active
            text = f"[{text}]" if active else f" {text} "
            style = "bold $text-primary on $primary-muted" if active else "$foreground 65%"
            parts.append(Content.styled(text, style))
            self._edges.append((column, column + parts[-1].cell_length, tab.id))
            column += parts[-1].cell_length
        return Content("").join(parts)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        for start, end, tab_id in self._edges:
            if offset is not None and start <= offset.x < end:
                self.post_message(self.Picked(tab_id))
