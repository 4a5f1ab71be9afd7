"""The signs the dashboard draws with, in Unicode and in ASCII.

Every sign is one cell wide.
"""

from dataclasses import dataclass
from typing import Literal

Raster = Literal["braille", "blocks", "ascii"]


@dataclass(frozen=True)
class Glyphs:
    """One set of signs; `UNICODE` and `ASCII` are the two there are."""

    raster: Raster
    """How the chart turns dots into cells."""
    levels: str
    """Heights of a sparkline, lowest first."""
    gap: str
    """A value that was not finite."""
    rising: str
    falling: str
    flat: str
    bar_full: str
    bar_part: str
    bar_empty: str
    vertical: str
    horizontal: str
    tick_y: str
    tick_x: str
    corner: str
    cursor_line: str
    row_cursor: str
    separator: str
    ellipsis: str


UNICODE = Glyphs(
    raster="braille",
    levels="▁▂▃▄▅▆▇█",
    gap="!",
    rising="↑",
    falling="↓",
    flat="→",
    bar_full="━",
    bar_part="╸",
    bar_empty="─",
    vertical="│",
    horizontal="─",
    tick_y="┤",
    tick_x="┬",
    corner="└",
    cursor_line="┊",
    row_cursor="▶",
    separator="│",
    ellipsis="…",
)

ASCII = Glyphs(
    raster="ascii",
    levels=".:-=+*#@",
    gap="!",
    rising="^",
    falling="v",
    flat="-",
    bar_full="#",
    bar_part="#",
    bar_empty=".",
    vertical="|",
    horizontal="-",
    tick_y="+",
    tick_x="+",
    corner="+",
    cursor_line=":",
    row_cursor=">",
    separator="|",
    ellipsis="~",
)
