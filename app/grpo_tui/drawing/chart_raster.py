"""A series to a grid of cells: Braille, quarter blocks or ASCII.

Each column of dots draws the whole span between the smallest and the largest value that fall into
it, so no spike is lost however many points there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_tui.drawing.chart_scale import Range
from grpo_tui.drawing.glyphs import Raster
from grpo_tui.state.series import Column, Gap

_BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_QUARTERS = " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█"
_DOTS_PER_CELL: dict[Raster, tuple[int, int]] = {
    "braille": (2, 4),
    "blocks": (2, 2),
    "ascii": (1, 1),
}


@dataclass(frozen=True)
class Plot:
    """Dots of one series in a grid of cells, and the columns where a value was not finite."""

    width: int
    height: int
    raster: Raster
    dots: list[int]
    """Bits of each cell, row by row from the top."""
    gaps: frozenset[int]
    """Columns of cells that hold a value which cannot be drawn."""

    def text(self, row: int, column: int, ascii_sign: str = "*") -> str:
        """The sign of a cell; a space where nothing is drawn."""
        bits = self.dots[row * self.width + column]
        if not bits:
            return " "
        if self.raster == "braille":
            return chr(0x2800 + bits)
        return _QUARTERS[bits] if self.raster == "blocks" else ascii_sign


def dots_across(width: int, raster: Raster) -> int:
    """Columns of dots in `width` cells."""
    return width * _DOTS_PER_CELL[raster][0]


def plot(
    columns: Sequence[Column | Gap | None], y_range: Range, width: int, height: int, raster: Raster
) -> Plot:
    """Draws `columns`, one for each column of dots, into `width` × `height` cells."""
    across, down = _DOTS_PER_CELL[raster]
    top = height * down - 1
    canvas = _Canvas(width, height, raster)
    gaps: set[int] = set()
    previous: tuple[int, int] | None = None
    for x, column in enumerate(columns):
        if column is None:
            continue
        if isinstance(column, Gap) or column.gap:
            gaps.add(x // across)
            previous = None
        if isinstance(column, Gap):
            continue
        low, high, last = (
            min(max(round(y_range.place(y) * top), 0), top)
            for y in (column.low, column.high, column.last)
        )
        canvas.vertical(x, low, high)
        if previous is not None:
            canvas.join(*previous, x, min(max(previous[1], low), high))
        previous = (x, last)
    return Plot(width, height, raster, canvas.bits, frozenset(gaps))


class _Canvas:
    """A grid of dots, y counted upwards, packed into the bits of cells."""

    def __init__(self, width: int, height: int, raster: Raster) -> None:
        self._across, self._down = _DOTS_PER_CELL[raster]
        self._width, self._height, self._raster = width, height, raster
        self.bits = [0] * (width * height)

    def dot(self, x: int, y: int) -> None:
        top = self._height * self._down - 1 - y
        cell = top // self._down * self._width + x // self._across
        row, column = top % self._down, x % self._across
        if self._raster == "braille":
            self.bits[cell] |= _BRAILLE[row][column]
        else:
            self.bits[cell] |= 1 << (row * 2 + column)

    def vertical(self, x: int, low: int, high: int) -> None:
        for y in range(low, high + 1):
            self.dot(x, y)

    def join(self, x0: int, y0: int, x1: int, y1: int) -> None:
        """A line from one column to a later one; each dot column covers its share of the rise."""
        steps = x1 - x0
        y = y0
        for step in range(1, steps + 1):
            target = y0 + round((y1 - y0) * step / steps)
            # Half of the rise is drawn in each of two neighbours, so that steep lines stay thin.
            middle = (y + target) // 2
            self.vertical(x0 + step - 1, min(y, middle), max(y, middle))
            self.vertical(x0 + step, min(middle, target), max(middle, target))
            y = target
