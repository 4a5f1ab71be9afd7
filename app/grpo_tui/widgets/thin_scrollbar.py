"""Scrollbars of plain signs, which can be seen without colours and drawn in ASCII."""

from typing import ClassVar, Final

from rich.color import Color
from rich.segment import Segment, Segments
from rich.style import Style
from textual.scrollbar import ScrollBar, ScrollBarRender

_NO_COLOR: Final = Color.default()


class ThinScrollBar(ScrollBarRender):
    """A thin track with a thick thumb."""

    TRACK: ClassVar[tuple[str, str]] = ("│", "─")
    THUMB: ClassVar[tuple[str, str]] = ("┃", "━")

    @classmethod
    def render_bar(
        cls,
        size: int = 25,
        virtual_size: float = 50,
        window_size: float = 20,
        position: float = 0,
        thickness: int = 1,
        vertical: bool = True,
        back_color: Color = _NO_COLOR,
        bar_color: Color = _NO_COLOR,
    ) -> Segments:
        index = 0 if vertical else 1
        start, end = cls._thumb(size, virtual_size, window_size, position)
        segments = []
        for cell in range(int(size)):
            inside = start <= cell < end
            meta = "grab" if inside else "scroll_up" if cell < start else "scroll_down"
            sign = (cls.THUMB if inside else cls.TRACK)[index]
            style = Style(color=bar_color, bgcolor=back_color, dim=not inside)
            segments.append(
                Segment(
                    sign * (thickness if vertical else 1),
                    style + Style(meta={"@mouse.down": meta}),
                )
            )
        if vertical:
            return Segments(segments, new_lines=True)
        return Segments([*segments, Segment.line()] * thickness, new_lines=False)

    @staticmethod
    def _thumb(
        size: int, virtual_size: float, window_size: float, position: float
    ) -> tuple[int, int]:
        if size < 1 or virtual_size <= window_size or virtual_size <= 0:
            return 0, 0
        length = max(1, round(size * window_size / virtual_size))
        start = round((size - length) * position / (virtual_size - window_size))
        start = min(max(start, 0), size - length)
        return start, start + length


class AsciiScrollBar(ThinScrollBar):
    """The same in ASCII."""

    TRACK = ("|", "-")
    THUMB = ("#", "#")


def use_scrollbars(ascii_only: bool) -> None:
    """Every scrollbar of this process is drawn this way from now on."""
    ScrollBar.renderer = AsciiScrollBar if ascii_only else ThinScrollBar
