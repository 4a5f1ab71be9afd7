"""Long text that scrolls: wrapped once for each width, drawn a line at a time."""

from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

from grpo_tui.drawing.glyphs import UNICODE, Glyphs
from grpo_tui.drawing.wrapping import Block, wrap


class TextView(ScrollView, can_focus=True):
    """Blocks one below the other."""

    DEFAULT_CSS = """
    TextView {
        height: 1fr;
        background: transparent;
        overflow-x: auto;
        overflow-y: auto;
        scrollbar-size: 1 1;
        scrollbar-gutter: stable;
        text-wrap: nowrap;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_by(0,-1)", "Up", show=False, id="text.up", tooltip="One line up"),
        Binding(
            "down,j", "scroll_by(0,1)", "Down", show=False, id="text.down", tooltip="One line down"
        ),
        Binding("left", "scroll_by(-8,0)", "Left", show=False, id="text.left", tooltip="Sideways"),
        Binding(
            "right", "scroll_by(8,0)", "Right", show=False, id="text.right", tooltip="Sideways"
        ),
        Binding("pageup", "pages(-1)", "Page up", show=False, id="text.page_up", tooltip="Page up"),
        Binding(
            "pagedown",
            "pages(1)",
            "Page down",
            show=False,
            id="text.page_down",
            tooltip="Page down",
        ),
        Binding(
            "ctrl+u",
            "pages(-0.5)",
            "Half up",
            show=False,
            id="text.half_up",
            tooltip="Half a page up",
        ),
        Binding(
            "ctrl+d",
            "pages(0.5)",
            "Half down",
            show=False,
            id="text.half_down",
            tooltip="Half a page down",
        ),
        Binding("home,g", "ends(False)", "Top", show=False, id="text.top", tooltip="Top"),
        Binding("end,G", "ends(True)", "End", show=False, id="text.end", tooltip="End"),
    ]

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._glyphs = glyphs
        self._blocks: list[Block] = []
        self._lines: list[tuple[str, str]] = []
        self._laid_out: tuple[int, bool] | None = None
        self.raw = False

    def show(self, blocks: list[Block], *, keep_place: bool = False) -> None:
        """Replaces the text; starts at the top unless `keep_place`."""
        self._blocks = blocks
        self._laid_out = None
        self._lay_out()
        if not keep_place:
            self.scroll_to(0, 0, animate=False, force=True, immediate=True)

    def set_raw(self, raw: bool) -> None:
        """Raw: lines as they are, blanks and line ends visible, scrolls sideways."""
        self.raw = raw
        self._lay_out()

    def _lay_out(self) -> None:
        width = self.scrollable_content_region.width
        # Before the first resize there is no width, and text wrapped to none is a letter a line.
        if width < 1 or self._laid_out == (width, self.raw):
            return
        self._laid_out = (width, self.raw)
        self._lines = [line for block in self._blocks for line in self._lines_of(block, width)]
        widest = max((cell_len(text) for text, _ in self._lines), default=0) if self.raw else width
        self.virtual_size = Size(max(width, widest), len(self._lines))
        self.refresh()

    def _lines_of(self, block: Block, width: int) -> list[tuple[str, str]]:
        indent = " " * block.indent
        if self.raw and block.literal:
            end, blank, tab = ("$", ".", ">") if self._glyphs.raster == "ascii" else "⏎·⇥"
            *lines, last = block.text.replace(" ", blank).replace("\t", tab).split("\n")
            # After a visible line end an empty last line would say nothing more.
            shown = [line + end for line in lines] + ([last] if last or not lines else [])
        elif self.raw:
            shown = block.text.expandtabs().split("\n")
        else:
            shown = list(wrap(block.text.removesuffix("\n"), width - block.indent))
        return [(indent + line, block.style) for line in shown]

    def on_resize(self, event: events.Resize) -> None:
        self._lay_out()

    def action_scroll_by(self, columns: int, rows: int) -> None:
        self.scroll_to(self.scroll_x + columns, self.scroll_y + rows, animate=False, immediate=True)

    def action_pages(self, pages: float) -> None:
        self.action_scroll_by(0, round(pages * max(1, self.size.height - 1)))

    def action_ends(self, last: bool) -> None:
        self.scroll_to(y=self.virtual_size.height if last else 0, animate=False, immediate=True)

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        index = y + round(self.scroll_y)
        if width < 1 or index >= len(self._lines):
            return Strip.blank(max(0, self.size.width), self.rich_style)
        text, style = self._lines[index]
        content = Content.styled(text, style) if style else Content(text)
        wide = max(width, cell_len(text))
        strips = Visual.to_strips(self, content, wide, 1, self.visual_style, pad=True)
        left = round(self.scroll_x)
        line = strips[0] if strips else Strip.blank(width, self.rich_style)
        return line.crop_extend(left, left + width, self.rich_style)
